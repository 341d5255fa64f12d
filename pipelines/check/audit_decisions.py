"""Decisions about a hierarchy that an audit proposes, in the format of a decisions file.

The finest classes are the names of a build, the next level holds its groups, and the level above them the top classes.
No decision can correct some errors, for instance two finest classes that are the same thing.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl

from hgld.errors import InputError

from ..hierarchy.review.decisions import Decision, Merge, Move, SetTop, file_header, format_decision

WHO = "hgld audit"
HEADER = file_header()
_NAMES, _GROUPS = 0, 1  # indices of the two levels in a row of labels


def decision_texts(faults: pl.DataFrame, levels: Sequence[str]) -> list[str]:
    """Return a decision per error of the hierarchy as text of a decisions file; empty if no decision fits the error.

    Args:
        faults: table of errors of the hierarchy, :attr:`hgld.label_audit.audit.Audit.classes`.
        levels: names of the levels, finest first.
    """
    when, texts = datetime.now(UTC).replace(microsecond=0), []
    for fault in faults.iter_rows(named=True):
        try:
            decision = _decision(fault, levels, when)
        except InputError:  # such a name cannot be in a decision, for instance because of spaces around it
            decision = None
        texts.append("" if decision is None else format_decision(decision))
    return texts


def _decision(fault: Mapping[str, Any], levels: Sequence[str], when: datetime) -> Decision | None:
    said: dict[str, Any] = {"who": WHO, "when": when}
    said["why"] = f"probability {fault['probability']:.2f}; {fault['evidence']}"
    level, own, other = list(levels).index(fault["level"]), fault["class"], fault["other"]
    if fault["kind"] == "parent" and level == _NAMES:
        return Move(names=(own,), to=other, **said)
    if fault["kind"] == "parent" and level == _GROUPS:
        return SetTop(group=own, top=other, level=levels[level + 1] if len(levels) > _GROUPS + 2 else None, **said)
    if fault["kind"] == "one" and level == _GROUPS:
        return Merge(groups=(own, other), to=own, **said)
    return None
