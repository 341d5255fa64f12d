"""Comparison of annotators: their files, their conflicts, and the decisions that adopt another's claim."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hgld.errors import InputError
from hgld.pipelines.hierarchy.review.agreement import Conflict, Settlement
from hgld.pipelines.hierarchy.review.decisions import Decision, Entry
from hgld.pipelines.hierarchy.review.grouping import Claim, Fate, GroupId, Grouping, Subject
from hgld.pipelines.hierarchy.review.journal import Journal

DecisionFields = dict[str, Any]  # the fields of a decision without who, when and why


def check_annotators(journal: Journal, others: Sequence[Entry]) -> None:
    """Refuse files that would make one annotator of two: each person's decisions must be in one file.

    Args:
        journal: the file of the person at the page.
        others: the decisions of the others' files.

    Raises:
        InputError: decisions under one name are in two files.
    """
    own = journal.path.resolve()
    files: dict[str, Path] = {entry.decision.who: journal.path for entry in journal.foreign_entries}
    if journal.role == "annotator":
        files[journal.who] = journal.path
    for entry in others:
        if entry.file.resolve() == own:
            raise InputError(f"{entry.file}: your own file is given with --others too; name it with --decisions alone.")
        who = entry.decision.who
        if entry.role == "annotator" and files.setdefault(who, entry.file) != entry.file:
            raise InputError(
                f"{entry.file}: its decisions are by {who!r}, who decides in {files[who]} too; the two would count as "
                "one annotator. Two people need two names: open the page with --who NAME, and correct the field who of "
                "what is written already. One person needs one file: put all decisions into it."
            )


def side_by_side(settlement: Settlement, grouping: Grouping) -> dict[str, Any]:
    """Return kappa of each pair of annotators, and their conflicts, each side with the decisions that adopt it.

    Args:
        settlement: the settlement of everyone's decisions.
        grouping: the grouping as the person at the page decided so far; the adopting decisions fit it.
    """
    return {
        "agreements": [asdict(agreement) for agreement in settlement.agreements],
        "conflicts": [_conflict(conflict, grouping) for conflict in settlement.conflicts],
    }


def _conflict(conflict: Conflict, grouping: Grouping) -> dict[str, Any]:
    return {
        "kind": conflict.kind,
        "of": conflict.of,
        "settled": conflict.settled,
        "verdicts": [
            {
                "who": side.who,
                "verdict": side.verdict,
                "why": "; ".join(dict.fromkeys(entry.decision.why for entry in side.entries)),
                "adopt": adopting(next(iter(conflict.subjects)), side.claim, grouping) if side.claim else [],
            }
            for side in conflict.verdicts
        ],
    }


def adopting(subject: Subject, claim: Claim, grouping: Grouping) -> list[DecisionFields]:
    """Return the decisions that adopt another annotator's claim; empty if no decision can.

    A label alone does not say what the other means: a group that they renamed has another label here, and one that
    they made may not be here at all. So the claim is used, which names groups of the clustering by their number.

    Args:
        subject: the subject of the claim.
        claim: the other annotator's claim.
        grouping: the person's own grouping.
    """
    if subject.kind == "name":
        return _place_name(str(subject.of), claim.value, grouping)
    if subject.kind == "top":
        label = grouping.label_of(subject.of)
        return [{"action": "set", "group": label, "top": claim.value}] if grouping.find(label) == subject.of else []
    return _end_group(subject.of, claim, grouping)


def _place_name(name: str, fate: Fate, grouping: Grouping) -> list[DecisionFields]:
    if fate is None:
        return [{"action": "drop", "names": [name]}]
    label = grouping.label_of(fate)
    if grouping.target(label) != fate:
        return []  # another group has this label here
    if fate in grouping.labels:
        return [{"action": "move", "names": [name], "to": label}]
    here, back = grouping.place[name], list[DecisionFields]()
    if here is None:  # a dropped name must be in some group before it can be split off
        here = min(grouping.live(), key=str, default=None)
        if here is None:
            return []
        back = [{"action": "move", "names": [name], "to": grouping.label_of(here)}]
    return [*back, {"action": "split", "group": grouping.label_of(here), "names": [name], "to": label}]


def _end_group(group: GroupId, claim: Claim, grouping: Grouping) -> list[DecisionFields]:
    label, back = grouping.label_of(group), list[DecisionFields]()
    if not grouping.members[group]:  # merged or dropped here: its names come back first
        went = sorted(name for (kind, name), c in grouping.claims.items() if kind == "name" and c.via == group)
        back = [{"action": "move", "names": went, "to": label}]
        if not went or grouping.target(label) != group:
            return []
    if claim.value is None:
        return [*back, {"action": "drop", "group": label}]
    if claim.renames:
        taken = claim.value == label or grouping.find(str(claim.value)) is not None
        return [] if taken else [*back, {"action": "rename", "group": label, "to": claim.value}]
    into = grouping.label_of(claim.value)
    fits = grouping.target(into) == claim.value != group
    return [*back, {"action": "merge", "groups": [label], "to": into}] if fits else []


def record(decision: Decision) -> DecisionFields:
    """Return a decision as the page receives it."""
    said = {key: value for key, value in asdict(decision).items() if value is not None}
    return {"action": decision.action, **said, "when": decision.when.isoformat()}
