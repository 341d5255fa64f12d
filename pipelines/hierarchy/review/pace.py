"""The pace of a person who reviews, and how long the rest takes at it."""

from collections.abc import Sequence
from itertools import pairwise

from .decisions.decisions import Decision

LEAST_ACTIONS = 5
_RECENT = 40  # actions: some minutes of work
_LONGEST = 120.0  # seconds between two actions that still count as work; whoever takes longer was away


def seconds_left(decisions: Sequence[Decision], names_left: int) -> float | None:
    """Return the seconds that ``names_left`` names take at the pace of the last actions.

    Decisions of one time are one action. A pause counts as two minutes. None where fewer than five actions tell of a
    pace, or none of them decided about names.
    """
    times = sorted({decision.when for decision in decisions})[-_RECENT:]
    if len(times) < LEAST_ACTIONS:
        return None
    spent = sum(min((later - one).total_seconds(), _LONGEST) for one, later in pairwise(times))
    done = {
        name for decision in decisions if decision.when > times[0] for name in getattr(decision, "names", None) or ()
    }
    return names_left * spent / len(done) if done else None
