// The page: queue and groups on the left, names in the middle, details on the right.

import { Details, what } from "./details.js";
import { ask, tell } from "./dialog.js";
import { List } from "./list.js";
import { Model } from "./model.js";
import { count, node, own, percent, some } from "./node.js";
import { byGroup, fresh, LONGEST, namesOf, pieces, Screen } from "./screen.js";
import { drawTeam } from "./team.js";

const $ = (id) => document.getElementById(id);
const model = new Model();
const details = new Details($("details"), model, give);
let view = { kind: "queue" };
let screen = null; // the screen that is open
const recent = []; // groups that names were moved into, the latest first

const searching = () => Boolean($("search").value.trim());
const inQueue = () => view.kind === "queue" && !searching();
// The open group, on which keys and buttons act; null during a search, which shows names of many groups.
const openGroup = () => (view.kind === "group" && !searching() ? view.label : null);

const KEYS = [
  ["The names of the queue", [
    ["1 … 9 a … z", "put the name under the cursor, or the selected names, into the group with this key"],
    ["Enter", "accept the other names of the screen"], [".", "put the screen off, undecided"],
    ["] [", "select what is most like the name; more of it, less"],
    ["Space", "mark a name: belongs there, does not, left open"],
  ]],
  ["The classes of the queue", [
    ["1 … 9", "give the group this class"], ["r", "rename the class of a group for all its groups, or merge it"],
  ]],
  ["Names, here and in every list", [
    ["0", "move them to any group of a list, by a digit or letters"],
    ["+", "make a new group of them"],
    ["Delete", "drop them; in the list of groups the group"],
    ["Backspace Ctrl+z", "undo"],
  ]],
  ["Letters in every other list", [
    ["m w d u", "as 0, +, Delete, Backspace"], ["c", "confirm them where they are"],
    ["i", "give a single one of a name elsewhere; in the queue, Tab to the details first"],
    ["q t", "the queue; the annotators side by side"],
    ["Space Shift+↓ Ctrl+a", "select one, several, all"],
  ]],
  ["The open group", [
    ["a", "accept it, but for the selected names"], ["x", "the names do not belong to it"],
    ["r", "rename it"], ["g", "merge it into another"],
    ["n h p", "it is natural, human-made; choose its class above"],
  ]],
  ["Everywhere", [
    ["Shift+Enter …", "with Shift the same, and say why"],
    ["↑ ↓", "go through a list (Page Up, Page Down, Home, End)"], ["← → Tab", "go between queue, groups, names and details"],
    ["Enter", "open; in the queue, accept"], ["/", "search"], ["?", "these keys"],
  ]],
];

const queue = new List($("queue"), {
  key: (screen) => screen.id,
  draw: drawScreen,
  onActive: (screen) => { open(screen); },
  onOpen: (screen, clicked) => { open(screen); if (!clicked) names.element.focus(); },
});
const groups = new List($("groups"), {
  key: (item) => item.key,
  draw: drawGroup,
  onActive: (item) => (searching() ? item.view.label && details.group(item.view.label).catch(say) : show(item.view)),
  onOpen: (item, clicked) => { show(item.view); if (!clicked) names.element.focus(); },
});
const names = new List($("names"), {
  key: (item) => item.name,
  draw: drawName,
  multiple: true,
  onActive: (item) => { if (screen) screen.level = names.selected.size ? screen.level : -1; drawActions(); detail(item); },
  onOpen: (item, clicked) => {
    if (inQueue() && !clicked) return false; // Enter accepts the screen
    detail(item);
    if (!clicked) $("details").focus();
    return true;
  },
  onSpace: (item) => {
    if (!inQueue() || !screen) return false;
    screen.mark(namesOf(names.selected.has(item.name) ? names.chosen : [item]));
    names.render();
    drawActions();
    return true;
  },
});

// -- the queue ----------------------------------------------------------------------------------------------------

function drawScreen(row, { names: listed, items, again, level }) {
  row.classList.add("proposal");
  const about = level ? `their ${level}` : again ? "you accepted them; asked again" : `about ${count(items < 10 ? items : Math.round(items), model.item)} to correct`;
  row.append(
    node("span", { className: "label" }, [own(listed[0]), listed.length > 1 ? ` + ${(listed.length - 1).toLocaleString("en")}` : ""]),
    node("small", { className: "dim", textContent: about }),
  );
}

// Show the open screen first, even if its estimates changed, then the other screens of the queue.
function drawQueue() {
  const here = screen && !isThrough() ? [screen.asked] : [];
  const busy = new Set(here.flatMap((one) => one.names));
  const others = model.queue.filter((one) => !done.has(one.id) && one.id !== screen?.asked.id
    && 2 * one.names.filter((name) => busy.has(name) || model.pending.has(name)).length <= one.names.length);
  queue.show([...here, ...others]);
  if (here.length && queue.current !== here[0]) queue.go(0, { quiet: true });
  queue.element.dataset.empty = "Nothing is proposed.";
  queue.element.classList.toggle("empty", !queue.items.length);
  $("queue-count").textContent = model.queue.length || "";
}

