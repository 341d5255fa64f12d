// An open screen of the queue: its marks, its ranges of similar names, and its decisions.
// The names keep their order while the screen is open, even if their estimates change.

const DIGITS = 9; // one digit key per group or class
export const LONGEST = 10000; // maximum number of names per decision

export class Screen {
  constructor(asked, model) {
    Object.assign(this, { model, marks: new Map(), level: -1, again: asked.again, above: asked.level ?? null, told: new Set() });
    this.asked = this.undecided(asked);
  }

  // The names that are neither decided nor in a waiting action.
  undecided(asked) {
    const kept = asked.names.map((name) => this.isLeft(this.item(name)));
    if (!kept.includes(false)) return asked;
    const before = [0]; // number of remaining names before each name
    for (const one of kept) before.push(before.at(-1) + one);
    const names = asked.names.filter((_, index) => kept[index]);
    const blocks = new Map(asked.blocks.map(([start, stop]) => [`${before[start]} ${before[stop]}`, [before[start], before[stop]]]));
    return { ...asked, names, blocks: [...blocks.values()] };
  }

  // A name, or a group if the screen asks for classes at a level above.
  item(name) { return this.above ? this.model.groupItem(name, this.above) : this.model.names.get(name); }
  get items() { return this.asked.names.map((name) => this.item(name)); }

  // True if neither a decision nor a waiting action is about the name. Names that are asked again have a decision.
  isLeft(item) {
    const isOpen = this.again ? !this.told.has(item.name) : item.who === null;
    return isOpen && (this.above !== null || item.label !== null) && !this.model.pending.has(item.name);
  }
  get left() { return this.items.filter((item) => this.isLeft(item)); }

  // Each press of Space sets the next mark: right group (no mark), wrong group ("no"), undecided ("open").
  mark(names) {
    const next = { undefined: "no", no: "open" }[this.marks.get(names[0])];
    for (const name of names) if (next) this.marks.set(name, next); else this.marks.delete(name);
  }

  get right() { return this.left.filter((item) => item.label !== null && !this.marks.has(item.name)); }
  get denied() { return this.left.filter((item) => this.marks.get(item.name) === "no"); }

  set(items, top) { return items.map(({ name, label }) => ({ action: "set", group: name, top: top ?? label, level: this.above })); }
  accepted() { return this.above ? this.set(this.right) : [...byGroup("accept", this.right), ...byGroup("refuse", this.denied)]; }

  // -- similar names: nested ranges around the active row ----------------------------------------------------------------

  chain(index) {
    return this.asked.blocks.filter(([start, stop]) => start <= index && index < stop && stop - start > 1)
      .sort((a, b) => a[1] - a[0] - (b[1] - b[0]));
  }

  // The next larger range; null if there is none.
  wider(index) { return this.chain(index)[this.level + 1] ?? null; }

  step(index, by) {
    const chain = this.chain(index);
    this.level = Math.max(-1, Math.min(this.level + by, chain.length - 1));
    return chain[this.level] ?? null;
  }

  // -- the groups of the digit keys ---------------------------------------------------------------------------------------

  // The first classes of the asked level, or the most probable groups of the names.
  get targets() {
    return (this.above ? this.model.classes(this.above) : this.asked.targets).slice(0, DIGITS);
  }

  // The next most probable groups, which the list of groups begins with.
  get nextTargets() { return this.asked.targets.slice(DIGITS); }
}

export const namesOf = (items) => items.map((item) => item.name);

// Split decisions about many names into decisions of at most LONGEST names.
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
