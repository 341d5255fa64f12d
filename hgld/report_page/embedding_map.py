"""Maps of an embedding by t-SNE: class means by every coarser level, and items of the largest classes."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hgld.evaluation.scores import prepare_embeddings
from hgld.report_page.figures import OTHERS, SERIES, Figure, Figures, clean, draw_legend
from hgld.report_page.rankings import class_means
from hgld.report_page.runs import Items

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 600  # maximum number of classes on the map: t-SNE takes 2 ms per point
_FEWEST_POINTS = 4
_LEAST_SPREAD = 1e-6  # minimum spread of unit rows about their mean; rounding alone causes up to a tenth of it
_ITEMS_PER_CLASS = 40

NameOf = Callable[[int, int], str]
"""Function that names a class, given its level and id."""


def tsne(points: np.ndarray, seed: int = 0) -> np.ndarray:
    """Map points to the plane by t-SNE (van der Maaten and Hinton, JMLR 2008) of cosine distances.

    t-SNE starts at the first two principal components of the points.

    Args:
        points: (N, D) unit rows; :func:`why_no_map` must be empty for them.
        seed: seed of t-SNE.

    Returns:
        (N, 2) positions in the map.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(points) - 1) / 3)
    init = "pca" if points.shape[1] > 1 else "random"
    rows = points.astype(np.float64)  # float32 would round cosine distances below 1e-7 to 0
    with threadpool_limits(1):  # one thread, so that the map is the same for any number of cores
        return TSNE(metric="cosine", init=init, perplexity=perplexity, random_state=seed).fit_transform(rows)


def why_no_map(points: np.ndarray) -> str:
    """Return the reason why unit rows cannot be drawn as a map; empty if they can."""
    if len(points) < _FEWEST_POINTS:
        return f"there are {len(points)}, and a map needs {_FEWEST_POINTS}"
    rows = points.astype(np.float64)
    spread = float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))
    return "" if spread > _LEAST_SPREAD else "they are almost equal, as from a collapsed model"


def draw_maps(
    figures: Figures, items: Items, levels: Sequence[str], name_of: NameOf, run: str, split: str
) -> tuple[list[Figure], list[str]]:
    """Draw a map per level: items of the largest classes at the finest level, class means at coarser levels.

    Args:
        figures: object that draws and collects the figures.
        items: gallery of an evaluation.
        levels: names of the levels, finest first.
        name_of: function that returns the name of a class, given level and id.
        run: name of the run.
        split: name of the split.

    Returns:
        the maps, and a sentence about each map that cannot be drawn.
    """
    drawn, missing = [], []
    means, labels, sizes = class_means(items)
    by_size = np.argsort(-sizes, kind="stable")

    def add(level: int, points: np.ndarray, classes: np.ndarray, title: str, note: str) -> None:
        draw, name = _scatter(points, classes, level, name_of), f"{split}-map-{run}-{levels[level]}"
        title = f"{clean(run)}: {title} by {clean(levels[level])}"
        drawn.append(figures.draw(name, title, draw, term="map", note=note, height=3.4))

    if len(levels) > 1:
        kept = np.sort(by_size[:MOST_CLASSES])
        if reason := why_no_map(means[kept]):
            missing.append(f"{run}: no map of the mean embeddings of every {levels[0]}, because {reason}.")
        else:
            left_out = f" The {len(kept)} largest of {len(sizes)} classes." if len(kept) < len(sizes) else ""
            note = f"A dot is the mean embedding of one {clean(levels[0])}; t-SNE by cosine distance.{left_out}"
            points = tsne(means[kept])
            for level in range(1, len(levels)):
                add(level, points, labels[kept, level], "class means", note)
    finest = items.labels[:, 0]
    largest = labels[by_size[: len(SERIES)], 0].tolist()
    chosen = np.sort(np.concatenate([np.flatnonzero(finest == c)[:_ITEMS_PER_CLASS] for c in largest] or [by_size]))
    unit = prepare_embeddings(np.asarray(items.embeddings[chosen]), "item").numpy() if len(chosen) else means
    if reason := why_no_map(unit):
        missing.append(f"{run}: no map of the items of the largest classes, because {reason}.")
    else:
        note = f"A dot is an item of one of the {len(SERIES)} largest classes, at most {_ITEMS_PER_CLASS} of each."
        add(0, tsne(unit), finest[chosen], "items", note)
    return drawn, missing


def _scatter(points: np.ndarray, labels: np.ndarray, level: int, name_of: NameOf) -> "Callable[[Axes], None]":
    """Return a function that draws dots: a colour for each of the largest classes, grey for all other classes."""
    classes, sizes = np.unique(labels[labels >= 0], return_counts=True)
    largest = classes[np.argsort(-sizes, kind="stable")[: len(SERIES)]].tolist()
    others = ~np.isin(labels, largest)

    def draw(axes: "Axes") -> None:
        look = {"s": float(np.clip(2400 / len(points), 5, 20)), "linewidths": 0}
        entries = [(axes.scatter(*points[others].T, color=OTHERS, alpha=0.6, **look), "others")] if others.any() else []
        for label, color in zip(largest, SERIES, strict=False):
            artist = axes.scatter(*points[labels == label].T, color=color, **look)
            entries.append((artist, clean(name_of(level, label), 22)))
        axes.set_axis_off()
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
        draw_legend(axes, entries, **below, ncols=2, markerscale=1.6, handletextpad=0.1)

    return draw
