"""Mistake severity: how far up the hierarchy one must go to find what a wrong answer shares with its query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hgld.report_page.figures import Figure, Figures, clean, grade_color
from hgld.report_page.rankings import Ranking

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RANKS = 20


@dataclass(frozen=True)
class Severity:
    """Where the mistakes of a run happen.

    Attributes:
        shares: for the grades L, L - 1, ..., 0 the share of queries whose first item has that grade: right, then what
            the mistake still shares with the query, from the finest level on, at last nothing.
        mistakes: share of queries whose first item is not of their finest class.
        mean: levels to climb, averaged over the mistakes (Bertinetto et al., "Making Better Mistakes", CVPR 2020:
            the height of the lowest common ancestor); NaN without a mistake. L means nothing in common.
        queries: how many were looked at.
        by_rank: (ranks, L + 1) shares of the grades 0..L at every rank.
    """

    shares: tuple[float, ...]
    mistakes: float
    mean: float
    queries: int
    by_rank: np.ndarray


def severity(rankings: Sequence[Ranking], num_levels: int) -> Severity:
    """Count the grades at the first ranks, over queries that have an item of their own finest class to find."""
    looked_at = [r for r in rankings if (r.grades == num_levels).any()]
    depth = min([_RANKS, *(len(r.grades) for r in looked_at)])
    if not looked_at:
        return Severity(
            (float("nan"),) * (num_levels + 1), float("nan"), float("nan"), 0, np.zeros((0, num_levels + 1))
        )
    top = np.stack([r.grades[:depth] for r in looked_at])  # (Q, ranks)
    by_rank = (top[:, :, None] == np.arange(num_levels + 1)).mean(axis=0)
    first = by_rank[0]
    mistakes = 1 - float(first[num_levels])
    climbed = num_levels - top[:, 0][top[:, 0] < num_levels]
    mean = float(climbed.mean()) if len(climbed) else float("nan")
    return Severity(tuple(float(s) for s in first[::-1]), mistakes, mean, len(looked_at), by_rank)


def draw_severity(figures: Figures, found: Mapping[str, Severity], levels: Sequence[str], split: str) -> list[Figure]:
    """For every run, what lies at the first ranks as a stacked bar a rank."""
    drawn = []
    labels = ["nothing in common", *(f"same {clean(level, 24)}" for level in reversed(levels))]
    for name, severities in found.items():
        if not severities.queries:
            continue

        def draw(axes: "Axes", by_rank: np.ndarray = severities.by_rank) -> None:
            ranks, bottom = np.arange(1, len(by_rank) + 1), np.zeros(len(by_rank))
            for grade in reversed(range(len(labels))):
                shares = 100 * by_rank[:, grade]
                color = grade_color(grade, len(levels))
                axes.bar(ranks, shares, bottom=bottom, width=0.86, color=color, label=labels[grade])
                bottom += shares
            axes.set(xlabel="rank", ylabel="% of queries", ylim=(0, 100), xlim=(0.4, len(by_rank) + 0.6))
            axes.set_xticks([rank for rank in (1, 5, 10, 15, 20) if rank <= len(by_rank)])
            axes.grid(visible=False)
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=1, columnspacing=1)

        note = f"{severities.queries} queries that have an item of their own {clean(levels[0])} in the gallery."
        title = f"What lies at each rank, {clean(name)}"
        drawn.append(figures.draw(f"{split}-severity-{name}", title, draw, note=note, size=(4.3, 3.1)))
    return drawn
