"""Settlement of several annotators' decisions: agreed claims, conflicts, and measures of agreement.

First, each annotator's decisions are applied alone to the groups of the clustering, in the order of ``when``. A later
decision of the same person replaces an earlier decision. Then the claims about each name, group and top are compared:

- If only one annotator makes a claim, or all annotators make the same claim, the claim is applied.
- If annotators make different claims, or one annotator denies another annotator's claim (a name is not in a group),
  there is a conflict. The conflict is listed, and none of its claims is applied: the name stays in its group of the
  clustering. The last decision does not win, because that would hide the disagreement.
- Decisions in files with ``role: adjudicator`` are applied last, in order. A conflict is settled if one of these
  decisions is about its subject.
- A language model's decisions are never applied. They are votes, from which the learner estimates groups.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from sklearn.metrics import cohen_kappa_score

from hgld.errors import InputError, quoted

from .decisions import MODEL, Entry
from .grouping import Claim, Classes, Grouping, Subject, Unmatched
from .journal import Journal

DecisionFields = dict[str, Any]  # the fields of a decision without who and when
LEAST_SHARED = 10  # kappa is hidden if both annotators decided fewer subjects


@dataclass(frozen=True)
class Verdict:
    """One annotator's side of a conflict.

    Attributes:
        who: the annotator.
        verdict: the decision in words.
        entries: the decisions behind it.
        subject, claim: what the decisions are about, and what they say; None if the conflict is about a label.
    """

    who: str
    verdict: str
    entries: tuple[Entry, ...]
    subject: Subject | None = None
    claim: Claim | None = None


@dataclass(frozen=True)
class Conflict:
    """Annotators who decided differently on one matter.

    Attributes:
        kind: subject of the disagreement. ``name``: the group of a name. ``group``: whether a group is renamed, merged
            or dropped. ``top``: the top class of a group. ``item``: the group of one item. ``label``: several groups
            would get the same label.
        of: the name, the group's label in the clustering, the item, or the label.
        verdicts: one verdict per annotator.
        subjects: a decision about one of these subjects settles the conflict.
        settled: who settled the conflict, or why it needs no decision; None if the conflict is open.
    """

    kind: str
    of: str
    verdicts: tuple[Verdict, ...]
    subjects: frozenset[Subject]
    settled: str | None = None

    def to_dict(self, more: Callable[[Verdict], dict[str, Any]]) -> dict[str, Any]:
        """Return the conflict for report and page; each side has the further fields that ``more`` returns."""
        sides = [{"who": side.who, "verdict": side.verdict, **more(side)} for side in self.verdicts]
        return {"kind": self.kind, "of": self.of, "settled": self.settled, "verdicts": sides}


@dataclass(frozen=True)
class Agreement:
    """The agreement of two annotators on the subjects that both decided.

    Attributes:
        annotators: names of the two annotators.
        about: ``names`` (the groups of names; dropped counts as a group) or ``tops`` (the top classes of groups).
        count: number of subjects that both annotators decided.
        observed: share of these subjects about which the two annotators agree; None without subjects.
        kappa: Cohen's kappa; None without subjects.
    """

    annotators: tuple[str, str]
    about: str
    count: int
    observed: float | None
    kappa: float | None

    @property
    def is_told(self) -> bool:
        """True if both annotators decided enough subjects for a meaningful kappa."""
        return self.count >= LEAST_SHARED


@dataclass(frozen=True)
class Settlement:
    """The clustering's groups after everyone's decisions.

    Attributes:
        grouping: the names, label and classes of every group, and the decisions behind them.
        applied: decisions that are in effect, at least in part.
        withheld: decisions without effect because of an open conflict.
        overruled: decisions that later decisions replaced, or that are about a group without names.
        unmatched: decisions, or parts of them, that do not fit the build.
        conflicts: the conflicts, sorted by kind and name.
        agreements: one agreement per pair of annotators and type of subject, language models included.
        models: per language model, the clustering's groups after its decisions alone.
    """

    grouping: Grouping
    applied: tuple[Entry, ...]
    withheld: tuple[Entry, ...]
    overruled: tuple[Entry, ...]
    unmatched: tuple[Unmatched, ...]
    conflicts: tuple[Conflict, ...]
    agreements: tuple[Agreement, ...]
    models: tuple[Grouping, ...]


def settle(
    place: Mapping[str, int],
    labels: Mapping[int, str],
    entries: Sequence[Entry],
    classes: Classes,
) -> Settlement:
    """Apply the decisions of annotators and adjudicators to the clustering's groups.

    Args:
        place: group number of every name.
        labels: label of every group; labels are unique.
        entries: decisions in order, as :func:`hgld.pipelines.hierarchy.review.decisions.read_decisions` gives them.
        classes: the classes of every level above the groups.
    """
    own = [entry for entry in entries if entry.role == "annotator"]
    drafts = {
        who: Grouping.of(place, labels, classes).apply_all(entry for entry in own if entry.decision.who == who)
        for who in sorted({entry.decision.who for entry in own})
    }
    people = {who: draft for who, draft in drafts.items() if not who.startswith(MODEL)}
    agreed, conflicts = _compare(people)
    final = Grouping.of(place, labels, classes).take(agreed)
    while (clash := _label_conflict(final)) is not None:
        conflicts.append(clash)
        agreed = {subject: claim for subject, claim in agreed.items() if subject not in clash.subjects}
        final = Grouping.of(place, labels, classes).take(agreed)
    final.apply_all(entry for entry in entries if entry.role == "adjudicator")
    conflicts = [_mark_settled(conflict, final) for conflict in conflicts]
    in_effect = {entry for claim in final.effective_claims().values() for entry in claim.entries}
    contested = {e for c in conflicts if c.settled is None for verdict in c.verdicts for e in verdict.entries}
    order = {entry: i for i, entry in enumerate(entries)}
    unmatched = [miss for draft in (*drafts.values(), final) for miss in draft.unmatched]
    rest = [e for e in entries if e not in in_effect and not e.decision.who.startswith(MODEL)]
    told = contested | {miss.entry for miss in unmatched}
    return Settlement(
        grouping=final,
        applied=tuple(entry for entry in entries if entry in in_effect),
        withheld=tuple(entry for entry in rest if entry in contested),
        overruled=tuple(entry for entry in rest if entry not in told),
        unmatched=tuple(sorted(unmatched, key=lambda miss: order[miss.entry])),
        conflicts=tuple(sorted(conflicts, key=lambda c: (c.kind, c.of))),
        agreements=_agreements(drafts),
        models=tuple(draft for who, draft in drafts.items() if who not in people),
    )


def _compare(drafts: Mapping[str, Grouping]) -> tuple[dict[Subject, Claim], list[Conflict]]:
    """Return the claims that no annotator contradicts, and the conflicts about all other claims."""
    claims: dict[Subject, dict[str, Claim]] = defaultdict(dict)
    for who, draft in drafts.items():
        for subject, claim in draft.claims.items():
            claims[subject][who] = claim
    contested = {s.of for s, sides in claims.items() if s.kind == "group" and _differ(sides)}
    agreed, conflicts = {}, []
    for subject in sorted(claims, key=lambda s: (s.kind, str(s.of), str(s.also))):
        # the conflict about a group covers its names
        sides = {who: claim for who, claim in claims[subject].items() if claim.via not in contested}
        if _differ(sides):
            conflicts.append(_conflict(subject, sides, drafts))
        elif sides:
            agreed[subject] = _joined(list(sides.values()))
    return agreed, [*conflicts, *_denials(agreed, drafts)]


def _denials(agreed: dict[Subject, Claim], drafts: Mapping[str, Grouping]) -> list[Conflict]:
    """Remove each pair of agreed claims in which one denies the other; return the conflicts about them."""
    conflicts = []
    for denial in [subject for subject in agreed if subject.kind == "not in"]:
        name = Subject("name", denial.of)
        said = agreed.get(name)
        if said is not None and said.via is None and said.value == denial.also:
            del agreed[name], agreed[denial]
            both = [(who, draft, one) for who, draft in drafts.items() for one in (name, denial)]
            verdicts = tuple(_verdict(who, one, draft) for who, draft, one in both if one in draft.claims)
            conflicts.append(Conflict("name", str(denial.of), verdicts, frozenset({name, denial})))
    return conflicts


def _differ(sides: Mapping[str, Claim]) -> bool:
    return len({claim.value for claim in sides.values()}) > 1


def _joined(claims: Sequence[Claim]) -> Claim:
    vias = {claim.via for claim in claims}
    return Claim(
        claims[0].value,
        tuple(entry for claim in claims for entry in claim.entries),
        via=vias.pop() if len(vias) == 1 else None,
        renames=any(claim.renames for claim in claims),
        by_name=any(claim.by_name for claim in claims),
    )


def _conflict(subject: Subject, sides: Mapping[str, Claim], drafts: Mapping[str, Grouping]) -> Conflict:
    machine = next(iter(drafts.values())).machine
    of = machine[subject.of] if isinstance(subject.of, int) else subject.of
    of = f"{of}/{subject.also}" if subject.kind == "item" else of
    verdicts = tuple(_verdict(who, subject, drafts[who]) for who in sides)
    return Conflict(subject.kind, of, verdicts, frozenset({subject}))


def _verdict(who: str, subject: Subject, draft: Grouping) -> Verdict:
    claim = draft.claims[subject]
    value = claim.value
    match subject.kind:
        case "not in":
            said = f"not {draft.label_of(subject.also)}"
        case "item":
            group = "" if value.group is None else draft.label_of(value.group)
            said = " in ".join(part for part in (value.name, group) if part)
        case "name":
            said = draft.label_of(value)
        case "top":
            said = value
        case "group" if value is None:
            said = "drop"
        case "group":
            said = f"rename to {value}" if claim.renames else f"merge into {draft.label_of(value)}"
    return Verdict(who, said, claim.entries, subject, claim)


def _label_conflict(grouping: Grouping) -> Conflict | None:
    """Return the conflict about a label that agreed decisions give to several groups; None if there is no conflict."""
    labels = Counter(grouping.labels[group] for group in grouping.live())
    label = min((label for label, count in labels.items() if count > 1), default=None)
    if label is None:
        return None
    sides: dict[str, list[Entry]] = defaultdict(list)
    subjects = set()
    for subject, claim in grouping.claims.items():
        if claim.value == label and (subject.kind == "name" or claim.renames):
            subjects.add(subject)
            for entry in claim.entries:
                sides[entry.decision.who] += [entry] if entry not in sides[entry.decision.who] else []
    verdicts = tuple(
        Verdict(who, "; ".join(f"{entry.decision.action} to {label}" for entry in sides[who]), tuple(sides[who]))
        for who in sorted(sides)
    )
    return Conflict("label", label, verdicts, frozenset(subjects))


def _mark_settled(conflict: Conflict, final: Grouping) -> Conflict:
    entries = [e for s in conflict.subjects if s in final.claims for e in final.claims[s].entries]
    judges = sorted({entry.decision.who for entry in entries if entry.role == "adjudicator"})
    if judges:
        return replace(conflict, settled=f"decided by {', '.join(judges)}")
    groups = [s.of for s in conflict.subjects if s.kind in ("group", "top")]
    if groups and not any(final.members.get(group) for group in groups):
        return replace(conflict, settled="the group has no names left")
    return conflict


# -- measures of agreement ----------------------------------------------------------------------------------------


def _agreements(drafts: Mapping[str, Grouping]) -> tuple[Agreement, ...]:
    found = []
    for one, other in combinations(drafts, 2):
        for kind, about in (("name", "names"), ("top", "tops")):
            a, b = drafts[one].claims, drafts[other].claims
            both = sorted((s for s in a if s.kind == kind and s.also is None and s in b), key=lambda s: str(s.of))
            found.append(agreement((one, other), about, [a[s].value for s in both], [b[s].value for s in both]))
    return tuple(found)


def agreement(annotators: tuple[str, str], about: str, one: Sequence[Hashable], other: Sequence[Hashable]) -> Agreement:
    """Return the observed agreement and Cohen's kappa of two annotators' verdicts on the same items."""
    if not one:
        return Agreement(annotators, about, 0, None, None)
    observed = sum(x == y for x, y in zip(one, other, strict=True)) / len(one)
    return Agreement(annotators, about, len(one), observed, cohens_kappa(one, other))


def cohens_kappa(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Return Cohen's kappa of two annotators' verdicts on the same items, at least one.

    kappa = (p_o - p_e) / (1 - p_e). p_o is the observed share of equal verdicts; p_e is the share expected by chance
    from the frequency of each person's verdicts. If both annotators gave the same single verdict to every item, p_e = 1
    and kappa is 0/0; this function then returns 1, because the annotators agree on every item.

    Source: J. Cohen, A coefficient of agreement for nominal scales, Educational and Psychological Measurement 20,
    1960.
    """
    codes = {value: code for code, value in enumerate(dict.fromkeys([*one, *other]))}
    return 1.0 if len(codes) == 1 else float(cohen_kappa_score([codes[v] for v in one], [codes[v] for v in other]))