const done = new Set(); // completed screens, which stay in the queue until the server responds
const isThrough = () => screen === null || done.has(screen.asked.id) || !screen.left.length;

function open(asked) {
  if (searching()) { $("search").value = ""; drawGroups(); }
  view = { kind: "queue" };
  if (screen?.asked.id !== asked.id) begin(asked);
  drawMiddle(false);
  markHere();
  if (names.current) detail(names.current);
}

function begin(asked) {
  screen = asked && new Screen(asked, model);
}

// Open the next screen of the queue at once, so that the next key press is about the shown names.
function goOn() {
  const isOpen = (one, name) => one.again || (one.level ? model.groupItem(name, one.level) : model.names.get(name)).who === null;
  const isFresh = (one) => (name) => isOpen(one, name) && !model.pending.has(name);
  const next = model.queue.find((one) => !done.has(one.id) && one.id !== screen?.asked.id && 2 * one.names.filter(isFresh(one)).length > one.names.length);
  begin(next ?? null);
  drawQueue();
  if (view.kind === "queue") {
    drawMiddle(false);
    if (names.current) detail(names.current);
  }
}

// -- drawing ------------------------------------------------------------------------------------------------------

const topOf = (label) => model.groups.get(label)?.[0] ?? "undecided";
const topClass = (label) => ({ natural: "natural", "human-made": "human-made", undecided: "undecided" })[topOf(label)] ?? "other";

function drawGroup(row, item) {
  const { label, kind } = item.view;
  row.classList.add(kind);
  const title = node("span", { className: "label", textContent: item.title, dir: "auto" });
  if (kind !== "group") {
    row.append(title, node("span", { className: "number", textContent: item.number ?? "" }));
    return;
  }
  const size = model.sizes.get(label), wrong = Math.round(size.wrong);
  row.append(
    ...(model.levels.length ? [node("i", { className: `top ${topClass(label)}`, title: topOf(label) })] : []),
    title,
    ...(wrong ? [node("span", { className: "badge", textContent: `~${wrong}`, title: `about ${wrong} are wrong` })]
      : size.open ? [] : [node("span", { className: "done", textContent: "✓", title: "every name is decided" })]),
    node("small", { className: "dim", textContent: [count(size.names, "name"), ...(isCounted() ? [count(size.items, model.item)] : [])].join(" · ") }),
  );
}

// True if a decision is about the name, and the open screen does not ask it again.
const isDecided = (item) => item.who !== null && !(inQueue() && screen?.again && !screen.told.has(item.name));

function drawName(row, item, index) {
  const pending = model.pending.has(item.name), decided = isDecided(item);
  row.classList.toggle("pending", pending);
  row.classList.toggle("decided", decided);
  const mark = inQueue() && !decided && !pending ? screen?.marks.get(item.name) ?? "yes" : null;
  if (inQueue()) {
    row.classList.add("proposed");
    row.append(...fork(index));
  }
  const doubt = decided || pending || item.wrong === null ? null : percent(item.wrong);
  row.append(
    node("span", { className: mark ? `tick ${mark}` : decided || pending ? "tick gone" : "tick", textContent: { yes: "✓", no: "✕", open: "–" }[mark] ?? (inQueue() && decided ? "✓" : ""), ariaHidden: "true", title: { yes: "belongs there", no: "does not belong there", open: "left open" }[mark] ?? "" }),
    node("span", { className: "label", textContent: item.name, dir: "auto" }),
    ...chip(item, mark),
    decided ? node("span", { className: "done", textContent: inQueue() ? "" : "✓", title: `decided by ${item.who}` })
      : doubt ? node("span", { className: item.wrong >= 0.5 ? "badge" : "number", textContent: doubt, title: `${doubt} likely to be wrong` }) : "",
    node("small", { className: "dim" }, [...(mark ? nearGroups(item, index) : []), ...parts([isCounted() ? count(item.items, model.item) : null, ...whereabouts(item)])]),
  );
}

// The tree of similar names: a line between two rows, longer between larger ranges; a click selects the names that it divides.
function fork(index) {
  const level = screen?.fork(index) ?? -1;
  if (level < 0) return [];
  const range = screen.chain(index)[level], size = screen.items.slice(...range).filter((item) => screen.isLeft(item)).length;
  const line = node("i", { className: "fork", title: `select ${size} similar names above and below ( ] )`, ariaHidden: "true",
    onclick: (event) => { event.stopPropagation(); names.go(index, { quiet: true }); screen.level = level; choose(range); } });
  line.style.setProperty("--size", Math.log(size) / Math.log(screen.left.length));
  return [line];
}

// The next most probable groups of a name, and of the similar names above and below, with their number. A click moves the name (or
// the selected names, if it is one of them), or the similar names, there.
function nearGroups(item, index) {
  const [block, groups] = screen.around(index);
  const chip = (items, label, before = "") => node("span", { className: "chip near", title: `move ${before && `these ${before}similar names `}to ${label}`, ariaHidden: "true",
    onclick: (event) => { event.stopPropagation(); put(items, label); } }, [before, own(label)]);
  const chosen = names.selected.has(item.name) ? names.chosen : [item];
  return [node("span", { className: "nears" }, [...screen.near(index).map((label) => chip(chosen, label)), ...groups.map((label) => chip(block, label, `${block.length} `))])];
}

