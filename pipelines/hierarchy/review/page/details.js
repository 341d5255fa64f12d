// The right-hand side: what is known of a name or a group, so that one can decide about it.

import { count, node } from "./node.js";

const shown = new Map(); // object URLs by landmark; the browser keeps the pictures

export class Details {
  constructor(element, model) {
    Object.assign(this, { element, model, asked: 0 });
  }

  async name(item) {
    const turn = ++this.asked;
    const about = [
      back("middle"),
      node("h2", { textContent: item.name, dir: "auto" }),
      facts([
        ["group", item.label ?? "dropped"],
        ["clustered as", item.group === item.label ? null : item.group],
        ["next nearest", item.next],
        ["landmarks", item.landmarks.toLocaleString("en")],
        ["decided by", item.who],
      ]),
      confidence(item),
    ];
    this.element.replaceChildren(...about);
    const found = await this.model.details(item.name, 0);
    if (turn !== this.asked) return;
    const grid = node("div", { className: "landmarks" }, found.landmarks.map((row) => this.landmark(row, row.supercategory === item.name ? "" : row.supercategory)));
    const more = node("button", { type: "button", textContent: "More landmarks" });
    more.onclick = async () => {
      const next = await this.model.details(item.name, grid.childElementCount);
      grid.append(...next.landmarks.map((row) => this.landmark(row, row.supercategory === item.name ? "" : row.supercategory)));
      more.hidden = grid.childElementCount >= item.landmarks || !next.landmarks.length;
    };
    more.hidden = found.landmarks.length >= item.landmarks || !found.landmarks.length;
    const spellings = found.spellings.filter((text) => text !== item.name);
    this.element.replaceChildren(
      ...about,
      ...(found.classes.length ? [node("h3", { textContent: "Wikidata, subclass of (P279)" }), ...found.classes.map(path)] : []),
      ...(spellings.length ? [node("h3", { textContent: "Scraped as" }), node("p", { className: "dim", textContent: spellings.slice(0, 20).join(" · "), dir: "auto" })] : []),
      node("h3", { textContent: "Landmarks" }), grid, more,
    );
  }

  async group(label) {
    const turn = ++this.asked;
    const [top, method, evidence, who, labelled] = this.model.groups.get(label);
    const size = this.model.sizes.get(label);
    const about = [
      back("middle"),
      node("h2", { textContent: label, dir: "auto" }),
      facts([
        ["kind", top ?? "undecided"],
        ["decided by", who],
        ["names", size.names.toLocaleString("en")],
        ["landmarks", size.landmarks.toLocaleString("en")],
        ["doubtful", size.doubtful ? size.doubtful.toLocaleString("en") : null],
      ]),
      ...evidenceOf(top ? `Why ${top}` : "Why undecided", method, evidence),
      ...evidenceOf("Why this label", null, labelled),
    ];
    this.element.replaceChildren(...about);
    const rows = await this.model.examples(label);
    if (turn !== this.asked) return;
    const grid = node("div", { className: "landmarks" }, rows.map((row) => this.landmark(row, row.name)));
    this.element.append(node("h3", { textContent: "Examples" }), grid);
  }

  nothing(history) {
    this.asked++;
    this.element.replaceChildren(back("middle"), node("h2", { textContent: "Your decisions" }),
      ...(history.length ? history.map(said) : [node("p", { className: "dim", textContent: "None yet. Choose a name and press m to move it, c to confirm it where it is, ? for all keys." })]));
  }

  landmark(row, below) {
    const title = (row.title ?? "").replace(/^Category:/, "") || `${row.split}/${row.landmark_id}`;
    const figure = node("figure", {}, []);
    if (row.images) figure.append(this.picture(row, title));
    const caption = node("figcaption", {});
    if (row.title) {
      const link = node("a", { textContent: title, target: "_blank", rel: "noopener noreferrer", dir: "auto" });
      link.href = `https://commons.wikimedia.org/wiki/${encodeURIComponent(row.title.replaceAll(" ", "_"))}`;
      caption.append(link);
    } else caption.append(title);
    caption.append(node("small", { className: "dim", textContent: below, dir: "auto" }));
    figure.append(caption);
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

function back(pane) {
  const button = node("button", { type: "button", className: "back", textContent: "‹ Names" });
  button.dataset.to = pane;
  return button;
}

function facts(rows) {
  return node("dl", { className: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined)
    .flatMap(([key, value]) => [node("dt", { textContent: key }), node("dd", { textContent: value, dir: "auto" })]));
}

function confidence(item) {
  const meter = node("meter", { min: 0, max: 1, value: item.confidence, low: 0.1, title: "how much nearer the name is to its own group than to the next" });
  meter.setAttribute("aria-label", "confidence");
  return node("p", { className: "confidence" }, [meter, ` ${item.confidence.toFixed(2)} `, node("span", { className: item.open ? "warn" : "dim", textContent: item.open ? "doubtful" : "confidence" })]);
}

function evidenceOf(title, method, evidence) {
  if (!evidence) return [];
  return [node("h3", { textContent: title }), node("p", { textContent: method && method !== "p279" ? `${method}: ${evidence}` : evidence, dir: "auto" })];
}

function path(steps) {
  return node("p", { className: "path", dir: "auto" }, steps.flatMap(([id, label], index) => [
    ...(index ? [" → "] : []),
    node("span", { textContent: label, title: id }),
  ]));
}

// A decision's subject and outcome, in a line.
export function what(entry) {
  return {
    rename: () => `${entry.group} → ${entry.to}`,
    move: () => `${some(entry.names)} → ${entry.to}`,
    merge: () => `${some(entry.groups)} → ${entry.to}`,
    split: () => `${some(entry.names)} from ${entry.group} → ${entry.to}`,
    drop: () => entry.group ?? some(entry.names),
    set: () => `${entry.group}: ${entry.top}`,
  }[entry.action]();
}

function said(entry) {
  return node("div", { className: "said" }, [
    node("b", { textContent: entry.action }), " ", node("span", { textContent: what(entry), dir: "auto" }),
    node("small", { className: "dim", textContent: `${entry.why} · ${entry.who}, ${entry.when.slice(0, 16).replace("T", " ")}`, dir: "auto" }),
  ]);
}

const some = (names) => (names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${count(names.length - 2, "more", "more")}` : names.join(", "));