# -- annotators side by side, for the page -------------------------------------------------------------------------


def check_annotators(journal: Journal, others: Sequence[Entry]) -> None:
    """Raise an error if the decisions of one annotator are in two files: two people would count as one.

    Args:
        journal: the file of the person at the page.
        others: the decisions in the other files.

    Raises:
        InputError: decisions under one name are in two files.
    """
    files: dict[str, Path] = {journal.who: journal.path} if journal.role == "annotator" else {}
    for entry in others:
        if entry.file.resolve() == journal.path.resolve():
            raise InputError(
                f"{entry.file}: this is your own file, but --compare-with lists it too. Give it only as --decisions."
            )
        who = entry.decision.who
        if entry.role == "annotator" and files.setdefault(who, entry.file) != entry.file:
            raise InputError(
                f"{entry.file}: its decisions are by {quoted(who)}, who decides in {files[who]} too; the two would "
                "count as one annotator. Give each person a different --annotator NAME, and each NAME one file."
            )


def side_by_side(settlement: Settlement, grouping: Grouping) -> dict[str, Any]:
    """Return kappa per pair of annotators, and the conflicts; each side has the decisions that would adopt it.

    Args:
        settlement: the settlement of everyone's decisions.
        grouping: groups after the decisions of the person at the page; the adopting decisions fit these groups.
    """

    def more(side: Verdict) -> dict[str, Any]:
        adopt = adopting(side.subject, side.claim, grouping) if side.subject and side.claim else []
        return {"why": Claim(None, side.entries).reasons or "", "adopt": adopt}

    agreements = [{**asdict(one), "kappa": one.kappa if one.is_told else None} for one in settlement.agreements]
    conflicts = [conflict.to_dict(more) for conflict in settlement.conflicts]
    return {"agreements": agreements, "least_shared": LEAST_SHARED, "conflicts": conflicts}