// True if names have different numbers of items; in a plain list, each name has one item.
const isCounted = () => model.progress.items > model.progress.names;
const parts = (texts) => texts.filter(Boolean).flatMap((text, index) => [index ? " · " : "", typeof text === "string" ? text : text]);

// The group of a name, unless the list already shows it.
function chip(item, mark) {
  const here = openGroup();
  const label = item.label ?? (item.level ? "undecided" : "dropped");
  if (view.kind === "dropped" && !searching()) return [];
  if (label === here) return [];
  const digit = inQueue() ? targets().indexOf(label) + 1 : 0; // the groups with a digit have a colour
  return [node("span", { className: `chip${mark === "no" ? " struck" : ""}${digit >= 1 && digit <= 9 ? ` hue${digit}` : ""}`, title: `in ${label}` }, [own(label)])];
}

function whereabouts(item) {
  const moved = item.group !== item.label && item.label !== null;
  return [
    moved ? node("span", {}, ["clustered in ", own(item.group)]) : null,
    !inQueue() && item.next && item.next !== item.label ? node("span", {}, ["next ", own(item.next)]) : null,
  ];
}

function drawGroups() {
  const search = $("search").value.trim().toLowerCase();
  const order = {
    wrong: (a, b) => b.size.wrong - a.size.wrong || b.size.open - a.size.open || b.size.items - a.size.items,
    size: (a, b) => b.size.items - a.size.items,
    label: () => 0,
  }[$("sort").value];
  const listed = [...model.sizes].filter(([label]) => label.toLowerCase().includes(search)).map(([label, size]) => ({ key: `=${label}`, title: label, size, view: { kind: "group", label } }));
  listed.sort((a, b) => order(a, b) || (a.title < b.title ? -1 : 1));
  const fixed = [
    { key: "open", title: "Undecided names", number: model.open.toLocaleString("en"), view: { kind: "open" } },
    { key: "all", title: "All names", number: (model.names.size - model.dropped).toLocaleString("en"), view: { kind: "all" } },
    ...(model.dropped ? [{ key: "dropped", title: "Dropped", number: model.dropped.toLocaleString("en"), view: { kind: "dropped" } }] : []),
    ...(model.others.length ? [{ key: "team", title: "Side by side", view: { kind: "team" } }] : []),
    { key: "history", title: "Your decisions", number: model.decisions.toLocaleString("en"), view: { kind: "history" } },
  ];
  groups.show(search ? listed : [...fixed, ...listed]);
  markHere();
}

// Mark in the lists on the left what the middle shows.
function markHere() {
  const key = view.kind === "group" ? `=${view.label}` : view.kind;
  const here = groups.items.findIndex((item) => item.key === key);
  if (here >= 0 && here !== groups.active) groups.go(here, { quiet: true });
  $("groups").classList.toggle("away", inQueue());
  $("queue").classList.toggle("away", !inQueue());
}

function drawNames(keep = true) {
  const search = $("search").value.trim().toLowerCase();
  names.element.classList.toggle("compact", inQueue());
  const tests = {
    open: (item) => item.who === null && item.label !== null,
    all: (item) => item.label !== null,
    dropped: (item) => item.label === null,
    group: (item) => item.label === view.label,
  };
  if (inQueue()) {
    names.show(screen ? screen.items : [], { keep });
    if (!keep && screen) names.go(screen.land(), { quiet: true });
  }
  else names.show(model.list(search ? (item) => item.lower.includes(search) : tests[view.kind] ?? (() => false)), { keep });
  const empty = { open: "Every name is decided.", queue: model.open ? "Nothing more is proposed. Look through the groups, or stop here." : model.levels.some((_, depth) => model.decidedAt(depth) < model.groups.size) ? "Every name is decided, but not every group's class." : "Every name is decided, at every level.", group: "No name is left here." };
  names.element.dataset.empty = search ? "No name contains this." : empty[view.kind] ?? "";
  names.element.classList.toggle("empty", !names.items.length);
}

function drawTitle() {
  const search = $("search").value.trim();
  const titles = { queue: "Queue", open: "Undecided names", all: "All names", dropped: "Dropped names", team: "Side by side", history: "Your decisions" };
  $("title").replaceChildren(...(search ? [`Names with “${search}”`] : inQueue() && screen ? [screen.above ? ["Groups and their ", own(screen.above)] : screen.again ? "Asked again" : "Similar names"].flat() : [titles[view.kind] ?? view.label]));
  const top = openGroup() !== null && model.levels.length ? topOf(view.label) : null;
  $("tags").replaceChildren(...(top ? [node("span", { className: `tag ${topClass(view.label)}`, textContent: top })] : []));
  $("about").hidden = !(inQueue() && screen);
  if (inQueue() && screen) $("about").textContent = screen.above ? "Give each wrong group its class by a digit or 0, then accept the rest." : screen.again ? "You accepted these names. Your answers show how many decisions are slips." : "Press the key of each wrong name's group, then accept the rest.";
  drawProgress();
  $("undo").disabled = !model.decisions;
}

