"""Two-dimensional maps of an embedding by t-SNE: class means, coloured by every level above the finest."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hgld.ranking import prepare_embeddings
from hgld.report_page.figures import OTHERS, SERIES, Figure, Figures, clean
from hgld.report_page.rankings import class_means
from hgld.report_page.runs import Items

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 1500
_ITEMS_A_CLASS = 40
_SIZE = (4.3, 4.5)
_LEGEND_WIDTH, _AROUND_A_NAME = 64, 7  # in letters: what fits below a map; a dot and the space between columns

NameOf = Callable[[int, int], str]


def tsne(points: np.ndarray, seed: int = 0) -> np.ndarray:
    """Two coordinates a point (van der Maaten and Hinton, JMLR 2008), by cosine distance, begun at the first two PCs.

    Args:
        points: (N, D) with N >= 4.
        seed: of the random part.

    Returns:
        (N, 2).
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(points) - 1) / 3)
    init = "pca" if points.shape[1] > 1 else "random"
    with threadpool_limits(1):  # the same picture whatever the machine's cores
        return TSNE(metric="cosine", init=init, perplexity=perplexity, random_state=seed).fit_transform(points)


def draw_maps(
    figures: Figures, items: Items, levels: Sequence[str], name_of: NameOf, run: str, split: str
) -> list[Figure]:
    """One map a level: items of the largest classes at the finest, class means at the others.

    Args:
        figures: draws.
        items: the gallery of an evaluation.
        levels: finest first.
        name_of: the name of a class from level and id.
        run: name of the run.
        split: name of the split.
    """
    drawn = []
    means, labels, sizes = class_means(items)
    kept = np.sort(np.argsort(-sizes, kind="stable")[:MOST_CLASSES])
    left_out = f" The {len(kept)} largest of {len(sizes)} classes." if len(kept) < len(sizes) else ""
    if len(kept) >= 4 and len(levels) > 1:
        places = tsne(means[kept])
        for level in range(1, len(levels)):
            note = f"A dot is the mean embedding of one {clean(levels[0])}; t-SNE by cosine distance.{left_out}"
            title = f"{clean(run)}: class means by {clean(levels[level])}"
            draw = _scatter(places, labels[kept, level], lambda label, level=level: name_of(level, label))
            drawn.append(figures.draw(f"{split}-map-{run}-{levels[level]}", title, draw, note=note, size=_SIZE))
    chosen = _items_of_largest(items, sizes)
    if len(chosen) >= 4:
        unit = prepare_embeddings(np.asarray(items.embeddings[chosen]), "item").numpy()
        draw = _scatter(tsne(unit), items.labels[chosen, 0], lambda label: name_of(0, label))
        note = f"A dot is an item of one of the {len(SERIES)} largest classes, at most {_ITEMS_A_CLASS} of each."
        title = f"{clean(run)}: items by {clean(levels[0])}"
        drawn.append(figures.draw(f"{split}-map-{run}-{levels[0]}", title, draw, note=note, size=_SIZE))
    return drawn


def _items_of_largest(items: Items, sizes: np.ndarray) -> np.ndarray:
    finest = items.labels[:, 0]
    classes = np.unique(finest[finest >= 0])
    largest = classes[np.argsort(-sizes, kind="stable")[: len(SERIES)]]
    return np.sort(np.concatenate([np.flatnonzero(finest == c)[:_ITEMS_A_CLASS] for c in largest] or [[]]).astype(int))


def _scatter(places: np.ndarray, labels: np.ndarray, name_of: Callable[[int], str]) -> "Callable[[Axes], None]":
    """Dots in a colour a class for the largest classes, grey for the others."""
    classes, sizes = np.unique(labels[labels >= 0], return_counts=True)
    largest = classes[np.argsort(-sizes, kind="stable")[: len(SERIES)]]

    def draw(axes: "Axes") -> None:
        others = ~np.isin(labels, largest)
        dots = {"s": float(np.clip(4000 / len(places), 8, 34)), "linewidths": 0}
        if others.any():
            axes.scatter(*places[others].T, color=OTHERS, label="others", alpha=0.6, **dots)
        for series, label in enumerate(largest.tolist()):
            mine = labels == label
            axes.scatter(*places[mine].T, color=SERIES[series], label=clean(name_of(label), 22), **dots)
        axes.set_axis_off()
        columns = legend_columns([str(text) for text in axes.get_legend_handles_labels()[1]])
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns, markerscale=1.6, handletextpad=0.1)

    return draw


def legend_columns(names: Sequence[str], most: int = 3) -> int:
    """As many columns as fit below a map; a legend fills them one after another."""
    for columns in range(most, 1, -1):
        rows = -(-len(names) // columns)
        widths = [max(map(len, names[i : i + rows])) for i in range(0, len(names), rows)]
        if sum(widths) + _AROUND_A_NAME * len(widths) <= _LEGEND_WIDTH:
            return columns
    return 1
