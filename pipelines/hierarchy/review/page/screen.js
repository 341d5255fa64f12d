// A proposal of the queue while a person works on it: what is marked, what lies together, what is decided by one press.
// It keeps its names, in their order, until the person is through with it; the estimates of the names may change.

const MOST_TARGETS = 9; // one a digit
const LONGEST = 10000; // names of one decision

export class Screen {
  constructor(proposal, model, recent) {
    Object.assign(this, { proposal, model, marks: new Map(), level: -1 });
    if (this.isWhole && this.kind !== "rename") this.proposal = this.undecided(proposal);
    this.names = this.proposal.names;
    this.turn();
    this.targets = this.likely(recent);
  }

  get kind() { return this.proposal.kind; }
  get isWhole() { return this.proposal.names.length >= this.proposal.size; }

  // Whether it asks about groups as they are, of which all names may be decided.
  get isOfGroups() { return this.kind === "merge" || this.kind === "rename"; }

  // Whether it proposes a label, and which.
  get isLabelled() { return this.kind === "new" || this.kind === "split" || this.kind === "rename"; }
  get label() { return this.kind === "rename" ? this.proposal.other : this.proposal.group; }
  set label(text) { this.proposal = { ...this.proposal, [this.kind === "rename" ? "other" : "group"]: text }; }

  // The proposal without the names that are decided, or on their way, by now.
  undecided(proposal) {
    const kept = proposal.names.map((name) => this.isLeft(this.model.names.get(name)));
    if (!kept.includes(false)) return proposal;
    const before = [0]; // number of names that are kept before each
    for (const one of kept) before.push(before.at(-1) + one);
    const names = proposal.names.filter((_, index) => kept[index]);
    const blocks = new Map(proposal.blocks.map(([start, stop]) => [`${before[start]} ${before[stop]}`, [before[start], before[stop]]]));
    return { ...proposal, names, size: names.length, blocks: [...blocks.values()] };
  }

  // What is least certain comes first: whoever reads on until all looks right has seen what may be wrong.
  turn() {
    if (this.kind !== "sort" && this.kind !== "rename" && !this.proposal.blocks.length) this.names = [...this.proposal.names].reverse();
  }

  async complete() {
    while (!this.isWhole) {
      const { names } = this.proposal;
      const piece = await this.model.proposal(this.proposal.id, names.length);
      if (!piece.names.length) break;
      this.proposal = { ...this.proposal, names: [...names, ...piece.names] };
      this.names = this.proposal.names;
      this.turn();
    }
  }

  get items() { return this.names.map((name) => this.model.names.get(name)); }

  // Names that nobody decided about, and no press that is on its way.
  isLeft(item) { return item.who === null && item.label !== null && !this.model.pending.has(item.name); }
  get left() { return this.items.filter((item) => this.isLeft(item)); }

  // The group in which a single name is confirmed.
  target(item) { return this.kind === "sort" || this.isLabelled ? item.label : this.proposal.group; }

  // Space: it belongs there, it does not, it is left open.
  mark(names) {
    const next = { undefined: "no", no: "open" }[this.marks.get(names[0])];
    for (const name of names) if (next) this.marks.set(name, next); else this.marks.delete(name);
  }

  get right() { return this.left.filter((item) => !this.marks.has(item.name)); }
  get denied() { return this.left.filter((item) => this.marks.get(item.name) === "no"); }

  accepted() {
    const { kind, proposal, right, label } = this, { group, other } = proposal;
    const said = kind === "sort" ? byGroup("accept", right)
      : kind === "merge" ? [{ action: "merge", groups: [group, other], to: group }]
      : kind === "rename" ? [{ action: "rename", group, to: label }]
      : this.isLabelled ? fresh(namesOf(right), label)
      : pieces("accept", namesOf(right), { group });
    return [...said, ...(kind === "sort" ? byGroup("refuse", this.denied) : pieces("refuse", namesOf(this.denied), { group: kind === "rename" ? label : group }))];
  }

  refused() {
    const { kind, proposal: { group, other } } = this;
    if (kind === "merge") return [{ action: "refuse", group, other }];
    if (kind === "rename") return [{ action: "rename", group, to: group }];
    return kind === "sort" ? [] : pieces("refuse", namesOf(this.left), { group });
  }

  // -- what lies together: nested ranges around the active row ----------------------------------------------------------

  chain(index) {
    return this.proposal.blocks.filter(([start, stop]) => start <= index && index < stop && stop - start > 1)
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
    const { kind, proposal: { group, other } } = this, often = new Map();
    const add = (label, weight) => { if (label && this.model.groups.has(label)) often.set(label, (often.get(label) ?? 0) + weight); };
    for (const item of this.items) { add(item.label, 1); add(item.next, 0.3); add(item.group, 0.2); }
    const found = [...often].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([label]) => label);
    const first = kind === "sort" || kind === "new" ? [] : [group, other].filter(Boolean); // of a split, what it leaves
    return [...new Set([...first, ...found.slice(0, 6), ...recent, ...found])].filter((label) => this.model.groups.has(label)).slice(0, MOST_TARGETS);
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
