// The page shows all findings without this script. It adds verdicts, keyboard shortcuts, and the downloads.
const cards = [...document.querySelectorAll("article.card")];
const { digest, exclusions, decisions } = document.getElementById("audit").dataset;
const store = "hgld-audit-" + digest;
let verdicts = {};
try {
  verdicts = JSON.parse(localStorage.getItem(store) || "{}") || {};
} catch {
  verdicts = {}; // the browser stores nothing for local files, so verdicts are lost when the page closes
}
let current = 0;

function accepted(field) {
  return cards.filter((card, i) => verdicts[i] === "accepted").map((card) => card.dataset[field]).filter(Boolean);
}

function show(moved) {
  cards.forEach((card, i) => {
    const verdict = verdicts[i] === "accepted" || verdicts[i] === "rejected" ? verdicts[i] : "";
    card.classList.toggle("accepted", verdict === "accepted");
    card.classList.toggle("rejected", verdict === "rejected");
    card.classList.toggle("current", i === current);
    card.querySelector(".verdict").textContent = verdict;
  });
  const counts = { accepted: 0, rejected: 0 };
  for (let i = 0; i < cards.length; i++) if (verdicts[i] in counts) counts[verdicts[i]]++;
  const open = cards.length - counts.accepted - counts.rejected;
  document.getElementById("state").textContent =
    `${current + 1} of ${cards.length}: ${counts.accepted} accepted, ${counts.rejected} rejected, ${open} open`;
  document.getElementById("save-exclude").disabled = !accepted("exclude").length;
  document.getElementById("save-decisions").disabled = !accepted("decision").length;
  if (moved) {
    cards[current].scrollIntoView({ block: "nearest" });
    cards[current].focus({ preventScroll: true });
  }
}

function decide(verdict) {
  if (verdict) verdicts[current] = verdict;
  else delete verdicts[current];
  try {
    localStorage.setItem(store, JSON.stringify(verdicts));
  } catch {
    // the browser stores nothing for local files
  }
  if (verdict && current + 1 < cards.length) current++;
  show(true);
}

const keys = {
  a: () => decide("accepted"),
  x: () => decide("rejected"),
  u: () => decide(""),
  j: () => { current = Math.min(current + 1, cards.length - 1); show(true); },
  k: () => { current = Math.max(current - 1, 0); show(true); },
};
keys.ArrowDown = keys.j;
keys.ArrowUp = keys.k;

function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

if (cards.length) {
  document.querySelector(".verdicts").hidden = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const button of document.querySelectorAll(".verdicts button[data-key]")) {
    button.addEventListener("click", () => keys[button.dataset.key]());
  }
  cards.forEach((card, i) => card.addEventListener("click", () => { current = i; show(false); }));
  document.getElementById("save-exclude").addEventListener("click", () => {
    save("exclude.csv", exclusions + [...new Set(accepted("exclude"))].join(""));
  });
  document.getElementById("save-decisions").addEventListener("click", () => {
    save("decisions.yaml", decisions + accepted("decision").join(""));
  });
  show(false);
}
