// Dialogs for the missing fields of a decision. Text from the data is never parsed as HTML.

import { node } from "./node.js";

const dialog = document.getElementById("dialog");
const reasons = new Map(); // the latest reasons by action, newest first
let settle = () => {}; // resolves the open dialog

// Resolve the dialog within the event, so that the page has the focus before the next key. The browser's close event
// comes later, when another dialog may be open, and until then the closed dialog keeps the focus.
function answered(answer) {
  const done = settle;
  settle = () => {};
  dialog.close();
  done(answer);
}

function opened() {
  dialog.showModal();
  return new Promise((resolve) => { settle = resolve; });
}

dialog.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.preventDefault();
  answered(null);
});
dialog.addEventListener("close", () => { if (!dialog.open) answered(null); }); // if the browser closed it, for instance by a phone's back key

// Ask for the fields of a decision. Each of `fields`: {name, label, value, options, first, mustExist, mustBeNew, taken,
// optional}; `options` may be a promise, `first` are options that come before all other options, `digits` options that
// also have a digit key. Resolves to {name: text, why}, or null if the person cancels. A reason is optional.
export function ask({ title, about, fields = [], action, button }) {
  const known = reasons.get(action) ?? [];
  const why = node("input", { id: "why", maxLength: 5000, autocomplete: "off", dir: "auto" });
  why.setAttribute("list", "reasons");
  const problem = node("p", { className: "problem", role: "alert" });
  const inputs = fields.map((field, index) => {
    const id = index ? field.name : "to";
    const input = node("input", { id, value: field.value ?? "", maxLength: 500, autocomplete: "off", spellcheck: false, dir: "auto" });
    const options = node("div", { id: `${id}-options`, role: "listbox", className: "options" });
    return { field, input, options };
  });
  const form = node("form", { method: "dialog" }, [
    node("h2", { id: "dialog-title" }, [].concat(title)),
    ...(about ? [node("p", { className: "about dim", textContent: about, dir: "auto" })] : []),
    ...inputs.flatMap(({ field, input, options }) => [node("label", { textContent: field.label }, [input]), options]),
    node("label", { textContent: "Why (optional)" }, [why]),
    node("datalist", { id: "reasons" }, known.map((value) => node("option", { value }))),
    problem,
    node("div", { className: "buttons" }, [
      node("button", { type: "button", className: "quiet", textContent: "Cancel", id: "cancel" }),
      node("button", { type: "submit", className: "strong", textContent: button }),
    ]),
  ]);
  for (const one of inputs) if (one.field.options) choose(one, () => form.requestSubmit());
  dialog.replaceChildren(form);
  form.querySelector("#cancel").onclick = () => answered(null);
  form.onsubmit = (event) => {
    event.preventDefault();
    const answer = Object.fromEntries(inputs.map(({ field, input }) => [field.name, input.value.trim()]).filter(([, text]) => text));
    const wrong = objection(answer, fields);
    problem.textContent = wrong ?? "";
    if (wrong) return;
    const reason = why.value.trim();
    if (reason) {
      reasons.set(action, [reason, ...known.filter((r) => r !== reason)].slice(0, 12));
      answer.why = reason;
    }
    answered(answer);
  };
  const answer = opened(), first = inputs[0]?.input ?? why;
  first.focus();
  first.select();
  return answer;
}

function objection(answer, fields) {
  if (fields.length && fields.every((field) => field.optional) && !fields.some((field) => answer[field.name])) return `${fields[0].label}: say which.`;
  for (const { name, label, optional, mustExist, mustBeNew, all, taken } of fields) {
    const text = answer[name];
    if (!text && !optional) return `${label}: say which.`;
    if (text && mustExist && !all.includes(text)) return `There is no “${text}” here; choose one of the list${name === "to" ? ", or make a new group (+)" : ""}.`;
    if (text && mustBeNew && taken.has(text)) return "There is such a group already; move the names there, or merge.";
  }
  return null;
}

// True if a word of the text begins with what was typed.
const beginsWord = (text, typed) => [...text.matchAll(/(?<![\p{L}\p{N}])[\p{L}\p{N}]/gu)].some(({ index }) => text.startsWith(typed, index));

