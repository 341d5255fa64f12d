// The page's copy of the model, and its only way to the server.

const TOKEN = takeToken();

// The token comes behind the address's #; it is kept for this tab alone, so that reloading works.
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
    throw new Error("hgld review is not running any more. Start it again and open the address it prints.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let said = { error: text };
  try { said = JSON.parse(text); } catch { /* plain text is said as it is */ }
  throw Object.assign(new Error(said.error), { stale: said.stale === true });
}

const json = async (path, body) => (await request(path, body)).json();
const query = (path, fields) => `${path}?${new URLSearchParams(fields)}`;

export class Model {
  async load() {
    const state = await json("/api/state");
    Object.assign(this, state);
    this.facts = new Map(state.facts.map(([name, landmarks, confidence, doubtful, group, next]) =>
      [name, { name, landmarks, confidence, doubtful, group, next, lower: name.toLowerCase() }]));
    this.names = new Map(Object.entries(state.names));
    this.groups = new Map(Object.entries(state.groups));
    this.count();
  }

  // The decisions of one action: all are taken, or none.
  async decide(decisions) {
    this.take(await json("/api/decide", { decisions, revision: this.revision }));
  }

  async undo() {
    const change = await json("/api/undo", { revision: this.revision });
    this.take(change);
    return change.undone;
  }

  take(change) {
    for (const part of ["names", "groups"])
      for (const [key, value] of Object.entries(change[part]))
        if (value === null) this[part].delete(key);
        else this[part].set(key, value);
    for (const key of ["revision", "history", "decisions"]) this[key] = change[key];
    this.count();
  }

  count() {
    this.sizes = new Map([...this.groups.keys()].map((label) => [label, { names: 0, landmarks: 0, doubtful: 0 }]));
    this.doubtful = this.dropped = 0;
    for (const [name, [label, doubtful]] of this.names) {
      if (doubtful) this.doubtful++;
      if (label === null) { this.dropped++; continue; }
      const size = this.sizes.get(label);
      size.names++;
      size.landmarks += this.facts.get(name).landmarks;
      if (doubtful) size.doubtful++;
    }
  }

  // Names that a test lets through: doubtful ones first, the least sure first, then by size.
  list(test) {
    const found = [];
    for (const [name, [label, doubtful, who]] of this.names)
      if (test(name, label, doubtful)) found.push({ ...this.facts.get(name), label, open: doubtful, who });
    return found.sort((a, b) => b.open - a.open || (a.open ? a.confidence - b.confidence : b.landmarks - a.landmarks) || (a.name < b.name ? -1 : 1));
  }

  details = (name, start) => json(query("/api/name", { name, start }));
  examples = (group) => json(query("/api/examples", { group }));
  team = () => json("/api/team");

  async thumbnail(split, id, number) {
    const answer = await request(query("/api/thumbnail", { split, id, number }));
    return URL.createObjectURL(await answer.blob());
  }
}