function drawProgress() {
  const { names: all, names_done: decided, items, items_done: itemsDone, still_wrong: wrong } = model.progress;
  const whole = (number) => Math.round(number).toLocaleString("en");
  const [mean, low, high] = wrong?.names ?? [];
  const left = all - decided, expected = ([most, least, upper]) => `${whole(most)} (${whole(least)} to ${whole(upper)})`;
  $("progress").replaceChildren(...parts([
    node("span", {}, [own(model.who), ` · ${count(model.decisions, "decision")}`]),
    `${whole(decided)} of ${whole(all)} names decided${isCounted() ? ` with ${Math.floor((100 * itemsDone) / items)}% of the ${model.item}s` : ""}`,
    `${whole(left)} not looked at`,
    wrong?.unread ? `nearly every group was kept, and whether the names were read is unknown: ${whole(low)} to ${whole(high)} of all names may be wrong`
      : wrong ? `about ${whole(mean)} of all names in a wrong group (80% interval ${whole(low)} to ${whole(high)})` : null,
    ...model.levels.map(([level], depth) => `${level}: ${whole(model.decidedAt(depth))} of ${count(model.groups.size, "group")} decided${wrong ? `, about ${expected(wrong.levels[level])} names wrong` : ""}`),
    wrong && model.levels.length ? `about ${expected(wrong.tree)} names wrong at any level` : null,
  ]));
  $("bar").firstElementChild.style.width = `${all ? (100 * decided) / all : 100}%`;
}

function drawActions() {
  const some = names.chosen.length, group = openGroup() !== null, first = [], rest = [];
  if (inQueue() && screen) {
    const accept = `Accept ${screen.right.length.toLocaleString("en")}`, denied = screen.denied.length;
    first.push(["accept", denied ? `${accept}, not ${denied}` : accept, "Enter", !isThrough(), "strong"], ["later", "Put off", ".", true]);
    if (screen.above) rest.push(["rename", "Rename class", "r", some]);
  } else if (group) {
    const left = stillOpen().length, but = names.selected.size;
    first.push(["accept", but ? `Accept all but ${but}` : `Accept all ${left.toLocaleString("en")}`, "a", left > 0, "strong"]);
    rest.push(["refuse", "Not here", "x", some], ["rename", "Rename", "r", true], ["merge", "Merge", "g", true], ...topButtons(), ["dropGroup", "Drop group", "", true]);
  }
  const chosen = [["move", "Move", "0", some], ["confirm", "Confirm", takesLetters() ? "" : "c", some], ["fresh", "New group", "+", some], ["drop", "Drop", "Del", some]];
  $("actions").hidden = $("primary").hidden = !searching() && (view.kind === "team" || view.kind === "history");
  $("primary").replaceChildren(...first.map(button));
  $("actions").replaceChildren(...[...chosen, ...rest].map(button));
  $("tags").querySelector(".selected")?.remove();
  if (names.selected.size) $("tags").append(node("span", { className: "tag selected", textContent: `${names.selected.size.toLocaleString("en")} selected` }));
  drawTargets();
}

const button = ([name, title, key, can, className = ""]) => node("button", { type: "button", className, disabled: !can, onclick: () => act[name](), id: `act-${name}` },
  [title, ...(key ? [node("kbd", { textContent: key })] : [])]);

// The classes of the coarsest level.
const tops = () => model.levels.at(-1)?.[1] ?? [];
const isLandmarks = () => model.levels.length === 1 && tops().includes("natural") && tops().includes("human-made");
const topButtons = () => (isLandmarks() ? [["natural", "Natural", "n", true], ["made", "Human-made", "h", true]] : model.levels.length ? [["top", "Class above", "p", true]] : []);

// The groups that keys move names into, by key: the groups of the screen, or the groups of the active name.
function keyed() {
  if ($("actions").hidden || !names.current) return new Map();
  if (inQueue()) return screen?.keys ?? new Map();
  const { label, group, next } = names.current;
  const near = [...new Set([label, group, next, ...recent])].filter((one) => one !== null && model.groups.has(one));
  return new Map(near.slice(0, 9).map((one, index) => [String(index + 1), one]));
}

const targets = () => [...keyed().values()];

// True if letters are keys of groups, not of actions: on the screens of names in the queue.
const takesLetters = () => inQueue() && screen !== null && !screen.above;

function drawTargets() {
  const found = keyed();
  $("targets").hidden = !found.size;
  $("targets").replaceChildren(...[...found].map(([key, label]) => node("button",
    { type: "button", className: inQueue() && key > 0 ? `target hue${key}` : "target", onclick: () => put(names.chosen, label), title: label, ariaKeyShortcuts: key },
    [node("kbd", { textContent: key }), node("span", { textContent: label, dir: "auto" })])));
}

async function drawTeamView() {
  drawTeam($("team"), await model.team(), {
    who: model.who,
    adopt: (side) => decide(side.adopt, `Written: as ${side.who} did.`),
    open: (kind, of) => { if (kind === "name") { $("search").value = of; redraw(false); } else show({ kind: "group", label: of }); },
  });
}

