// The page: groups at the left, names in the middle, what is known of them at the right.

import { Details, what } from "./details.js";
import { ask, tell } from "./dialog.js";
import { List } from "./list.js";
import { Model } from "./model.js";
import { count, node } from "./node.js";
import { drawTeam } from "./team.js";

const $ = (id) => document.getElementById(id);
const model = new Model();
const details = new Details($("details"), model);
let view = { kind: "doubtful" };
let queue = Promise.resolve(); // one action at a time, in the order they were made
const NAMES = "application/x-hgld-names"; // what is dragged: names, and of this page alone
const PAGE = crypto.randomUUID();

const searching = () => Boolean($("search").value.trim());
// The group that its keys and buttons act on; a search shows names of many groups and opens none.
const openGroup = () => (view.kind === "group" && !searching() ? view.label : null);

const KEYS = [
  ["↑ ↓ j k", "go through a list (Page Up, Page Down, Home, End)"],
  ["← → Tab", "go between groups, names and details"],
  ["Enter", "open"], ["Space", "select a name"], ["Shift+↓ Ctrl+a", "select several, all"],
  ["m", "move the names to another group (or drag them there)"],
  ["c", "confirm the names where they are"],
  ["s", "split the names off into a new group"],
  ["d", "drop the names, or in the list of groups the group"],
  ["r", "rename the group"], ["g", "merge the group into another"],
  ["n h", "the group is natural, human-made"],
  ["u Ctrl+z", "undo"], ["/", "search"], ["t", "the annotators side by side"], ["?", "these keys"],
];

const groups = new List($("groups"), {
  key: (item) => item.key,
  draw: drawGroup,
  onActive: (item) => (searching() ? details.group(item.view.label).catch(say) : show(item.view)),
  onOpen: (item, clicked) => { show(item.view); pane("middle"); if (!clicked) names.element.focus(); },
});
const names = new List($("names"), {
  key: (item) => item.name,
  draw: drawName,
  multiple: true,
  onActive: (item) => { drawActions(); detail(item); },
  onOpen: (item) => { detail(item); pane("details"); },
});

// -- drawing ------------------------------------------------------------------------------------------------------

function drawGroup(row, item) {
  const { label, kind } = item.view;
  row.classList.add(kind);
  const title = node("span", { className: "label", textContent: item.title, dir: "auto" });
  if (kind !== "group") {
    row.append(title, node("span", { className: "number", textContent: item.number ?? "" }));
    return;
  }
  const size = model.sizes.get(label);
  row.append(
    node("i", { className: `top ${model.groups.get(label)[0] ?? "undecided"}`, title: model.groups.get(label)[0] ?? "undecided" }),
    title,
    ...(size.doubtful ? [node("span", { className: "badge", textContent: size.doubtful, title: `${size.doubtful} doubtful` })] : []),
    node("small", { className: "dim", textContent: `${count(size.names, "name")} · ${count(size.landmarks, "landmark")}` }),
  );
  row.ondragover = (event) => {
    if (!event.dataTransfer.types.includes(NAMES)) return;
    event.preventDefault();
    row.classList.add("over");
  };
  row.ondragleave = () => row.classList.remove("over");
  row.ondrop = (event) => {
    event.preventDefault();
    row.classList.remove("over");
    if (event.dataTransfer.getData(NAMES) === PAGE) act.move(label);
  };
}

function drawName(row, item) {
  row.draggable = true;
  row.ondragstart = (event) => {
    if (!names.selected.has(item.name)) { names.selected.clear(); names.go(names.items.indexOf(item), { quiet: true }); }
    event.dataTransfer.setData(NAMES, PAGE);
    event.dataTransfer.effectAllowed = "move";
  };
  const where = view.kind === "group" ? (item.next ? `next: ${item.next}` : "") : (item.label ?? "dropped");
  row.append(
    node("span", { className: "tick", ariaHidden: "true" }),
    node("span", { className: "label", textContent: item.name, dir: "auto" }),
    item.open ? node("span", { className: "badge", textContent: "?", title: "doubtful" })
      : item.who ? node("span", { className: "done", textContent: "✓", title: `decided by ${item.who}` }) : "",
    node("small", { className: "dim", dir: "auto", textContent: [count(item.landmarks, "landmark"), item.confidence.toFixed(2), where].filter(Boolean).join(" · ") }),
  );
}

