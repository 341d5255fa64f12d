// The page's copy of the server's state, and all requests to the server.

const TOKEN = takeToken();
const MOST_TOGETHER = 50; // maximum number of waiting actions per request, so that fast key presses do not queue up

// The address contains the token after #. The tab stores it, so that reloading works.
function takeToken() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token") ?? "";
}

async function request(path, body) {
  const options = { headers: { "X-Hgld-Token": TOKEN } };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("hgld review is not running. Start it again and open the address it prints.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let said = { error: text };
  try { said = JSON.parse(text); } catch { /* plain text is shown as it is */ }
  throw Object.assign(new Error(said.error), { stale: said.stale === true, refused: answer.status === 422 });
}

const json = async (path, body) => (await request(path, body)).json();
const query = (path, fields) => `${path}?${new URLSearchParams(fields)}`;
const SKIP = "/api/skip";
const STATE = ["revision", "history", "decisions", "progress", "queue"];

export class Model {
  waiting = []; // actions that are not sent yet, in order
  pending = new Set(); // class names that these actions change
  sending = null;

  async load() {
    const { names, groups, queue, ...state } = await json("/api/state");
    Object.assign(this, state, { queue: queue.map(known), groups: new Map(Object.entries(groups)) });
    this.names = new Map(names.map((row, rank) => [row[0], named(row, rank)]));
    this.count();
  }

  // -- deciding: one key press is one action; actions are sent in order ----------------------------------------------

  // Send the decisions of one action. Resolves when the server has written them and this copy is updated.
  decide(decisions) {
    return this.enqueue({ decisions, names: decisions.flatMap((one) => one.names ?? (one.action === "set" ? [one.group] : [])) });
  }

  // Skip names in the queue; nothing is written.
  putOff(names) {
    return this.enqueue({ path: SKIP, body: { names }, names: [] });
  }

  undo() {
    return this.enqueue({ path: "/api/undo", body: {}, names: [] });
  }

  enqueue(action) {
    const sent = new Promise((resolve, reject) => Object.assign(action, { resolve, reject }));
    for (const name of action.names) this.pending.add(name);
    this.waiting.push(action);
    this.sending ??= this.send().finally(() => { this.sending = null; });
    return sent;
  }

  async send() {
    while (this.waiting.length) {
      const batch = this.waiting.splice(0, this.together());
      try {
        const change = await this.sendTogether(batch);
        for (const action of batch) { this.settle(action); action.resolve(change); }
      } catch (error) {
        await this.failed(error, batch);
      }
    }
  }

  // Number of waiting actions for the next request.
  together() {
    const other = this.waiting.findIndex((action) => !action.decisions);
    return Math.max(1, Math.min(other < 0 ? this.waiting.length : other, MOST_TOGETHER));
  }

  async sendTogether(batch) {
    const [{ path = "/api/decide", body, decisions }] = batch;
    const said = body ?? (batch.length > 1 ? { actions: batch.map((action) => action.decisions) } : { decisions });
    const change = await json(path, { ...said, revision: this.revision });
    this.take(change);
    return change;
  }

  async failed(error, batch) {
    if (error.refused && batch.length > 1) { // the server wrote none: send them one by one, so that only the wrong one fails
      for (const action of batch) {
        try {
          const change = await this.sendTogether([action]);
          this.settle(action);
          action.resolve(change);
        } catch (one) {
          await this.failed(one, [action]);
        }
      }
      return;
    }
    const lost = error.refused ? batch : [...batch, ...this.waiting.splice(0)];
    for (const action of lost) this.settle(action);
    if (error.stale) await this.load().catch((worse) => { error = worse; });
    const others = lost.length - 1;
    if (others) error.message += ` ${others === 1 ? "One more press was" : `${others} more presses were`} not written.`;
    lost[0].reject(error);
    for (const action of lost.slice(1)) action.reject(Object.assign(new Error(error.message), { told: true }));
  }

  settle(action) {
    for (const name of action.names) this.pending.delete(name);
    for (const left of this.waiting) for (const name of left.names) this.pending.add(name);
  }

  take(change) {
    for (const [name, state] of Object.entries(change.names ?? {})) {
      const item = this.names.get(name);
      [item.label, item.wrong, item.who] = state;
    }
    for (const [label, state] of Object.entries(change.groups ?? {}))
      if (state === null) this.groups.delete(label);
      else this.groups.set(label, state);
    for (const key of STATE) this[key] = change[key];
    this.queue = change.queue.map(known);
    this.count();
  }

  // -- the state ----------------------------------------------------------------------------------------------------

  count() {
    this.sizes = new Map([...this.groups.keys()].map((label) => [label, { names: 0, items: 0, open: 0, wrong: 0 }]));
    this.open = this.dropped = 0;
    for (const item of this.names.values()) {
      if (item.label === null) { this.dropped++; continue; }
      let size = this.sizes.get(item.label);
      if (!size) this.sizes.set(item.label, size = { names: 0, items: 0, open: 0, wrong: 0 });
      size.names++;
      size.items += item.items;
      if (item.who === null) { this.open++; size.open++; size.wrong += item.wrong ?? 0; }
    }
  }

  // Names that pass a test: undecided names first, then by error probability, then by size.
  list(test) {
    const found = [];
    for (const item of this.names.values()) if (test(item)) found.push(item);
    const doubt = (item) => (item.who === null ? 1 + (item.wrong ?? 1 - item.confidence) : 0);
    return found.sort((a, b) => doubt(b) - doubt(a) || b.items - a.items || a.rank - b.rank);
  }

  // A group as a row of a screen that asks for classes. A group that is gone counts as decided.
  groupItem(label, level) {
    const depth = this.levels.findIndex(([name]) => name === level), [, , classes, by] = this.groups.get(label) ?? [null, null, [], []];
    const at = classes[depth] ?? null, who = this.groups.has(label) ? by[depth] ?? null : "";
    return { name: label, label: at, group: at, next: null, who, items: this.sizes.get(label)?.items ?? 0, wrong: null, level };
  }

  // The classes of a level: of the build, and of decisions.
  classes(level) {
    const depth = this.levels.findIndex(([name]) => name === level), now = [...this.groups.values()].map(([, , classes]) => classes[depth]);
    return [...new Set([...this.levels[depth][1], ...now])].filter(Boolean);
  }

  isOpen = (level) => this.levels.find(([name]) => name === level)[2];

  // Number of groups whose class at a level somebody decided.
  decidedAt = (depth) => [...this.groups.values()].filter(([, , , by]) => by[depth] !== null).length;

  labels = async (names) => (await json("/api/labels", { names })).labels;
  details = (name, start) => json(query("/api/name", { name, start }));
  group = (label) => json(query("/api/group", { label }));
  team = () => json("/api/team");

  async thumbnail(split, id, number) {
    const answer = await request(query("/api/thumbnail", { split, id, number }));
    return URL.createObjectURL(await answer.blob());
  }
}

function named([name, items, confidence, group, next, label, wrong, who], rank) {
  return { name, items, confidence, group, next, label, wrong, who, rank, lower: name.toLowerCase() };
}

// A screen of the queue; screens with the same names have the same id.
const known = (screen) => ({ ...screen, id: screen.names.join("\u0000") });