// A combobox with the options that match the typed text. Arrow keys choose; Enter accepts the marked option and decides.
function choose({ field, input, options: box }, submit) {
  let fitting = [], at = -1, typing = false, reasonOf = new Map();
  const digits = field.digits ?? [], first = (field.first ?? []).filter((label) => label !== null && !digits.includes(label));
  field.all = Array.isArray(field.options) ? field.options : [];
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-controls", box.id);
  input.setAttribute("aria-expanded", "true");
  const take = (value) => {
    input.value = value;
    typing = false;
    at = -1;
    draw();
  };
  // Digits choose among the first nine options, unless they could be typed for a label.
  const takesDigits = () => field.mustExist && !field.all.some((label) => /\d/.test(label));
  const draw = () => {
    const typed = typing ? input.value.trim().toLowerCase() : ""; // the proposed text does not filter the options
    // The exact label, then labels and words that begin with the text, then the rest; options with a digit key come last.
    const rank = (label) => {
      const text = label.toLowerCase(), place = text === typed ? 0 : text.startsWith(typed) ? 1 : beginsWord(text, typed) ? 2 : 3;
      return place && 2 * place + digits.includes(label);
    };
    fitting = typed ? field.all.filter((label) => label.toLowerCase().includes(typed)).sort((a, b) => rank(a) - rank(b)) : [...new Set([...first, ...field.all.filter((label) => !digits.includes(label)).slice(0, 50), ...digits])];
    fitting = fitting.slice(0, 50);
    at = Math.min(at, fitting.length - 1);
    const isNumbered = takesDigits();
    box.replaceChildren(...fitting.map((label, index) => {
      const option = node("div", { id: `${box.id}-${index}`, role: "option", className: index === at ? "active" : "" }, [
        ...(isNumbered && index < 9 ? [node("kbd", { textContent: index + 1 })] : []),
        node("span", { textContent: label, dir: "auto" }),
        ...(reasonOf.get(label) ? [node("small", { className: "dim", textContent: reasonOf.get(label), dir: "auto" })] : []),
      ]);
      option.setAttribute("aria-selected", index === at);
      option.onmousedown = (event) => { event.preventDefault(); take(label); };
      return option;
    }));
    if (at >= 0) input.setAttribute("aria-activedescendant", `${box.id}-${at}`);
    else input.removeAttribute("aria-activedescendant");
    box.children[at]?.scrollIntoView({ block: "nearest" });
  };
  input.oninput = () => { typing = true; at = input.value.trim() && field.mustExist ? 0 : -1; draw(); };
  input.onkeydown = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = Math.max(0, Math.min(at + (event.key === "ArrowDown" ? 1 : -1), fitting.length - 1));
      draw();
      event.preventDefault();
    } else if (/^[1-9]$/.test(event.key) && !event.repeat && !event.ctrlKey && !event.altKey && !event.metaKey && takesDigits()) {
      event.preventDefault();
      if (fitting[event.key - 1] === undefined) return;
      take(fitting[event.key - 1]);
      submit();
    } else if (event.key === "Enter" && !event.repeat && at >= 0 && fitting[at] !== undefined) {
      take(fitting[at]);
      submit();
      event.preventDefault();
    }
  };
  draw();
  if (!Array.isArray(field.options)) field.options.then((found) => {
    field.all = found.map((one) => one.label);
    reasonOf = new Map(found.map((one) => [one.label, one.why]));
    if (!input.value && !typing && found.length) { input.value = found[0].label; input.select(); }
    draw();
  }, () => {});
}

// Show sections of text; resolves when the person closes the dialog.
export function tell(title, sections) {
  const parts = sections.map(([name, rows]) => node("section", {}, [
    node("h3", { textContent: name }),
    node("dl", { className: "keys" }, rows.flatMap(([keys, does]) => [
      node("dt", {}, keys.split(" ").map((key) => node("kbd", { textContent: key }))),
      node("dd", { textContent: does }),
    ])),
  ]));
  const form = node("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); answered(null); } }, [
    node("h2", { id: "dialog-title", textContent: title }),
    node("div", { className: "sections" }, parts),
    node("div", { className: "buttons" }, [node("button", { className: "strong", textContent: "Close" })]),
  ]);
  dialog.replaceChildren(form);
  const closed = opened();
  dialog.scrollTop = 0;
  return closed;
}
