"""Two-dimensional maps of an embedding by t-SNE: class means, coloured by every level above the finest."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hgld.evaluation.scores import prepare_embeddings
from hgld.report_page.figures import DOTS, OTHERS, SERIES, Figure, Figures, clean, draw_legend
from hgld.report_page.rankings import class_means
from hgld.report_page.runs import Items

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 600  # t-SNE takes 2 ms a point
LEAST_POINTS = 4
_LEAST_SPREAD = 1e-6  # of unit rows about their mean; rounding alone makes up to a tenth of this
_ITEMS_A_CLASS = 40
_SIZE = (4.3, 4.5)
_LEGEND_WIDTH, _AROUND_A_NAME = 64, 7  # in letters: what fits below a map; a dot and the space between columns

NameOf = Callable[[int, int], str]


def tsne(points: np.ndarray, seed: int = 0) -> np.ndarray:
    """Map points to the plane (van der Maaten and Hinton, JMLR 2008), by cosine distance, from their first two PCs.

    Args:
        points: (N, D) unit rows; :func:`why_no_map` finds nothing against them.
        seed: of the random part.

    Returns:
        (N, 2).
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(points) - 1) / 3)
    init = "pca" if points.shape[1] > 1 else "random"
    rows = points.astype(np.float64)  # in float32 cosine distances below 1e-7 are 0
    with threadpool_limits(1):  # the same picture whatever the machine's cores
        return TSNE(metric="cosine", init=init, perplexity=perplexity, random_state=seed).fit_transform(rows)


def why_no_map(points: np.ndarray) -> str:
    """Return the reason for which unit rows have no map, in words for the page; empty where they have one."""
    if len(points) < LEAST_POINTS:
        return f"there are {len(points)}, and a map needs {LEAST_POINTS}"
    rows = points.astype(np.float64)
    spread = float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))
    return "" if spread > _LEAST_SPREAD else "they are all but equal, as those of a collapsed model"


def draw_maps(
    figures: Figures, items: Items, levels: Sequence[str], name_of: NameOf, run: str, split: str
) -> tuple[list[Figure], list[str]]:
    """Draw a map a level: items of the largest classes at the finest, class means at the others.

    Args:
        figures: to draw with.
        items: the gallery of an evaluation.
        levels: finest first.
        name_of: the name of a class from level and id.
        run: name of the run.
        split: name of the split.

    Returns:
        the maps, and a sentence about each kind that cannot be drawn.
    """
    drawn, missing = [], []
    means, labels, sizes = class_means(items)
    if len(levels) > 1:
        kept = np.sort(np.argsort(-sizes, kind="stable")[:MOST_CLASSES])
        reason = why_no_map(means[kept])
        if reason:
            missing.append(f"{run}: no map of the mean embeddings of every {levels[0]}, for {reason}.")
        else:
            left_out = f" The {len(kept)} largest of {len(sizes)} classes." if len(kept) < len(sizes) else ""
            places = tsne(means[kept])
            for level in range(1, len(levels)):
                note = f"A dot is the mean embedding of one {clean(levels[0])}; t-SNE by cosine distance.{left_out}"
                title = f"{clean(run)}: class means by {clean(levels[level])}"
                coarse = labels[kept, level]
                draw = _scatter(places, coarse, lambda label, level=level: name_of(level, label))
                named = [(name_of(level, int(coarse[i])), name_of(0, int(labels[kept[i], 0]))) for i in _order(coarse)]
                drawn.append(_map(figures, f"{split}-map-{run}-{levels[level]}", title, draw, note, named))
    chosen = _items_of_largest(items, sizes)
    unit = prepare_embeddings(np.asarray(items.embeddings[chosen]), "item").numpy() if len(chosen) else np.empty((0, 1))
    reason = why_no_map(unit)
    if reason:
        missing.append(f"{run}: no map of the items of the largest classes, for {reason}.")
    else:
        fine = items.labels[chosen, 0]
        draw = _scatter(tsne(unit), fine, lambda label: name_of(0, label))
        note = f"A dot is an item of one of the {len(SERIES)} largest classes, at most {_ITEMS_A_CLASS} of each."
        title = f"{clean(run)}: items by {clean(levels[0])}"
        keys = [f"item {i}" if items.keys is None else str(items.keys[i]) for i in chosen.tolist()]
        named = [(name_of(0, int(fine[i])), keys[i]) for i in _order(fine)]
        drawn.append(_map(figures, f"{split}-map-{run}-{levels[0]}", title, draw, note, named))
    return drawn, missing


def _items_of_largest(items: Items, sizes: np.ndarray) -> np.ndarray:
    finest = items.labels[:, 0]
    classes = np.unique(finest[finest >= 0])
    largest = classes[np.argsort(-sizes, kind="stable")[: len(SERIES)]]
    return np.sort(np.concatenate([np.flatnonzero(finest == c)[:_ITEMS_A_CLASS] for c in largest] or [[]]).astype(int))


def _map(
    figures: Figures,
    name: str,
    title: str,
    draw: "Callable[[Axes], None]",
    note: str,
    named: Sequence[tuple[str, str]],
) -> Figure:
    dots = [f"{clean(coarse)} › {clean(fine)}" for coarse, fine in named]
    return figures.draw(name, title, draw, term="map", note=note, size=_SIZE, dots=dots)


def _parts(labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return classes and their dots in the order of drawing: -1 and all others, then each of the largest classes."""
    classes, sizes = np.unique(labels[labels >= 0], return_counts=True)
    largest = classes[np.argsort(-sizes, kind="stable")[: len(SERIES)]].tolist()
    others = np.flatnonzero(~np.isin(labels, largest))
    return [*([(-1, others)] if others.size else []), *((label, np.flatnonzero(labels == label)) for label in largest)]


def _order(labels: np.ndarray) -> list[int]:
    return np.concatenate([dots for _, dots in _parts(labels)]).tolist()


def _scatter(places: np.ndarray, labels: np.ndarray, name_of: Callable[[int], str]) -> "Callable[[Axes], None]":
    """Scatter dots in a colour a class for the largest classes, grey for the others."""

    def draw(axes: "Axes") -> None:
        size, entries = float(np.clip(4000 / len(places), 8, 34)), []
        parts = _parts(labels)
        colors = iter(SERIES)
        for number, (label, dots) in enumerate(parts):
            look = {"color": OTHERS, "alpha": 0.6} if label < 0 else {"color": next(colors)}
            artist = axes.scatter(*places[dots].T, s=size, linewidths=0, gid=f"{DOTS}-{number}", **look)
            entries.append((artist, "others" if label < 0 else clean(name_of(label), 22)))
        axes.set_axis_off()
        columns = legend_columns([name for _, name in entries])
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
        draw_legend(axes, entries, **below, ncols=columns, markerscale=1.6, handletextpad=0.1)

    return draw


def legend_columns(names: Sequence[str], most: int = 3) -> int:
    """Return the number of columns that fit below a map; a legend fills them one after another."""
    for columns in range(most, 1, -1):
        rows = -(-len(names) // columns)
        widths = [max(map(len, names[i : i + rows])) for i in range(0, len(names), rows)]
        if sum(widths) + _AROUND_A_NAME * len(widths) <= _LEGEND_WIDTH:
            return columns
    return 1