function drawGroups() {
  const search = $("search").value.trim().toLowerCase();
  const order = {
    doubt: (a, b) => b.size.doubtful - a.size.doubtful || b.size.landmarks - a.size.landmarks,
    size: (a, b) => b.size.landmarks - a.size.landmarks,
    label: () => 0,
  }[$("sort").value];
  const listed = [...model.sizes].filter(([label]) => label.toLowerCase().includes(search)).map(([label, size]) => ({ key: `=${label}`, title: label, size, view: { kind: "group", label } }));
  listed.sort((a, b) => order(a, b) || (a.title < b.title ? -1 : 1));
  const fixed = [
    { key: "doubtful", title: "Doubtful names", number: model.doubtful, view: { kind: "doubtful" } },
    { key: "all", title: "All names", number: model.names.size - model.dropped, view: { kind: "all" } },
    ...(model.dropped ? [{ key: "dropped", title: "Dropped", number: model.dropped, view: { kind: "dropped" } }] : []),
    ...(model.others.length ? [{ key: "team", title: "Side by side", view: { kind: "team" } }] : []),
    { key: "history", title: "Your decisions", number: model.decisions, view: { kind: "history" } },
  ];
  groups.show(search ? listed : [...fixed, ...listed]);
  markHere();
}

// The list of groups marks what the middle shows, however one came there.
function markHere() {
  const here = groups.items.findIndex((item) => item.key === (view.kind === "group" ? `=${view.label}` : view.kind));
  if (here >= 0 && here !== groups.active) groups.go(here, { quiet: true });
}

function drawNames(keep = true) {
  const search = $("search").value.trim().toLowerCase();
  const tests = {
    doubtful: (_, label, doubtful) => doubtful,
    all: (_, label) => label !== null,
    dropped: (_, label) => label === null,
    group: (_, label) => label === view.label,
  };
  const test = search ? (name) => model.facts.get(name).lower.includes(search) : tests[view.kind] ?? (() => false);
  names.show(model.list(test), { keep });
  names.element.dataset.empty = search ? "No name contains this." : { doubtful: "No doubtful names are left." }[view.kind] ?? "";
  names.element.classList.toggle("empty", !names.items.length);
}

function drawTitle() {
  const search = $("search").value.trim();
  const titles = { doubtful: "Doubtful names", all: "All names", dropped: "Dropped names", team: "Side by side", history: "Your decisions" };
  $("title").textContent = search ? `Names with “${search}”` : titles[view.kind] ?? view.label;
  const top = openGroup() !== null ? model.groups.get(view.label)[0] ?? "undecided" : null;
  $("tags").replaceChildren(...(top ? [node("span", { className: `tag ${top}`, textContent: top })] : []));
  const share = model.doubtful ? `${count(model.doubtful, "doubtful name")} left` : "no doubtful names left";
  $("progress").textContent = `${model.who} · ${count(model.decisions, "decision")} · ${share}`;
  $("undo").disabled = !model.decisions;
}

function drawActions() {
  const some = names.chosen.length, group = openGroup() !== null;
  const buttons = [
    ["move", "Move", "m", some], ["confirm", "Confirm", "c", some], ["split", "Split off", "s", some && group], ["drop", "Drop", "d", some],
    ...(group ? [["rename", "Rename", "r", true], ["merge", "Merge", "g", true], ["natural", "Natural", "n", true], ["made", "Human-made", "h", true], ["dropGroup", "Drop group", "", true]] : []),
  ];
  $("actions").hidden = !searching() && (view.kind === "team" || view.kind === "history");
  $("actions").replaceChildren(
    ...(names.selected.size ? [node("span", { className: "dim", textContent: `${names.selected.size} selected` })] : []),
    ...buttons.map(([name, title, key, can]) => node("button", { type: "button", disabled: !can, onclick: () => act[name](), id: `act-${name}` }, [title, ...(key ? [node("kbd", { textContent: key })] : [])])),
  );
}

async function drawTeamView() {
  drawTeam($("team"), await model.team(), {
    who: model.who,
    adopt: (side) => decide(side.adopt, { action: "adopt", title: `Decide as ${side.who} did`, about: side.adopt.map((one) => `${one.action} ${what(one)}`).join(", then "), button: "Decide" }),
    open: (kind, of) => { if (kind === "name") { $("search").value = of; redraw(false); } else show({ kind: "group", label: of }); },
  });
}

