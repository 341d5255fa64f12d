// Names of the queue while a person works on them: what is marked, what is alike, what one press decides.
// The names and their order stay until the person is through; the estimates of the names may change.

const MOST_TARGETS = 9; // one a digit
export const LONGEST = 10000; // names of one decision

export class Screen {
  constructor(asked, model, recent) {
    Object.assign(this, { model, marks: new Map(), level: -1 });
    this.asked = this.undecided(asked);
    this.targets = this.likely(recent);
  }

  // What is asked without the names that are decided, or on their way, by now.
  undecided(asked) {
    const kept = asked.names.map((name) => this.isLeft(this.model.names.get(name)));
    if (!kept.includes(false)) return asked;
    const before = [0]; // number of names that are kept before each
    for (const one of kept) before.push(before.at(-1) + one);
    const names = asked.names.filter((_, index) => kept[index]);
    const blocks = new Map(asked.blocks.map(([start, stop]) => [`${before[start]} ${before[stop]}`, [before[start], before[stop]]]));
    return { ...asked, names, blocks: [...blocks.values()] };
  }

  get items() { return this.asked.names.map((name) => this.model.names.get(name)); }

  // Names that nobody decided about, and no press that is on its way.
  isLeft(item) { return item.who === null && item.label !== null && !this.model.pending.has(item.name); }
  get left() { return this.items.filter((item) => this.isLeft(item)); }

  // Space: it belongs there, it does not, it is left open.
  mark(names) {
    const next = { undefined: "no", no: "open" }[this.marks.get(names[0])];
    for (const name of names) if (next) this.marks.set(name, next); else this.marks.delete(name);
  }

  get right() { return this.left.filter((item) => !this.marks.has(item.name)); }
  get denied() { return this.left.filter((item) => this.marks.get(item.name) === "no"); }

  accepted() { return [...byGroup("accept", this.right), ...byGroup("refuse", this.denied)]; }

  // -- what is alike: nested ranges around the active row ---------------------------------------------------------------

  chain(index) {
    return this.asked.blocks.filter(([start, stop]) => start <= index && index < stop && stop - start > 1)
      .sort((a, b) => a[1] - a[0] - (b[1] - b[0]));
  }

  // The range that one more press selects; null if there is none.
  wider(index) { return this.chain(index)[this.level + 1] ?? null; }

  step(index, by) {
    const chain = this.chain(index);
    this.level = Math.max(-1, Math.min(this.level + by, chain.length - 1));
    return chain[this.level] ?? null;
  }

  // -- where names may go by one digit -----------------------------------------------------------------------------------

  likely(recent) {
    const often = new Map();
    const add = (label, weight) => { if (label && this.model.groups.has(label)) often.set(label, (often.get(label) ?? 0) + weight); };
    for (const item of this.items) { add(item.label, 1); add(item.next, 0.3); add(item.group, 0.2); }
    const found = [...often].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([label]) => label);
    return [...new Set([...found.slice(0, 6), ...recent, ...found])].filter((label) => this.model.groups.has(label)).slice(0, MOST_TARGETS);
  }
}

export const namesOf = (items) => items.map((item) => item.name);

// Decisions about any number of names; a decision takes so many.
export function pieces(action, names, said) {
  const found = [];
  for (let start = 0; start < names.length; start += LONGEST) found.push({ action, names: names.slice(start, start + LONGEST), ...said });
  return found;
}

export function fresh(names, label) {
  return [...pieces("new", names.slice(0, LONGEST), { to: label }), ...pieces("accept", names.slice(LONGEST), { group: label })];
}

export function byGroup(action, items) {
  const places = new Map();
  for (const { name, label } of items) places.set(label, [...(places.get(label) ?? []), name]);
  return [...places].flatMap(([group, names]) => pieces(action, names, { group }));
}