function detail(item) {
  (item.level ? details.group(item.name) : details.name(item)).catch(say);
}

function show(next) {
  if (next.kind === "group" && !model.groups.has(next.label)) return say(`There is no group ${next.label} here.`);
  view = next;
  if ($("search").value) {
    $("search").value = "";
    drawGroups();
    groups.go(groups.active, { quiet: true }); // scroll it into view in the complete list
  }
  if (view.kind === "group") details.group(view.label).catch(say);
  else details.nothing(model.history);
  if (view.kind === "queue" && isThrough()) goOn();
  drawMiddle(false);
  markHere();
  if (view.kind === "queue" && names.current) detail(names.current);
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
  if (view.kind === "group" && !model.groups.has(view.label)) view = { kind: "queue" };
  if (isThrough() && (view.kind === "queue" || screen)) { goOn(); keep = keep && view.kind !== "queue"; }
  drawQueue();
  drawGroups();
  drawMiddle(keep);
}

let hiding;
function say(text) {
  clearTimeout(hiding);
  const bad = text instanceof Error;
  $("toast").textContent = bad ? text.message : text;
  $("toast").className = bad ? "on bad" : "on";
  hiding = setTimeout(() => { $("toast").className = ""; }, bad ? 9000 : 3500);
}

// -- deciding -----------------------------------------------------------------------------------------------------

// Send one action. Its names are marked at once and the next name becomes active, so that the next key press is about
// the shown name. Requests are sent one after the other.
function decide(decisions, done = `Written to ${model.file}.`) {
  if (!decisions.length) { say("Nothing is left to decide here."); return null; }
  const sent = model.decide(decisions);
  sent.then(() => { later(); say(done); }, (error) => { later(); if (!error.told) say(error); });
  return sent;
}

let drawn = null, isDown = false, waits = false;

function later() { // several responses are drawn together
  drawn ??= requestAnimationFrame(() => {
    drawn = null;
    waits = isDown;
    if (!waits) { redraw(); refreshDetails(); }
  });
}

// Redraw nothing while a mouse button is down: a click is lost if its target is replaced before the release.
for (const kind of ["pointerdown", "pointerup", "pointercancel"]) {
  document.addEventListener(kind, (event) => {
    isDown = kind === "pointerdown" && event.button === 0;
    if (waits && !isDown) later();
  }, true);
}

function refreshDetails() {
  if ($("details").contains(document.activeElement)) return;
  const group = document.activeElement === groups.element && groups.current?.view.kind === "group" ? groups.current.view.label : null;
  if (group !== null && !names.selected.size) details.group(group).catch(say);
  else if (names.current && !$("names").hidden) detail(names.current);
  else details.nothing(model.history);
}

// After a decision, clear the selection and make the next undecided name active.
function advance(items) {
  const gone = new Set(namesOf(items));
  const isLeft = (item) => !gone.has(item.name) && !isDecided(item) && !model.pending.has(item.name);
  const last = names.items.findLastIndex((item) => gone.has(item.name));
  names.selected.clear();
  if (screen) screen.level = -1;
  const after = names.items.findIndex((item, index) => index > last && isLeft(item));
  const next = inQueue() && screen ? screen.land(true) : after >= 0 ? after : names.items.findLastIndex((item, index) => index < last && isLeft(item));
  if (next >= 0) names.go(next);
  else names.render();
  drawActions();
}

// True if the open screen asks for the classes of groups.
const asksClasses = () => inQueue() && Boolean(screen?.above);
const onlyNames = () => asksClasses() && (say("These are groups: give them a class by a digit or 0, or accept them."), true);

// The chosen names, without the names of waiting actions.
const free = (items) => items.filter((item) => !model.pending.has(item.name));

// Move names into an existing group.
function put(items, label, why) {
  const chosen = free(items);
  if (!chosen.length) return;
  if (asksClasses()) {
    decide(screen.set(chosen, label).map((one) => (why ? { ...one, why } : one)), `${some(namesOf(chosen))}: ${label}`);
    return advance(chosen);
  }
  remember(label);
  const here = chosen.every((item) => item.label === label);
  const said = why ? { why } : {};
  if (inQueue() && screen) for (const { name } of chosen) screen.told.add(name);
  decide(here ? pieces("accept", namesOf(chosen), { group: label, ...said }) : pieces("move", namesOf(chosen), { to: label, ...said }), `${some(namesOf(chosen))} → ${label}`);
  advance(chosen);
}

async function choosing(label, explain) {
  const chosen = names.chosen;
  const answer = explain ? await asked({ action: "move", title: ["To ", own(label)], about: some(namesOf(chosen)), button: "Move" }) : {};
  if (answer) put(chosen, label, answer.why);
}

function remember(label) {
  const at = recent.indexOf(label);
  if (at >= 0) recent.splice(at, 1);
  recent.unshift(label);
  recent.length = Math.min(recent.length, 12);
}

// Also groups that have no names, because the estimates moved all of them elsewhere.
const labels = () => [...new Set([...model.groups.keys(), ...model.predefined, ...model.queue.flatMap((one) => one.targets)])].sort();
const stillOpen = () => names.items.filter((item) => item.who === null && item.label !== null && !model.pending.has(item.name));

