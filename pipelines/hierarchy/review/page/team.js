// Annotators side by side: agreement and conflicts.

import { count, node } from "./node.js";

export function drawTeam(element, team, { who, adopt, open }) {
  const both = team.agreements.filter((a) => a.count);
  const kappa = both.filter((a) => a.kappa !== null);
  const conflicts = team.conflicts.filter((c) => !c.settled);
  element.replaceChildren(
    node("h3", { textContent: "Agreement" }),
    ...(kappa.length ? [node("div", { className: "cards" }, kappa.map(agreement))] : []),
    ...both.filter((a) => a.kappa === null).map((a) => tooFew(a, team.least_shared)),
    ...(both.length ? [] : [node("p", { className: "dim", textContent: "No two annotators decided about the same names yet." })]),
    node("h3", { textContent: count(conflicts.length, "open disagreement") }),
    ...(conflicts.length ? conflicts.map((c) => conflict(c, who, adopt, open)) : [node("p", { className: "dim", textContent: "The annotators agree on everything that both decided." })]),
    ...settled(team.conflicts.filter((c) => c.settled)),
  );
}

function agreement({ annotators, about, count: number, observed, kappa }) {
  return node("div", { className: "card" }, [
    node("b", { textContent: `κ ${kappa.toFixed(2)}` }),
    node("span", { textContent: annotators.join(" and "), dir: "auto" }),
    node("small", { className: "dim", textContent: `${Math.round(observed * 100)} % of ${number.toLocaleString("en")} ${about} that both decided` }),
  ]);
}

function tooFew({ annotators, about, count: number }, least) {
  const [one, other] = annotators;
  return node("p", { className: "dim few", dir: "auto", textContent: `${one} and ${other} both decided ${number} ${number === 1 ? about.replace(/s$/, "") : about}; agreement is shown from ${least} on.` });
}

function conflict({ kind, of, verdicts }, who, adopt, open) {
  const title = node("button", { type: "button", className: "link", textContent: of, dir: "auto", onclick: () => open(kind, of) });
  return node("article", { className: "conflict" }, [
    node("p", {}, [title, node("small", { className: "dim", textContent: ` ${kind}` })]),
    node("div", { className: "sides" }, verdicts.map((side) => {
      const mine = side.who === who;
      const box = node("div", { className: mine ? "side mine" : "side" }, [
        node("small", { className: "dim", textContent: mine ? `${side.who} (you)` : side.who, dir: "auto" }),
        node("b", { textContent: side.verdict, dir: "auto" }),
        ...(side.why ? [node("small", { textContent: side.why, dir: "auto" })] : []),
      ]);
      if (!mine && side.adopt.length)
        box.append(node("button", { type: "button", textContent: "Adopt", onclick: () => adopt(side) }));
      return box;
    })),
  ]);
}

function settled(conflicts) {
  if (!conflicts.length) return [];
  return [
    node("h3", { textContent: `${conflicts.length.toLocaleString("en")} settled` }),
    ...conflicts.map((c) => node("p", {}, [node("span", { textContent: c.of, dir: "auto" }), node("small", { className: "dim", textContent: ` ${c.settled}`, dir: "auto" })])),
  ];
}
