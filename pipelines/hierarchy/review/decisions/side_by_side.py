"""Comparison of annotators: their files, their conflicts, and the decisions that adopt another's claim."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hgld.errors import InputError, quoted

from ..learning.proposals import DecisionFields
from .agreement import LEAST_SHARED, Conflict, Settlement
from .decisions import Decision, Entry
from .grouping import Claim, Fate, Given, GroupId, Grouping, Subject
from .journal import Journal


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
            raise InputError(
                f"{entry.file}: your own file is given with --compare-with too; name it with --decisions alone."
            )
        who = entry.decision.who
        if entry.role == "annotator" and files.setdefault(who, entry.file) != entry.file:
            raise InputError(
                f"{entry.file}: its decisions are by {quoted(who)}, who decides in {files[who]} too; the two would "
                "count as one annotator. Two people need two names: open the page with --annotator NAME, and correct "
                "the field who of what is written already. One person needs one file: put all decisions into it."
            )


def side_by_side(settlement: Settlement, grouping: Grouping) -> dict[str, Any]:
    """Return kappa of each pair of annotators, and their conflicts, each side with the decisions that adopt it.

    Args:
        settlement: the settlement of everyone's decisions.
        grouping: the grouping as the person at the page decided so far; the adopting decisions fit it.
    """
    return {
        "agreements": [
            {**asdict(agreement), "kappa": agreement.kappa if agreement.is_told else None}
            for agreement in settlement.agreements
        ],
        "least_shared": LEAST_SHARED,
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
                "why": "; ".join(dict.fromkeys(entry.decision.why for entry in side.entries if entry.decision.why)),
                "adopt": adopting(_subject(conflict, side.claim), side.claim, grouping) if side.claim else [],
            }
            for side in conflict.verdicts
        ],
    }


def _subject(conflict: Conflict, claim: Claim) -> Subject:
    """Return the one of a conflict's subjects that a side's claim is about: what denies something claims no value."""
    denials = [subject for subject in conflict.subjects if subject.kind in ("not in", "apart")]
    denies = claim.value is None and bool(denials)
    return next(subject for subject in conflict.subjects if (subject in denials) == denies)


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
        return _place_name(str(subject.of), claim.fate, grouping)
    if subject.kind == "not in":
        return [{"action": "refuse", "names": [str(subject.of)], "group": grouping.label_of(subject.also)}]
    if subject.kind == "apart" and subject.also is not None:
        labels = [grouping.label_of(group) for group in (subject.of, subject.also)]
        fits = [grouping.find(label) for label in labels] == [subject.of, subject.also]
        return [{"action": "refuse", "group": labels[0], "other": labels[1]}] if fits else []
    if isinstance(claim.value, Given):
        return _give(subject, claim.value, grouping)
    if subject.kind == "top":
        label = grouping.label_of(subject.of)
        level = {} if subject.also is None else {"level": subject.also}
        said: DecisionFields = {"action": "set", "group": label, "top": claim.value, **level}
        return [said] if grouping.find(label) == subject.of else []
    return _end_group(subject.of, claim, grouping)


def _place_name(name: str, fate: Fate, grouping: Grouping) -> list[DecisionFields]:
    if fate is None:
        return [{"action": "drop", "names": [name]}]
    label = grouping.label_of(fate)
    if grouping.target(label) != fate:
        return []  # another group has this label here
    return [{"action": "move" if fate in grouping.labels else "new", "names": [name], "to": label}]


def _give(subject: Subject, given: Given, grouping: Grouping) -> list[DecisionFields]:
    said: DecisionFields = {"action": "item", "split": subject.of, "id": subject.also}
    if given.name is not None:
        said["name"] = given.name
    if given.group is not None:
        label = grouping.label_of(given.group)
        if grouping.find(label) != given.group:
            return []
        said["group"] = label
    return [said]


def _end_group(group: GroupId, claim: Claim, grouping: Grouping) -> list[DecisionFields]:
    label, back = grouping.label_of(group), list[DecisionFields]()
    if not grouping.members[group]:  # merged or dropped here: its names come back first
        went = sorted(str(s.of) for s, c in grouping.claims.items() if s.kind == "name" and c.via == group)
        back = [{"action": "move", "names": went, "to": label}]
        if not went or grouping.target(label) != group:
            return []
    if claim.value is None:
        return [*back, {"action": "drop", "group": label}]
    if claim.renames:
        taken = claim.value == label or grouping.find(str(claim.value)) is not None
        return [] if taken else [*back, {"action": "rename", "group": label, "to": claim.value}]
    into = grouping.label_of(claim.fate)
    fits = grouping.target(into) == claim.value != group
    return [*back, {"action": "merge", "groups": [label], "to": into}] if fits else []


def record(decision: Decision, most: int) -> DecisionFields:
    """Return a decision as the page receives it, with at most ``most`` of its names and their number."""
    said = {key: value for key, value in asdict(decision).items() if value is not None}
    if "names" in said:
        said |= {"names": said["names"][:most], "names_count": len(said["names"])}
    return {"action": decision.action, **said, "when": decision.when.isoformat()}