function needGroup() {
  const label = openGroup();
  if (label === null) say("Open a group first: press Enter on it in the list of groups, or click it.");
  return label;
}

// Open a dialog; restore the focus when it closes.
async function returning(open) {
  const focus = document.activeElement;
  const answer = await open();
  (focus?.isConnected && focus !== document.body ? focus : names.element).focus();
  return answer;
}

const asked = (question) => returning(() => ask(question));
const tellKeys = () => returning(() => tell("Keys", KEYS));

const withWhy = (decisions, answer) => (answer.why ? decisions.map((one) => ({ ...one, why: answer.why })) : decisions);

const act = {
  async accept(explain) {
    if (!inQueue()) return act.acceptGroup(explain);
    if (isThrough()) return say("Nothing is left to decide here.");
    const one = screen, answer = explain ? await asked({ action: "accept", title: "Accept these names", button: "Accept" }) : {};
    if (answer) finish(one, withWhy(one.accepted(), answer), one.above ? [] : [...new Set(one.right.map((item) => item.label))]);
  },
  async acceptGroup(explain) {
    const group = needGroup();
    if (group === null) return;
    const but = names.selected.size ? names.chosen : [], chosen = stillOpen().filter((item) => !names.selected.has(item.name));
    const answer = explain ? await asked({ action: "accept", title: ["Accept ", own(group)], button: "Accept" }) : {};
    if (!answer) return;
    decide(withWhy([...pieces("accept", namesOf(chosen), { group }), ...pieces("refuse", namesOf(free(but)), { group })], answer));
    advance([...chosen, ...but]);
  },
  async refuse(explain) {
    if (inQueue()) return say("Mark wrong names with Space, or put all off with .");
    const group = needGroup(), chosen = free(names.chosen).filter((item) => item.label === group);
    if (group === null || !chosen.length) return;
    const answer = explain ? await asked({ action: "refuse", title: ["Not in ", own(group)], about: some(namesOf(chosen)), button: "Refuse" }) : {};
    if (!answer) return;
    decide(withWhy(pieces("refuse", namesOf(chosen), { group }), answer));
    advance(chosen);
  },
  async later() {
    if (!inQueue() || !screen) return;
    const { id, names: asked } = screen.asked;
    done.add(id);
    const { above } = screen;
    goOn();
    if (above) { done.delete(id); redraw(false); return; } // groups come back after the rest of the queue
    try { await model.putOff(asked); drawQueue(); } catch (error) { if (!error.told) say(error); }
    done.delete(id); // the server excludes it from the queue until its estimates change
  },
  wider: () => step(1),
  narrower: () => step(-1),
  async move() {
    const chosen = free(names.chosen);
    if (!chosen.length) return;
    const near = chosen.length === 1 ? [chosen[0].next, chosen[0].group] : [];
    const answer = await asked({ action: "move", title: `Move ${count(chosen.length, "name")}`, about: some(namesOf(chosen)), button: "Move",
      fields: [asksClasses() ? { name: "to", label: screen.above, options: model.classes(screen.above), mustExist: !model.isOpen(screen.above) }
        : { name: "to", label: "To the group", options: labels(), first: [...(inQueue() ? screen.nextTargets : []), ...near], digits: targets(), mustExist: true }] });
    if (answer) put(chosen, answer.to, answer.why);
  },
  async confirm(explain) {
    const chosen = free(names.chosen).filter((item) => item.label !== null && !isDecided(item));
    if (!chosen.length) return say(free(names.chosen).length ? "These names are decided already." : "Nothing is left to decide here.");
    const answer = explain ? await asked({ action: "confirm", title: `Confirm ${count(chosen.length, "name")}`, about: some(namesOf(chosen)), button: "Confirm" }) : {};
    if (!answer) return;
    if (inQueue() && screen) for (const { name } of chosen) screen.told.add(name);
    decide(withWhy(asksClasses() ? screen.set(chosen) : byGroup("accept", chosen), answer));
    advance(chosen);
  },
  async fresh() {
    if (onlyNames()) return;
    const chosen = free(names.chosen);
    if (!chosen.length) return;
    const from = new Set(chosen.map((item) => item.label));
    const answer = await asked({ action: "new", title: `New group of ${count(chosen.length, "name")}`, about: `${some(namesOf(chosen))}, of ${count(from.size, "group")}`, button: "Make the group",
      fields: [{ name: "to", label: "Label", options: model.labels(namesOf(chosen).slice(0, LONGEST)), mustBeNew: true, taken: model.groups }] });
    if (!answer) return;
    remember(answer.to);
    decide(withWhy(fresh(namesOf(chosen), answer.to), answer), `New group: ${answer.to}`);
    advance(chosen);
  },
  async drop(explain) {
    if (onlyNames()) return;
    if (document.activeElement === groups.element) return act.dropGroup(explain);
    const chosen = free(names.chosen);
    if (!chosen.length) return;
    const answer = explain ? await asked({ action: "drop", title: `Drop ${count(chosen.length, "name")}`, about: some(namesOf(chosen)), button: "Drop" }) : {};
    if (!answer) return;
    decide(withWhy(pieces("drop", namesOf(chosen), {}), answer), `Dropped: ${some(namesOf(chosen))}. u takes it back.`);
    advance(chosen);
  },
  // Drop the shown names, not the group: the learner may have moved other names of the group elsewhere.
  async dropGroup() {
    const group = needGroup();
    if (group === null) return;
    const chosen = free(names.items);
    const answer = await asked({ action: "drop", title: ["Drop the whole group ", own(group)], about: count(chosen.length, "name"), button: "Drop group" });
    if (answer) decide(withWhy(pieces("drop", namesOf(chosen), {}), answer));
  },
  async rename() {
    if (asksClasses()) return renameClass();
    const from = needGroup();
    if (from === null) return;
    const answer = await asked({ action: "rename", title: "Rename the group", about: from, button: "Rename",
      fields: [{ name: "to", label: "New label", value: from, options: model.labels(namesOf(names.items).slice(0, LONGEST)), mustBeNew: true, taken: model.groups }] });
    if (!answer) return;
    remember(answer.to);
    decide(withWhy([{ action: "rename", group: from, to: answer.to }], answer))?.then(() => { if (openGroup() === from) { view = { kind: "group", label: answer.to }; later(); } }, () => {});
  },
  async merge() {
    const from = needGroup();
    if (from === null) return;
    const answer = await asked({ action: "merge", title: "Merge the group into another", about: `${from}: ${count(model.sizes.get(from).names, "name")}`, button: "Merge",
      fields: [{ name: "to", label: "Into the group", options: labels().filter((label) => label !== from), first: recent.filter((label) => label !== from && model.groups.has(label)), mustExist: true }] });
    if (!answer) return;
    remember(answer.to);
    decide(withWhy([{ action: "merge", groups: [from, answer.to], to: answer.to }], answer))?.then(() => { if (openGroup() === null || openGroup() === from) { view = { kind: "group", label: answer.to }; later(); } }, () => {});
  },
  natural: (explain) => set("natural", explain),
  made: (explain) => set("human-made", explain),
  async top() {
    const group = needGroup();
    if (group === null || !model.levels.length) return;
    const several = model.levels.length > 1;
    const answer = await asked({ action: "set", title: ["Class above ", own(group)], button: "Set",
      fields: model.levels.map(([level]) => ({ name: level, label: level, options: model.classes(level), mustExist: !model.isOpen(level), optional: several })).reverse() });
    if (!answer) return;
    const said = model.levels.filter(([level]) => answer[level]).map(([level]) => ({ action: "set", group, top: answer[level], ...(several ? { level } : {}) }));
    decide(withWhy(said, answer));
  },
  undo() {
    if (!model.decisions && !model.sending) return;
    done.clear();
    model.undo().then((change) => {
      say(`Undone: ${change.undone.length > 1 ? count(change.undone.length, "decision") : `${change.undone[0].action} ${what(change.undone[0])}`}.`);
      if (view.kind === "queue") begin(model.queue[0] ?? null);
      if (change.undone[0].action === "item") names.element.focus(); // the details of the item are outdated
      later();
    }, (error) => { later(); if (!error.told) say(error); });
  },
  item() {
    const first = $("details").querySelector("figure");
    const here = document.activeElement.closest?.("figure");
    if (here?.give) here.give();
    else if (first) { first.focus(); say(`Tab moves through the ${model.item}s, i gives one another name or group.`); }
    else say(`No single ${model.item} is shown.`);
  },
  queue: () => { show({ kind: "queue" }); names.element.focus(); },
  team: () => { if (model.others.length) { show({ kind: "team" }); $("team").focus(); } else say("Nobody to compare with: start hgld review with --compare-with FILE."); },
};

