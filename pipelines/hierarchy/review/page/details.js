// The details on the right: evidence about a name or a group.

import { count, node, percent, some } from "./node.js";

const shown = new Map(); // object URLs by item; the browser keeps the images
const word = (model, number) => count(number, model.item);

export class Details {
  // Calls `give` with the item that the person wants to give another name or group.
  constructor(element, model, give) {
    Object.assign(this, { element, model, give, asked: 0 });
  }

  async name(item) {
    const turn = ++this.asked;
    const { model } = this;
    const about = [
      node("h2", { textContent: item.name, dir: "auto" }),
      facts([
        ["group", item.label ?? "dropped"],
        ["clustered as", item.group === item.label ? null : item.group],
        ["next nearest", item.next],
        [`${model.item}s`, item.items.toLocaleString("en")],
        ["decided by", item.who],
      ]),
      ...(item.who === null ? [doubt(item)] : []),
    ];
    if (this.shown !== item.name) this.element.replaceChildren(...about); // otherwise the old details stay until the response comes
    this.shown = item.name;
    const found = await model.details(item.name, 0);
    if (turn !== this.asked) return;
    const focused = this.figures.indexOf(document.activeElement);
    const below = (row) => (row.supercategory === item.name ? "" : row.supercategory ?? "");
    const grid = node("div", { className: "landmarks" }, found.landmarks.map((row) => this.item(row, below(row))));
    const more = node("button", { type: "button", textContent: `More ${model.item}s` });
    more.onclick = async () => {
      const next = await model.details(item.name, grid.childElementCount);
      grid.append(...next.landmarks.map((row) => this.item(row, below(row))));
      more.hidden = grid.childElementCount >= item.items || !next.landmarks.length;
    };
    more.hidden = found.landmarks.length >= item.items || !found.landmarks.length;
    const spellings = found.spellings.filter((text) => text !== item.name);
    const part = (title, parts) => (parts.length ? [node("h3", { textContent: title }), ...parts] : []);
    this.element.replaceChildren(
      ...about,
      ...part("Does not belong to", found.not_in.length ? [node("p", { textContent: found.not_in.join(" · "), dir: "auto" })] : []),
      ...part("A kind of", found.classes.map(kind)),
      ...part("Also written", spellings.length ? [node("p", { className: "dim", textContent: spellings.slice(0, 20).join(" · "), dir: "auto" })] : []),
      ...part(`${model.item[0].toUpperCase()}${model.item.slice(1)}s`, found.landmarks.length ? [grid, more] : []),
    );
    this.figures[focused]?.focus(); // a late response must not move the focus
  }

  get figures() { return [...this.element.querySelectorAll("figure")]; }

  async group(label) {
    const turn = ++this.asked;
    const { model } = this;
    this.shown = null;
    const [top, who] = model.groups.get(label) ?? [null, null];
    const size = model.sizes.get(label) ?? { names: 0, items: 0, open: 0, wrong: 0 };
    const about = [
      node("h2", { textContent: label, dir: "auto" }),
      facts([
        [model.levels.at(-1)?.[0].replaceAll("_", " ") ?? "", model.levels.length ? top ?? "undecided" : null],
        ["decided by", who],
        ["names", size.names.toLocaleString("en")],
        ["undecided", size.open ? size.open.toLocaleString("en") : null],
        ["likely wrong", size.wrong >= 0.5 ? `about ${Math.round(size.wrong).toLocaleString("en")}` : null],
        [`${model.item}s`, size.items.toLocaleString("en")],
      ]),
    ];
    this.element.replaceChildren(...about);
    const found = await model.group(label);
    if (turn !== this.asked) return;
    const grid = node("div", { className: "landmarks" }, found.examples.map((row) => this.item(row, row.name)));
    this.element.append(
      ...evidenceOf(!model.levels.length ? "" : top ? `Why ${top}` : "Why undecided", found.method, found.evidence),
      ...evidenceOf("Why this label", null, found.label_evidence),
      node("h3", { textContent: "Examples" }), grid,
    );
  }

  nothing(history) {
    this.asked++;
    this.shown = null;
    this.element.replaceChildren(node("h2", { textContent: "Your decisions" }),
      ...(history.length ? history.map(said) : [node("p", { className: "dim", textContent: "None yet. Press ? for all keys." })]));
  }

