// Questions: what a decision needs besides what is selected. Text from the data is only ever set as text.

import { node } from "./node.js";

const dialog = document.getElementById("dialog");
const reasons = new Map(); // the last reasons by action, newest first

// Ask for the fields of a decision. `target`: {label, value, options, mustExist, mustBeNew} or null.
// Resolves to {to, why}, or null where the person thinks better of it.
export function ask({ title, about, target, action, button }) {
  const known = reasons.get(action) ?? [];
  const why = node("input", { id: "why", value: known[0] ?? "", required: true, maxLength: 5000, autocomplete: "off", placeholder: "for the team, and for you in a year" });
  why.setAttribute("list", "reasons");
  const input = target && node("input", { id: "to", value: target.value ?? "", required: true, maxLength: 500, autocomplete: "off", spellcheck: false, dir: "auto" });
  const options = node("div", { id: "options", role: "listbox", className: "options" });
  const problem = node("p", { className: "problem" });
  problem.setAttribute("role", "alert");
  const form = node("form", { method: "dialog" }, [
    node("h2", { id: "dialog-title", textContent: title }),
    node("p", { className: "about dim", textContent: about, dir: "auto" }),
    ...(input ? [node("label", { textContent: target.label }, [input]), options] : []),
    node("label", { textContent: "Why" }, [why]),
    node("datalist", { id: "reasons" }, known.map((value) => node("option", { value }))),
    problem,
    node("div", { className: "buttons" }, [
      node("button", { type: "button", className: "quiet", textContent: "Cancel", id: "cancel" }),
      node("button", { type: "submit", className: "strong", textContent: button }),
    ]),
  ]);
  if (input && target.options) choose(input, options, target, why);
  dialog.replaceChildren(form);
  return new Promise((resolve) => {
    const done = (answer) => {
      dialog.onclose = null;
      dialog.close();
      resolve(answer);
    };
    dialog.onclose = () => resolve(null);
    form.querySelector("#cancel").onclick = () => done(null);
    form.onsubmit = (event) => {
      event.preventDefault();
      const answer = { to: input?.value.trim(), why: why.value.trim() };
      const wrong = objection(answer, target);
      problem.textContent = wrong ?? "";
      if (wrong) return;
      reasons.set(action, [answer.why, ...known.filter((r) => r !== answer.why)].slice(0, 12));
      done(answer);
    };
    dialog.showModal();
    const first = input && !target.settled ? input : why;
    first.focus();
    first.select();
  });
}

function objection({ to, why }, target) {
  if (target && !to) return `${target.label}: say which.`;
  if (target?.mustExist && !target.options.includes(to)) return "There is no such group; choose one of the list, or split.";
  if (target?.mustBeNew && target.taken.has(to)) return "There is such a group already; move the names there, or merge.";
  return why ? null : "Say why: it is written beside the decision.";
}

// A combobox: the options that fit what is typed; arrows choose, Enter takes.
function choose(input, box, target, next) {
  let fitting = [], at = -1, typing = false;
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-controls", "options");
  input.setAttribute("aria-expanded", "true");
  const take = (value) => {
    input.value = value;
    draw();
    next.focus();
    next.select();
  };
  const draw = () => {
    const typed = typing ? input.value.trim().toLowerCase() : ""; // what was proposed does not narrow the choice
    const rank = (label) => (label.toLowerCase() === typed ? 0 : label.toLowerCase().startsWith(typed) ? 1 : 2);
    fitting = target.options.filter((label) => label.toLowerCase().includes(typed));
    if (typed) fitting.sort((a, b) => rank(a) - rank(b));
    fitting = fitting.slice(0, 50);
    at = Math.min(at, fitting.length - 1);
    box.replaceChildren(...fitting.map((label, index) => {
      const option = node("div", { id: `option-${index}`, textContent: label, dir: "auto", className: index === at ? "active" : "" });
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", index === at);
      option.onmousedown = (event) => { event.preventDefault(); take(label); };
      return option;
    }));
    if (at >= 0) input.setAttribute("aria-activedescendant", `option-${at}`);
    else input.removeAttribute("aria-activedescendant");
    box.children[at]?.scrollIntoView({ block: "nearest" });
  };
  input.oninput = () => { typing = true; at = input.value.trim() && target.mustExist ? 0 : -1; draw(); };
  input.onkeydown = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = Math.max(0, Math.min(at + (event.key === "ArrowDown" ? 1 : -1), fitting.length - 1));
      draw();
      event.preventDefault();
    } else if (event.key === "Enter" && at >= 0 && fitting[at] !== undefined && fitting[at] !== input.value) {
      take(fitting[at]);
      event.preventDefault();
    }
  };
  draw();
}

export function tell(title, rows) {
  dialog.onclose = null;
  const table = node("dl", { className: "keys" }, rows.flatMap(([keys, does]) => [
    node("dt", {}, keys.split(" ").map((key) => node("kbd", { textContent: key }))),
    node("dd", { textContent: does }),
  ]));
  const form = node("form", { method: "dialog" }, [
    node("h2", { id: "dialog-title", textContent: title }),
    table,
    node("div", { className: "buttons" }, [node("button", { className: "strong", textContent: "Close" })]),
  ]);
  dialog.replaceChildren(form);
  dialog.showModal();
}