// Decided names leave the queue, and the next screen opens.
function finish(one, decisions, into) {
  if (!decisions.length) return say("Nothing is left to decide here.");
  for (const label of into.slice(0, 3)) remember(label);
  const { id } = one.asked;
  done.add(id);
  decide(decisions, `${decisions.length > 1 ? count(decisions.length, "decision") : what({ ...decisions[0], names_count: decisions[0].names?.length })}. u takes it back.`)
    ?.then(() => done.delete(id), () => { done.delete(id); screen = one; later(); });
  goOn();
}

function step(by) {
  if (!inQueue() || !screen) return;
  choose(screen.step(names.active, by));
}

// Select the undecided names of a range of the screen; null selects nothing.
function choose(range) {
  if (range) names.select(names.items.slice(...range).filter((item) => screen.isLeft(item)));
  else { names.selected.clear(); names.render(); drawActions(); }
}

// Rename the class of the active group for all its groups. The name of another class merges the two.
async function renameClass() {
  const level = screen.above, from = names.current?.label;
  if (!from) return say("This group has no class here; give it one by a digit or 0.");
  const chosen = [...model.groups.keys()].map((label) => model.groupItem(label, level)).filter((item) => item.label === from);
  const answer = await asked({ action: "rename", title: ["Rename ", own(from), ", or merge it into another"], about: some(namesOf(chosen)), button: "Rename",
    fields: [{ name: "to", label: level, value: from, options: model.classes(level), mustExist: !model.isOpen(level) }] });
  if (!answer) return;
  decide(withWhy(screen.set(chosen, answer.to), answer), `${from} → ${answer.to}`);
  advance(chosen);
}