function detail(item) {
  details.name(item).catch(say);
}

function show(next) {
  if (next.kind === "group" && !model.groups.has(next.label)) return say(`There is no group ${next.label} here.`);
  view = next;
  if ($("search").value) {
    $("search").value = "";
    drawGroups();
    groups.go(groups.active, { quiet: true }); // in sight, among all groups again
  }
  if (view.kind === "group") details.group(view.label).catch(say);
  else details.nothing(model.history);
  drawMiddle(false);
  markHere();
}

function drawMiddle(keep) {
  const team = !searching() && view.kind === "team";
  $("team").hidden = !team;
  $("names").hidden = team || (view.kind === "history" && !searching());
  drawNames(keep);
  drawTitle();
  drawActions();
  if (team) drawTeamView().catch(say);
}

function redraw(keep = true) {
  if (view.kind === "group" && !model.groups.has(view.label)) view = { kind: "doubtful" };
  drawGroups();
  drawMiddle(keep);
}

const pane = (name) => { document.body.dataset.pane = name; };

let timer;
function say(message) {
  $("toast").textContent = message.message ?? message;
  $("toast").classList.toggle("bad", message instanceof Error);
  $("toast").classList.add("on");
  clearTimeout(timer);
  timer = setTimeout(() => $("toast").classList.remove("on"), message instanceof Error ? 9000 : 3500);
}

// -- deciding -----------------------------------------------------------------------------------------------------

function send(work, done) {
  queue = queue.then(async () => {
    try {
      await work();
      redraw();
      refreshDetails();
      done?.();
    } catch (error) {
      say(error);
      if (error.stale) await model.load().then(() => redraw(), say);
    }
  });
  return queue;
}

function refreshDetails() {
  if ($("details").contains(document.activeElement)) return;
  const group = document.activeElement === groups.element && groups.current?.view.kind === "group" ? groups.current.view.label : null;
  if (group !== null && !names.selected.size) details.group(group).catch(say);
  else if (names.current && !$("names").hidden) detail(names.current);
  else details.nothing(model.history);
}

// One action: a decision, or several that are taken back as one.
async function decide(decisions, question) {
  const focus = document.activeElement;
  const answer = question ? await ask({ action: decisions[0].action, ...question }) : {};
  (focus?.isConnected ? focus : names.element).focus();
  if (!answer) return;
  const whole = decisions.map((one) => ({ ...one, ...(answer.to === undefined ? {} : { to: answer.to }), ...(answer.why ? { why: answer.why } : {}) }));
  await send(() => model.decide(whole), () => { names.selected.clear(); names.render(); drawActions(); say(`Written to ${model.file}.`); });
}

const labels = () => [...model.groups.keys()].sort();
const listed = (items) => (items.length > 6 ? `${items.slice(0, 5).join(", ")} and ${items.length - 5} more` : items.join(", "));

function needGroup() {
  const label = openGroup();
  if (label === null) say("Open a group first: press Enter on it in the list of groups, or click it.");
  return label;
}

