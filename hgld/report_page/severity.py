"""Mistake severity: how far up the hierarchy one must go to find what a wrong answer shares with its query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hgld.report_page.figures import Figure, Figures, clean, grade_color
from hgld.report_page.rankings import FirstRanks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Severity:
    """Where the mistakes of a run happen.

    Attributes:
        shares: for the grades L, L - 1, ..., 0 the share of queries whose first item has that grade: right, then what
            the mistake still shares with the query, from the finest level on, at last nothing; NaN without a query.
        mistakes: share of queries whose first item is not of their finest class; NaN without a query.
        mean: levels to climb, averaged over the mistakes (Bertinetto et al., "Making Better Mistakes", CVPR 2020:
            the height of the lowest common ancestor); NaN without a mistake. L means nothing in common.
        queries: how many have an item of their finest class to find; the others are not counted.
        by_rank: (ranks, L + 1) shares of the grades 0..L at every rank.
    """

    shares: tuple[float, ...]
    mistakes: float
    mean: float
    queries: int
    by_rank: np.ndarray


def severity(first: FirstRanks, num_levels: int) -> Severity:
    """Count the grades at the first ranks, over queries that have an item of their own finest class to find."""
    top = first.grades[first.findable]  # (Q, ranks)
    if not len(top):
        nothing = (float("nan"),) * (num_levels + 1)
        return Severity(nothing, float("nan"), float("nan"), 0, np.zeros((0, num_levels + 1)))
    by_rank = np.stack([(top == grade).mean(axis=0) for grade in range(num_levels + 1)], axis=1)
    climbed = num_levels - top[top[:, 0] < num_levels, 0].astype(np.int64)
    mean = float(climbed.mean()) if len(climbed) else float("nan")
    return Severity(tuple(by_rank[0, ::-1].tolist()), len(climbed) / len(top), mean, len(top), by_rank)


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
