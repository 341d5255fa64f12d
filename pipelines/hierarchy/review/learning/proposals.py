"""The queue of proposals: what a teacher estimates after each decision, and the decisions that answer a proposal.

A proposal is the machine's. What is written is what a person says to it: the names that were shown, one by one, so that
a file of decisions says the same whatever a later run would propose.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from hgld.errors import InputError, quoted

from ..decisions.decisions import MOST_NAMES
from ..decisions.grouping import Fate, Grouping

PIECE = 200  # names of a proposal that are sent with the queue; the others are asked for
Verdict = Literal["accept", "refuse"]
DecisionFields = dict[str, Any]  # the fields of a decision without who and when


class Proposal(Protocol):
    """A proposal of the machine.

    Attributes:
        kind: ``sort`` (names that lie together, each with a group of its own), ``accept`` (the names in the group look
            right), ``place`` (the names look as if they belonged to the group), ``merge`` (``group`` and ``other`` look
            like one), ``new`` (the names, of several groups or of none, look like a group of their own, for which
            ``group`` is a label), ``split`` (so do these names of the group ``other``) or ``rename`` (``other`` says
            better what the names in ``group`` are).
        group: the label of the group.
        names: names, the most certain first; of a ``sort`` in an order that puts like beside like.
        blocks: ranges (start, stop) of such names that lie closest together, nested or apart.
        wrong: for each of them the probability that the proposal is wrong about it.
        items: expected number of items that are put right by deciding it.
        other: the label of the second group of a merge, of the group that a split leaves; the new label of a rename.
    """

    @property
    def kind(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def blocks(self) -> Sequence[tuple[int, int]]: ...
    @property
    def wrong(self) -> Sequence[float]: ...
    @property
    def items(self) -> float: ...
    @property
    def other(self) -> str | None: ...


class Estimates(Protocol):
    """Estimates after some decisions.

    Attributes:
        place: every name's group, estimated anew where nobody decided.
        wrong: every name's probability of standing wrong.
        queue: proposals, the most useful first.
    """

    @property
    def place(self) -> Mapping[str, Fate]: ...
    @property
    def wrong(self) -> Mapping[str, float]: ...
    @property
    def queue(self) -> Sequence[Proposal]: ...
    def still_wrong(self) -> tuple[float, float, float]:
        """Return the expected number of names that stand wrong, and its 80% interval."""
        ...

    def items_wrong(self) -> tuple[float, float, float]:
        """Return the same for the items of the names."""
        ...


class Teacher(Protocol):
    """A teacher of the other names' places from those that were decided; the same decisions teach the same."""

    def learn(self, grouping: Grouping, *, skipped: Collection[tuple[str, str | None]] = ()) -> Estimates:
        """Return the estimates after the decisions that the grouping holds.

        ``skipped`` are names that the person put off, each with the label of the group it was estimated in then.
        """
        ...


@dataclass(frozen=True)
class TaughtBy:
    """A teacher that is made when it is needed, and the files of a build that it learns from.

    Attributes:
        inputs: the files, by the names that a stage's key gives them.
        make: returns the teacher.
    """

    inputs: Mapping[str, Path]
    make: Callable[[], Teacher]


def identity(proposal: Proposal) -> str:
    """Return a text that only a proposal of the same content has."""
    said = json.dumps([proposal.kind, proposal.group, proposal.other, list(proposal.names)])
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def shown(
    proposal: Proposal, label_of: Callable[[str], str | None], start: int = 0, most: int = PIECE
) -> dict[str, Any]:
    """Return a proposal as the page receives it, with ``most`` of its names and the label of each one's group now."""
    piece = slice(start, start + most)
    return {
        "id": identity(proposal),
        "kind": proposal.kind,
        "group": proposal.group,
        "other": proposal.other,
        "items": round(float(proposal.items), 1),
        "size": len(proposal.names),
        "names": list(proposal.names[piece]),
        "groups": [label_of(name) for name in proposal.names[piece]],
        "wrong": [round(float(wrong), 2) for wrong in proposal.wrong[piece]],
        "blocks": [list(block) for block in proposal.blocks],
    }