const act = {
  move(to) {
    const chosen = names.chosen.map((item) => item.name);
    if (!chosen.length) return;
    const value = to ?? (names.chosen.length === 1 && names.current.open ? names.current.next : "") ?? "";
    decide([{ action: "move", names: chosen }], { title: `Move ${count(chosen.length, "name")}`, about: listed(chosen), button: "Move",
      target: { label: "To the group", value, options: labels(), mustExist: true, settled: Boolean(to) } });
  },
  // A name is confirmed by moving it to where it is: so docs/decisions.md has it, and so kappa counts it.
  confirm() {
    const chosen = names.chosen.filter((item) => item.label !== null);
    if (!chosen.length) return;
    const places = new Map();
    for (const { name, label } of chosen) places.set(label, [...(places.get(label) ?? []), name]);
    decide([...places].map(([to, members]) => ({ action: "move", names: members, to, why: "looked at: it belongs here" })));
  },
  split() {
    const chosen = names.chosen.map((item) => item.name), group = needGroup();
    if (group === null || !chosen.length) return;
    decide([{ action: "split", group, names: chosen }], { title: `Split ${count(chosen.length, "name")} off ${group}`, about: listed(chosen), button: "Split off",
      target: { label: "New group", value: chosen.length === 1 ? chosen[0] : "", mustBeNew: true, taken: model.groups } });
  },
  drop() {
    if (document.activeElement === groups.element) return act.dropGroup();
    const chosen = names.chosen.map((item) => item.name);
    if (chosen.length) decide([{ action: "drop", names: chosen }], { title: `Drop ${count(chosen.length, "name")}`, about: listed(chosen), button: "Drop" });
  },
  dropGroup() {
    const group = needGroup();
    if (group !== null) decide([{ action: "drop", group }], { title: "Drop the whole group", about: `${group}: ${count(model.sizes.get(group).names, "name")}`, button: "Drop group" });
  },
  async rename() {
    const from = needGroup();
    if (from === null) return;
    const answer = await ask({ action: "rename", title: "Rename the group", about: from, button: "Rename", target: { label: "New label", value: from, mustBeNew: true, taken: model.groups } });
    if (answer) await send(async () => { await model.decide([{ action: "rename", group: from, ...answer }]); view = { kind: "group", label: answer.to }; }, () => say(`Written to ${model.file}.`));
  },
  async merge() {
    const from = needGroup();
    if (from === null) return;
    const answer = await ask({ action: "merge", title: "Merge the group into another", about: `${from}: ${count(model.sizes.get(from).names, "name")}`, button: "Merge",
      target: { label: "Into the group", options: labels().filter((label) => label !== from), mustExist: true } });
    if (answer) await send(async () => { await model.decide([{ action: "merge", groups: [from, answer.to], ...answer }]); view = { kind: "group", label: answer.to }; }, () => say(`Written to ${model.file}.`));
  },
  natural: () => set("natural"),
  made: () => set("human-made"),
  undo: () => send(async () => { const undone = await model.undo(); say(`Taken back: ${undone.length > 1 ? count(undone.length, "decision") : undone[0].action}.`); }),
  team: () => { if (model.others.length) { show({ kind: "team" }); pane("middle"); $("team").focus(); } else say("Nobody to compare with: start hgld review with --others FILE."); },
};

function set(top) {
  const group = needGroup();
  if (group !== null) decide([{ action: "set", group, top }], { title: `${group} is ${top}`, about: "", button: `Set ${top}` });
}

// -- keys and buttons ---------------------------------------------------------------------------------------------

const letters = { m: "move", c: "confirm", s: "split", d: "drop", r: "rename", g: "merge", n: "natural", h: "made", u: "undo", t: "team" };

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.target === $("search") && (key === "Escape" || key === "Enter" || key === "ArrowDown")) {
    if (key === "Escape") { $("search").value = ""; redraw(false); }
    names.element.focus();
    if (names.current) detail(names.current);
  } else if (typing) return;
  else if ((event.ctrlKey || event.metaKey) && key === "z") act.undo();
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (key === "/") { $("search").focus(); $("search").select(); }
  else if (key === "?") tell("Keys", KEYS);
  else if (key in letters) act[letters[key]]();
  else if (key === "ArrowRight") step(1);
  else if (key === "ArrowLeft") step(-1);
  else return;
  event.preventDefault();
});

function step(by) {
  const panes = [[groups.element, "groups"], [$("team").hidden ? names.element : $("team"), "middle"], [$("details"), "details"]];
  const at = panes.findIndex(([element]) => element.contains(document.activeElement));
  const [element, name] = panes[Math.max(0, Math.min(at + by, panes.length - 1))];
  pane(name);
  element.focus();
}

document.addEventListener("click", (event) => {
  const back = event.target.closest(".back");
  if (back) pane(back.dataset.to);
});
$("search").addEventListener("input", () => { if ($("search").value.trim()) pane("middle"); redraw(false); });
$("sort").addEventListener("change", drawGroups);
$("undo").addEventListener("click", act.undo);
$("help").addEventListener("click", () => tell("Keys", KEYS));

try {
  await model.load();
  redraw(false);
  names.element.focus();
  if (names.current) detail(names.current);
  const told = model.note ? [model.note] : [];
  if (model.unmatched.length) told.push(`${count(model.unmatched.length, "decision")} of ${model.file} fit nothing here. The first: ${model.unmatched[0].reason}.`);
  if (told.length) say(new Error(told.join(" ")));
  document.body.dataset.ready = "yes";
} catch (error) {
  document.querySelector("main").replaceChildren(node("p", { className: "problem", textContent: error.message }));
}