def adopting(subject: Subject, claim: Claim, grouping: Grouping) -> list[DecisionFields]:
    """Return the decisions that adopt another annotator's claim; empty if no decision can adopt it.

    If one annotator renamed a group, it has a different label among the other annotator's groups. If one annotator made
    a group, the other annotator may lack it. So claims refer to the numbers of the clustering's groups.

    Args:
        subject: the subject of the claim.
        claim: the other annotator's claim.
        grouping: the groups of the person who adopts the claim.
    """
    value, of, label = claim.value, subject.of, grouping.label_of(subject.of)
    to = grouping.label_of(value) if subject.kind in ("name", "group") else ""
    can_take = grouping.target(to) == value  # True if the label means the same group to both annotators
    match subject.kind:
        case "not in":
            return [{"action": "refuse", "names": [of], "group": grouping.label_of(subject.also)}]
        case "item":
            said: DecisionFields = {"action": "item", "split": of, "id": subject.also}
            said |= {"name": value.name} if value.name is not None else {}
            said |= {"group": grouping.label_of(value.group)} if value.group is not None else {}
            return [said] if value.group is None or grouping.find(said["group"]) == value.group else []
        case "name" if value is None:
            return [{"action": "drop", "names": [of]}]
        case "name":
            action = "move" if value in grouping.labels else "new"
            return [{"action": action, "names": [of], "to": to}] if can_take else []
    if grouping.find(label) != of:
        return []  # in this person's groups, the group is empty, or another group has its label
    if subject.kind == "top":
        return [{"action": "set", "group": label, "top": value, **({"level": subject.also} if subject.also else {})}]
    if value is None:
        return [{"action": "drop", "group": label}]
    if claim.renames:
        return [] if grouping.find(value) is not None else [{"action": "rename", "group": label, "to": value}]
    return [{"action": "merge", "groups": [label], "to": to}] if can_take else []