def answered(
    proposal: Proposal,
    verdict: Verdict,
    label_of: Callable[[str], str | None],
    *,
    exceptions: Sequence[str] = (),
    also: Sequence[Mapping[str, Any]] = (),
    to: str | None = None,
    decided: Container[str] = (),
) -> list[DecisionFields]:
    """Return the decisions by which a person accepts or refuses a proposal.

    Args:
        proposal: the proposal.
        verdict: the person's answer to it.
        label_of: returns the label of the group that a name stands in now.
        exceptions: names of it that the answer leaves out. They do not belong to the group, unless ``also`` says more.
        also: further decisions of the same action, about some of the exceptions.
        to: the label of the merged, new or renamed group, if it is another one than proposed.
        decided: names that the person decided about since the proposal was shown; nothing more is said of them.

    Raises:
        InputError: an exception is no name of the proposal.
    """
    known = set(proposal.names)
    if foreign := next((name for name in exceptions if name not in known), None):
        raise InputError(f"{quoted(foreign)} is no name of the proposal.")
    said: list[DecisionFields]
    group = to or proposal.group
    settled = {name for one in also for name in _listed(one)}
    left = [name for name in proposal.names if name not in settled and name not in decided]
    out = set(exceptions)
    denied, kept = [name for name in left if name in out], [name for name in left if name not in out]
    if proposal.kind == "sort":
        right, wrong = _by_group(kept, label_of), _by_group(denied, label_of)
        if verdict == "refuse":
            right, wrong = {}, _by_group(left, label_of)
        said = [one for label, names in right.items() for one in _in_pieces("accept", names, group=label)]
        said += [one for label, names in wrong.items() for one in _in_pieces("refuse", names, group=label)]
        return [*said, *map(dict, also)]
    if verdict == "refuse":
        if proposal.kind == "rename":
            return [{"action": "rename", "group": proposal.group, "to": proposal.group}, *map(dict, also)]
        if proposal.kind == "merge":
            return [{"action": "refuse", "group": proposal.group, "other": proposal.other}, *map(dict, also)]
        return [*_in_pieces("refuse", kept, group=proposal.group), *map(dict, also)]
    if proposal.kind == "merge":
        said = [{"action": "merge", "groups": [proposal.group, proposal.other], "to": group}]
    elif proposal.kind in ("new", "split"):
        said = _new(kept, group)
    elif proposal.kind == "rename":
        group = to or proposal.other or proposal.group
        said = [{"action": "rename", "group": proposal.group, "to": group}]
    else:
        said = _in_pieces("accept", kept, group=proposal.group)
    return [*said, *_in_pieces("refuse", denied, group=group), *map(dict, also)]


def _listed(decision: Mapping[str, Any]) -> list[str]:
    names = decision.get("names")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _by_group(names: Sequence[str], label_of: Callable[[str], str | None]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if (label := label_of(name)) is not None:
            found.setdefault(label, []).append(name)
    return found


def _in_pieces(action: str, names: Sequence[str], **said: Any) -> list[DecisionFields]:
    starts = range(0, len(names), MOST_NAMES)
    return [{"action": action, "names": list(names[start : start + MOST_NAMES]), **said} for start in starts]


def _new(names: Sequence[str], label: str) -> list[DecisionFields]:
    first = _in_pieces("new", names[:MOST_NAMES], to=label)
    return [*first, *_in_pieces("accept", names[MOST_NAMES:], group=label)]


def taught(
    grouping: Grouping, teacher: Teacher | None, skipped: Collection[tuple[str, str | None]] = ()
) -> tuple[Estimates | None, Grouping]:
    """Return a teacher's estimates after the decisions of a grouping, and the grouping with names where it has them.

    Without any decision every name stays where the clustering put it.
    """
    if teacher is None:
        return None, grouping
    estimates = teacher.learn(grouping, skipped=skipped)
    return estimates, grouping.placed(estimates.place) if grouping.claims else grouping
