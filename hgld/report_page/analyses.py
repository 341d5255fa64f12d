"""Analyses of an embedding as papers print them: distances of classes, decomposability gap, width of the sigmoid."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hgld.errors import ConfigError, InputError
from hgld.evaluation.diagnostics import class_distances, gap_over_batches, smoothing_errors
from hgld.evaluation.evaluate import Progress
from hgld.evaluation.scores import prepare_embeddings
from hgld.report_page.figures import OTHERS, SERIES, Figure, Figures, clean, draw_legend
from hgld.report_page.runs import Evaluation, Items

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ITEMS = 20_000
_MOST_PAIRED = 2_000  # items whose distances are drawn, all with all
_BINS = 60
_TAUS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_SMALLEST_BATCH, _MOST_SIZES = 32, 6


@dataclass(frozen=True, eq=False)
class Analyses:
    """The analyses of a split.

    Attributes:
        figures: the pictures.
        values: what they show, by analysis and run, ready for JSON.
        missing: the analyses that could not be made, with the reason.
    """

    figures: tuple[Figure, ...] = ()
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def analyse(
    names: Sequence[str],
    ranked: Mapping[str, Evaluation],
    figures: Figures,
    split: str,
    progress: Progress | None = None,
) -> Analyses:
    """Make analyses of the finest level of the items that are searched, the gallery or the split itself.

    Of more than 20,000 items as many classes are drawn with seed 0 as have no more.

    Args:
        names: of the analyses, see :data:`ANALYSES`.
        ranked: evaluations with their embeddings, by run.
        figures: to draw with.
        split: for the names of the figures.
        progress: called with a task, the number of analyses done and their total.
    """
    drawn: list[Figure] = []
    values: dict[str, dict[str, Any]] = {}
    missing = []
    done, total = 0, len(names) * len(ranked)
    for name in names:
        measure, draw = ANALYSES[name]
        found: dict[str, Any] = {}
        for run, evaluation in ranked.items():
            assert evaluation.ranked is not None
            try:
                found[run] = measure(*_sample(evaluation.ranked.other_side))
            except InputError as error:
                missing.append(f"{run}: no analysis of {name}, for {error}")
            done += 1
            if progress is not None:
                progress(f"analyse {split}", done, total)
        if found:
            drawn += draw(figures, found, split)
            values[name] = found
    return Analyses(tuple(drawn), values, tuple(missing))


def check_analyses(names: Sequence[str]) -> None:
    """Refuse names of analyses that there are not.

    Raises:
        ConfigError: names those that there are.
    """
    if unknown := [name for name in names if name not in ANALYSES]:
        raise ConfigError(f"there is no analysis {unknown[0]!r}; there are {', '.join(ANALYSES)}.")


def _sample(items: Items) -> tuple[np.ndarray, np.ndarray]:
    """Return unit embeddings and finest labels, of whole classes."""
    labels = items.labels[:, 0]
    classes, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    sizes = np.where(classes < 0, 0, sizes)
    lot = np.random.default_rng(0).permutation(len(classes))
    kept = np.zeros(len(classes), bool)
    kept[lot] = np.cumsum(sizes[lot]) <= _MOST_ITEMS
    chosen = np.flatnonzero(kept[inverse] & (labels >= 0))
    if not len(chosen):
        raise InputError("no item of a class that is small enough has a known label.")
    return prepare_embeddings(np.asarray(items.embeddings[chosen]), "item").numpy(), labels[chosen]


# -- distances within and between classes -----------------------------------------------------------------------------


def _distances(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    means = class_distances(embeddings, labels)
    paired = np.sort(np.random.default_rng(0).permutation(len(labels))[:_MOST_PAIRED])
    edges = np.linspace(0, 2, _BINS + 1)
    above = np.triu_indices(len(paired), 1)
    distance = (1 - embeddings[paired] @ embeddings[paired].T)[above].clip(0, 2)
    same = (labels[paired][:, None] == labels[paired])[above]
    shares = {}
    for name, part in (("intra", distance[same]), ("inter", distance[~same])):
        shares[name] = (np.histogram(part, edges)[0] / max(len(part), 1)).tolist()
    return {"dists@intra": means.intra, "dists@inter": means.inter, "edges": edges.tolist(), **shares}


def _draw_distances(figures: Figures, found: Mapping[str, Any], split: str) -> list[Figure]:
    drawn = []
    for run, values in found.items():

        def draw(axes: "Axes", values: Mapping[str, Any] = values) -> None:
            entries = []
            for name, color in (("intra", SERIES[2]), ("inter", SERIES[1])):
                shares, edges = 100 * np.asarray(values[name]), np.asarray(values["edges"])
                axes.stairs(shares, edges, color=color, fill=True, alpha=0.25)
                entries.append((axes.stairs(shares, edges, color=color, linewidth=1.7), name))
                axes.axvline(values[f"dists@{name}"], color=color, linestyle="--", linewidth=1)
            shown = np.flatnonzero(np.asarray(values["intra"]) + np.asarray(values["inter"]))
            axes.set(xlabel="cosine distance", ylabel="% of the pairs", xlim=(0, 2 * (shown[-1] + 2) / _BINS))
            named = [(line, f"{name}: mean {values[f'dists@{name}']:.3f}") for line, name in entries]
            draw_legend(axes, named, loc="best")

        title = f"Distances within and between classes, {clean(run)}"
        note = f"Of at most {_MOST_PAIRED:,} items."
        drawn.append(figures.draw(f"{split}-distances-{run}", title, draw, term="distances", note=note))
    return drawn


# -- decomposability gap ----------------------------------------------------------------------------------------------


def _gaps(embeddings: np.ndarray, labels: np.ndarray) -> list[dict[str, float]]:
    sizes = [_SMALLEST_BATCH << i for i in range(_MOST_SIZES)]
    fitting = [size for size in sizes if 2 * size <= len(labels)] or [max(2, len(labels) // 2)]
    return [asdict(gap) for gap in gap_over_batches(embeddings, labels, fitting)]


def _draw_gaps(figures: Figures, found: Mapping[str, Any], split: str) -> list[Figure]:
    def draw(axes: "Axes") -> None:
        entries = []
        for series, (run, rows) in enumerate(found.items()):
            sizes, color = [row["size"] for row in rows], SERIES[series % len(SERIES)]
            line = axes.plot(sizes, [row["gap"] for row in rows], color=color, marker="o", markersize=3.5)[0]
            near = axes.plot(sizes, [row["calibrated"] for row in rows], color=color, linestyle="--", linewidth=1)[0]
            entries += [(line, clean(run, 24)), (near, f"its bound, {clean(run, 12)}")]
        rows = next(iter(found.values()))
        worst = axes.plot([r["size"] for r in rows], [r["bound"] for r in rows], color=OTHERS, linestyle=":")[0]
        _log_axis(axes, [row["size"] for row in rows])
        axes.set(xlabel="items of a batch", ylabel="AP in batches - AP of all", ylim=(None, 1.02))
        draw_legend(axes, [*entries, (worst, "bound without calibration")], loc="best")

    note = (
        "Mean over at most 500 queries, 4 images of a class in a batch. Bounds: of batches that are ranked perfectly; "
        "with as many positives above 0.9 and negatives above 0.6 as there are."
    )
    title = "Decomposability gap of AP"
    return [figures.draw(f"{split}-decomposability", title, draw, term="decomposability gap", note=note)]


# -- the width of Smooth-AP's sigmoid ---------------------------------------------------------------------------------


def _smoothing(embeddings: np.ndarray, labels: np.ndarray) -> list[dict[str, float]]:
    return [asdict(error) for error in smoothing_errors(embeddings, labels, _TAUS)]


def _draw_smoothing(figures: Figures, found: Mapping[str, Any], split: str) -> list[Figure]:
    drawn = []
    for what, title, label in (
        ("error", "AP approximation error", "mean |smooth AP - AP|"),
        ("operating", "Pairs in the operating region", "share of the pairs"),
    ):

        def draw(axes: "Axes", what: str = what, label: str = label) -> None:
            entries = []
            for series, (run, rows) in enumerate(found.items()):
                taus, color = [row["tau"] for row in rows], SERIES[series % len(SERIES)]
                line = axes.plot(taus, [row[what] for row in rows], color=color, marker="o", markersize=3.5)[0]
                entries.append((line, clean(run, 28)))
            _log_axis(axes, _TAUS)
            axes.set(xlabel="tau", ylabel=label, ylim=(0, None))
            draw_legend(axes, entries, loc="best")

        note = "Batches of 64, 4 images of a class. Operating: the slope is at least 1 % of the steepest."
        drawn.append(figures.draw(f"{split}-smoothing-{what}", title, draw, term="smoothing", note=note))
    return drawn


def _log_axis(axes: "Axes", places: Sequence[float]) -> None:
    """Make a logarithmic axis with plain numbers at some places; matplotlib alone writes powers in TeX."""
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)


_Measure = Callable[[np.ndarray, np.ndarray], Any]
_Draw = Callable[[Figures, Mapping[str, Any], str], list[Figure]]

ANALYSES: Mapping[str, tuple[_Measure, _Draw]] = {
    "distances": (_distances, _draw_distances),
    "decomposability": (_gaps, _draw_gaps),
    "smoothing": (_smoothing, _draw_smoothing),
}
"""The analyses by name: the function that measures, and the one that draws."""
