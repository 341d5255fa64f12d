// An open screen of the queue: its marks, its ranges of similar names, its keys, and its decisions.
// The names keep their order while the screen is open, even if their estimates change.

const DIGITS = [..."123456789"], LETTERS = [..."abcdefghijklmnopqrstuvwxyz"]; // one key per group; classes have only digits
const NEAR = 4, AROUND = 2; // groups that one click moves a name, or a range of similar names, into
const letterOf = new Map(); // the last letter key of each group: a group keeps its letter if it can
export const LONGEST = 10000; // maximum number of names per decision

export class Screen {
  constructor(asked, model) {
    Object.assign(this, { model, marks: new Map(), level: -1, again: asked.again, above: asked.level ?? null, told: new Set(), landed: null, offered: new Set() });
    this.asked = this.undecided(asked);
    this.letters = this.above ? new Map() : letterKeys(asked.targets.slice(DIGITS.length, DIGITS.length + LETTERS.length));
  }

  // The names that are neither decided nor in a waiting action.
  undecided(asked) {
    const kept = asked.names.map((name) => this.isLeft(this.item(name)));
    if (!kept.includes(false)) return asked;
    const before = [0]; // number of remaining names before each name
    for (const one of kept) before.push(before.at(-1) + one);
    const names = asked.names.filter((_, index) => kept[index]);
    const blocks = new Map(asked.blocks.map(([start, stop, groups]) => [`${before[start]} ${before[stop]}`, [before[start], before[stop], groups]]));
    return { ...asked, names, near: asked.near.filter((_, index) => kept[index]), blocks: [...blocks.values()] };
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

  // The index for the cursor: the name that is most likely to be wrong. After a decision (`isNext`) a name that the cursor was put
  // on before comes last, because the person passed it over. -1 if no name is left.
  land(isNext) {
    const left = this.left;
    if (isNext || !left.some((item) => item.name === this.landed)) {
      const rank = (item) => (item.wrong ?? 0) - this.offered.has(item.name);
      this.landed = left.reduce((best, item) => (best === null || rank(item) > rank(best) ? item : best), null)?.name ?? null;
      this.offered.add(this.landed);
    }
    return this.asked.names.indexOf(this.landed);
  }

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

  // Each range has more undecided names than the one before.
  chain(index) {
    const before = [0], found = new Map(); // number of undecided names before each name; smallest range by number of these
    for (const item of this.items) before.push(before.at(-1) + this.isLeft(item));
    for (const [start, stop, groups] of this.asked.blocks) {
      const size = before[stop] - before[start], known = found.get(size);
      if (start <= index && index < stop && size > 1 && (!known || stop - start < known[1] - known[0])) found.set(size, [start, stop, groups]);
    }
    return [...found].sort(([a], [b]) => a - b).map(([, range]) => range);
  }

  // The level of the smallest range that joins a row to the undecided row above it, or -1. Each range belongs to one row, so one
  // click selects any range.
  fork(index) {
    const above = this.items.findLastIndex((item, at) => at < index && this.isLeft(item));
    return above < 0 || !this.isLeft(this.items[index]) ? -1 : this.chain(index).findIndex(([start]) => start <= above);
  }

  step(index, by) {
    const chain = this.chain(index);
    this.level = Math.max(-1, Math.min(this.level + by, chain.length - 1));
    return chain[this.level] ?? null;
  }

  // -- the keys of the groups ---------------------------------------------------------------------------------------------

  // Group by key: the nine most probable groups have digits, the next ones letters. Classes have digits.
  get keys() {
    const first = this.above ? this.model.classes(this.above) : this.asked.targets;
    return new Map([...DIGITS.slice(0, first.length).map((digit, index) => [digit, first[index]]), ...this.letters]);
  }

  // The groups that one click moves a name of the screen into.
  near(index) { return this.others([this.items[index]], this.asked.near[index]).slice(0, NEAR); }

  // The undecided names of the range that a row joins, and the groups that one click moves them into.
  around(index) {
    const [start, stop, groups] = this.chain(index)[this.fork(index)] ?? [0, 0];
    const items = this.items.slice(start, stop).filter((item) => this.isLeft(item));
    return [items, this.others(items, groups).slice(0, AROUND)];
  }

  others(items, groups) { return (groups ?? []).map((one) => this.asked.targets[one]).filter((one) => items.some((item) => item.label !== one)); }

  // The next most probable groups, which the list of groups begins with.
  get nextTargets() { return this.asked.targets.slice(DIGITS.length + LETTERS.length); }
}

// Letter keys of groups, in the order of the labels: the letter of an earlier screen, or the first letter of a word, or any.
function letterKeys(labels) {
  const found = new Map();
  const initials = (label) => label.toLowerCase().split(/[^a-z]+/).map((word) => word[0]);
  for (const wishes of [(label) => [letterOf.get(label)], initials, (label) => label.toLowerCase(), () => LETTERS]) {
    const open = labels.filter((label) => ![...found.values()].includes(label));
    for (const label of open) {
      const letter = [...wishes(label)].find((one) => LETTERS.includes(one) && !found.has(one));
      if (letter) found.set(letter, label);
    }
  }
  for (const [letter, label] of found) letterOf.set(label, letter);
  return new Map([...found].sort(([, a], [, b]) => (a < b ? -1 : 1)));
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
