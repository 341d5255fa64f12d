"""The expected number of wrong names per level and in the whole tree.

A name is wrong at a level above the groups if its group has a wrong class there, or if the name belongs to a group of
another class. A name is wrong in the tree if it is wrong at any level. The errors of groups' classes are estimated as
the errors of names are: decisions show the level of the errors, and whether the person looks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy.special import expit, logit

from ..groups.doubt import DRAWS, LEAST, MOST, Expected, Spreads, believe, still_wrong
from .learner import Estimates

# Logit deviation of the error rates of classes between taxonomies: .7 in six taxonomies; .85 gives the intervals that
# benchmarks/review_trust.py asks for. A group's class is the unit, so there is none between groups.
_SPREADS = Spreads(0.85, 0.0)
_MOST_ASKED = 2000  # enough names to estimate how often the wrong group has another class
# The learner's probability that the right group has another class is too high by these log-odds, and counts as this
# many names; both from the development datasets of benchmarks/review_trust.py.
_TOO_HIGH, _SURE = 0.6, 15.0


def expected_errors(now: Estimates, groups: pl.DataFrame, levels: Sequence[str]) -> dict[str, Any]:
    """Return :attr:`Estimates.still_wrong` with mean and 80% interval of the wrong names per level and in the tree.

    ``levels`` has the numbers by level above the groups, and ``tree`` those of the whole tree. ``unread`` is true if
    the person may have accepted names or classes without looking.

    Args:
        now: the estimates.
        groups: table of :func:`hgld.pipelines.hierarchy.review.review.reviewed_groups`.
        levels: names of the levels above the groups, finest first.
    """
    sizes, is_unread, found = groups["names"].to_numpy(), now.still_wrong["unread"], dict[str, Any]()
    moved, care = now.draws(np.ones(len(now.names))), now.belief.care
    total = max(int(sizes.sum()), 1)
    right = 1 - moved / total
    for depth, level in enumerate(levels):
        classes, by, built, wrong = (groups[column].list.get(depth) for column in _COLUMNS)
        is_open, people = by.is_null().to_numpy(), (by.is_not_null() & (by != "given")).to_numpy()
        odds = logit(np.clip(wrong.to_numpy().astype(float), LEAST, MOST))
        kept = classes.eq_missing(built).to_numpy()[people]
        belief = believe(odds[people], kept, kept, np.arange(len(kept)), now.belief.repeated, _SPREADS, care)
        none = np.full(int(is_open.sum()), -1)
        draws = still_wrong(odds[is_open], sizes[is_open], none, belief, sizes[people], seed=depth + 1)
        share, apart = draws / total, moved * _other_class(now, dict(zip(groups["label"], classes, strict=True)))
        found[level] = _rounded(apart + share * (total - apart))
        right, care = right * (1 - share), belief.care
        is_unread |= bool(people.any() and belief.unread > 0.5)
    return {**now.still_wrong, "unread": is_unread, "levels": found, "tree": _rounded(total * (1 - right))}


_COLUMNS = ("classes", "classes_by", "built", "built_wrong")


def _rounded(draws: np.ndarray) -> list[float]:
    return [round(end, 1) for end in Expected.of(draws)]


def _other_class(now: Estimates, classes: Mapping[str, str | None]) -> np.ndarray:
    """Return draws of the probability that a name in a wrong group belongs to a group of another class."""
    names = np.flatnonzero(now.undecided & (now.standing >= 0))
    names = names[:: max(1, len(names) // _MOST_ASKED)]
    codes = np.unique([str(classes.get(label)) for label in now.labels], return_inverse=True)[1]
    rows, groups, shares = np.arange(len(names)), now.standing[names], now.shares[names].astype(float)
    same = shares @ np.eye(len(codes))[codes]
    apart, wrong = ((1 - table[rows, at].clip(max=1)).sum() for table, at in ((same, codes[groups]), (shares, groups)))
    expected = expit(logit((apart + 0.1) / (wrong + 0.2)) - _TOO_HIGH)
    return np.random.default_rng(0).beta(_SURE * expected, _SURE * (1 - expected), DRAWS)