  item(row, below) {
    const title = (row.title ?? "").replace(/^Category:/, "") || (this.model.item === "item" ? row.id : `${row.split}/${row.id}`);
    const figure = node("figure", { tabIndex: 0, dataset: { item: "yes" } });
    figure.give = () => this.give(row, title, (given) => {
      const now = this.item({ ...row, given }, below);
      figure.replaceWith(now);
      now.focus();
    });
    if (row.images) figure.append(this.picture(row, title));
    const caption = node("figcaption", {});
    if (/^https?:\/\//.test(row.link ?? "")) {
      const link = node("a", { textContent: title, target: "_blank", rel: "noopener noreferrer", dir: "auto" });
      link.href = row.link;
      caption.append(link);
    } else caption.append(node("span", { textContent: title, dir: "auto" }));
    if (row.description) caption.append(node("small", { textContent: row.description, dir: "auto" }));
    if (below) caption.append(node("small", { className: "dim", textContent: below, dir: "auto" }));
    if (row.given) caption.append(node("small", { className: "given", textContent: `→ ${[row.given.name, row.given.group].filter(Boolean).join(", in ")}`, dir: "auto" }));
    const button = node("button", { type: "button", className: "give", textContent: "Give elsewhere", tabIndex: -1 });
    button.onclick = () => figure.give();
    figure.append(caption, button);
    return figure;
  }

  picture(row, title) {
    const key = `${row.split}/${row.landmark_id}`;
    const image = node("img", { alt: title, width: 120, height: 90 });
    const frame = node("span", { className: "frame" }, [image]);
    new IntersectionObserver(async ([entry], observer) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      try {
        if (!shown.has(key)) shown.set(key, await this.model.thumbnail(row.split, row.landmark_id, 0));
        image.src = shown.get(key);
      } catch (error) {
        frame.replaceChildren(node("small", { className: "dim", textContent: error.message }));
      }
    }).observe(frame);
    return frame;
  }
}

function facts(rows) {
  return node("dl", { className: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined)
    .flatMap(([key, value]) => [node("dt", { textContent: key }), node("dd", { textContent: value, dir: "auto" })]));
}

// The error probability of a name; without estimates, its similarity to its group.
function doubt(item) {
  const known = item.wrong !== null;
  const meter = node("meter", { min: 0, max: 1, value: known ? item.wrong : item.confidence });
  if (known) Object.assign(meter, { low: 0.3, high: 0.6, optimum: 0 });
  meter.setAttribute("aria-label", known ? "probability that it is wrong" : "confidence");
  const text = known ? `${percent(item.wrong)} likely to be wrong` : `confidence ${item.confidence.toFixed(2)}`;
  return node("p", { className: "confidence" }, [meter, " ", node("span", { className: known && item.wrong >= 0.5 ? "warn" : "dim", textContent: text })]);
}

function evidenceOf(title, method, evidence) {
  if (!title || !evidence) return [];
  return [node("h3", { textContent: title }), node("p", { textContent: method && method !== "p279" ? `${method}: ${evidence}` : evidence, dir: "auto" })];
}

function kind([id, label, link]) {
  const shown = link ? node("a", { textContent: label, title: id, href: link, target: "_blank", rel: "noopener noreferrer" }) : node("span", { textContent: label, title: id });
  return node("p", { className: "path", dir: "auto" }, [shown]);
}

// The subject and outcome of a decision in one line.
export function what(entry) {
  const names = () => (entry.names_count > 3 ? `${entry.names.slice(0, 2).join(", ")} and ${(entry.names_count - 2).toLocaleString("en")} more` : some(entry.names));
  return {
    rename: () => (entry.group === entry.to ? `${entry.group} keeps its label` : `${entry.group} → ${entry.to}`),
    move: () => `${names()} → ${entry.to}`,
    merge: () => `${some(entry.groups)} → ${entry.to}`,
    split: () => `${names()} from ${entry.group} → ${entry.to}`,
    drop: () => entry.group ?? names(),
    set: () => `${entry.group}: ${entry.top}`,
    accept: () => (entry.names ? `${names()} in ${entry.group}` : `all of ${entry.group}`),
    new: () => `${names()} → ${entry.to}`,
    refuse: () => (`${names()} not in ${entry.group}`),
    item: () => `${[entry.split, entry.id].filter(Boolean).join("/")} → ${[entry.name, entry.group].filter(Boolean).join(", in ")}`,
  }[entry.action]();
}

export function said(entry) {
  const reason = [entry.why, `${entry.who}, ${entry.when.slice(0, 16).replace("T", " ")}`].filter(Boolean).join(" · ");
  return node("div", { className: "said" }, [
    node("b", { textContent: entry.action }), " ", node("span", { textContent: what(entry), dir: "auto" }),
    node("small", { className: "dim", textContent: reason, dir: "auto" }),
  ]);
}