async function set(top, explain) {
  const group = needGroup();
  if (group === null) return;
  if (!tops().includes(top)) return act.top();
  const answer = explain ? await asked({ action: "set", title: [own(group), ` is ${top}`], button: "Set" }) : {};
  if (answer) decide(withWhy([{ action: "set", group, top }], answer), `${group} is ${top}.`);
}

// Give a single item another name or group.
async function give(row, title, given) {
  const answer = await asked({ action: "item", title: ["Give ", own(title), " elsewhere"], about: `It has the name ${row.name ?? row.supercategory ?? ""}; only this ${model.item} changes.`, button: "Give it",
    fields: [
      { name: "group", label: "To the group", options: labels(), first: targets(), mustExist: true, optional: true },
      { name: "name", label: "Or under the name", options: [...model.names.keys()], mustExist: true, optional: true },
    ] });
  if (answer) decide([{ action: "item", split: row.split, id: row.id, ...answer }], `${title} → ${answer.name ?? answer.group}`)?.then(() => given(answer), () => {});
}

// -- keys and buttons ---------------------------------------------------------------------------------------------

const shared = { 0: "move", "+": "fresh", "=": "fresh", Delete: "drop", Backspace: "undo", ".": "later", "]": "wider", "[": "narrower" };
const letters = { a: "accept", x: "refuse", o: "later", m: "move", c: "confirm", w: "fresh", d: "drop", r: "rename", g: "merge", n: "natural", h: "made", p: "top", u: "undo", t: "team", i: "item", q: "queue" };
const NOT_EXPLAINED = new Set(["fresh", "undo", "team", "queue", "later", "item", "wider", "narrower"]);
const ONLY_PROPOSED = new Set(["later", "wider", "narrower"]);
let held = null; // the key that is held down: its repeats decide nothing

document.addEventListener("keyup", () => { held = null; }, true);
document.addEventListener("keydown", (event) => { // a held key makes one decision only, also if it opened a dialog
  if (!event.repeat && /^([1-9]|Enter)$/.test(event.key)) held = event.key; // also in a dialog, which it closes
  const moves = /^(Arrow|Page|Home|End|Tab)/.test(event.key);
  if (event.repeat && (held === event.key || event.target.closest("button")) && !moves) { event.preventDefault(); event.stopPropagation(); }
}, true);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog"), inDetails = event.target.closest("#details") !== null;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.target === $("search") && (key === "Escape" || key === "Enter" || key === "ArrowDown")) {
    if (key === "Escape") { $("search").value = ""; redraw(false); }
    names.element.focus();
    if (names.current) detail(names.current);
  } else if (typing) return;
  else if ((event.ctrlKey || event.metaKey) && key === "z") { held = event.key; if (!event.repeat) act.undo(); }
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (key === "/") { $("search").focus(); $("search").select(); }
  else if (key === "?") tellKeys();
  else if (keyed().has(key) && !(key === "i" && inDetails)) { held = event.key; choosing(keyed().get(key), event.shiftKey); }
  else if (key === "Enter" && inQueue() && !inDetails && !event.target.closest("button")) act.accept(event.shiftKey);
  else if (key in shared || (key in letters && (!takesLetters() || (key === "i" && inDetails)))) {
    held = event.key;
    const name = shared[key] ?? letters[key];
    if (!ONLY_PROPOSED.has(name) || inQueue()) act[name](...(NOT_EXPLAINED.has(name) ? [] : [event.shiftKey]));
  } else if (/^[a-z]$/.test(key) && takesLetters()) say(`No group has the key ${key} here: 0 lists all groups.`);
  else if (key === "ArrowRight") sideways(1);
  else if (key === "ArrowLeft") sideways(-1);
  else return;
  event.preventDefault();
});

function sideways(by) {
  const panes = [queue.element, groups.element, $("team").hidden ? names.element : $("team"), $("details")];
  const at = panes.findIndex((element) => element.contains(document.activeElement));
  panes[Math.max(0, Math.min(at + by, panes.length - 1))].focus();
}

$("search").addEventListener("input", () => { redraw(false); });
$("sort").addEventListener("change", drawGroups);
$("undo").addEventListener("click", () => act.undo());
$("help").addEventListener("click", tellKeys);
$("queue-title").addEventListener("click", () => act.queue());

try {
  await model.load();
  if (!model.queue.length) view = { kind: "open" };
  begin(model.queue[0] ?? null);
  redraw(false);
  names.element.focus();
  if (names.current) detail(names.current);
  if (model.unmatched.length) say(new Error(`${count(model.unmatched.length, "decision")} of ${model.file} do not fit this build. The first: ${model.unmatched[0].reason}.`));
  document.body.dataset.ready = "yes";
} catch (error) {
  document.querySelector("main").replaceChildren(node("p", { className: "problem", textContent: error.message }));
}
