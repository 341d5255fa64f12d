"""The map of an embedding: t-SNE of a sample of the items, among which all other items are placed."""

import base64
import json
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hgld.evaluation.scores import prepare_embeddings
from hgld.report_page.figures import OTHERS, SERIES, Figures, clean, draw_legend
from hgld.report_page.runs import Items

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 50_000
_MOST_ANCHORS = 600  # t-SNE takes 2 ms per point
_ITERATIONS = 500  # 1,000, scikit-learn's default, take twice as long and improve the trustworthiness by less than 0.01
_FEWEST_POINTS = 4
_LEAST_SPREAD = 1e-6  # spread of unit rows about their mean; rounding alone causes up to a tenth of this
_NEAREST = 5  # anchors that place another item
_TEMPERATURE = 0.05  # of the anchors' weights, as of the votes of neighbours
_MOST_PICTURED = 40
_GRID = 4095  # coordinates are whole numbers from 0, which need less room on the page

NameOf = Callable[[int, int], str]
"""Function that names a class, given its level and id."""


def tsne(points: np.ndarray, seed: int = 0) -> np.ndarray:
    """Map points to the plane by t-SNE (van der Maaten and Hinton, JMLR 2008) of cosine distances.

    It starts at the points' first two principal components.

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
    with threadpool_limits(1):  # one thread, so that the map does not depend on the number of cores
        made = TSNE(metric="cosine", init=init, perplexity=perplexity, max_iter=_ITERATIONS, random_state=seed)
        return made.fit_transform(rows)


def why_no_map(points: np.ndarray) -> str:
    """Return the reason why unit rows cannot be drawn as a map; empty if they can."""
    if len(points) < _FEWEST_POINTS:
        return f"it has {len(points)} images, and a map needs {_FEWEST_POINTS}"
    rows = points.astype(np.float64)
    spread = float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))
    return "" if spread > _LEAST_SPREAD else "its images are almost equal, as from a collapsed model"


Placed = tuple[np.ndarray, np.ndarray, np.ndarray, str]
"""Result of :func:`place_items`."""


def place_items(items: Items) -> Placed:
    """Place items in the plane: a sample by t-SNE, every other item among its nearest items of the sample.

    Args:
        items: embeddings and labels.

    Returns:
        rows: (P,) items of the map, sorted by finest class; a random sample, with seed 0, if there are too many.
        places: (P, 2) positions.
        anchors: (A,) indices in ``rows`` of the sample that t-SNE placed, with as many items per class as it has.
        reason: why there is no map; empty if there is one.
    """
    rows = np.arange(len(items.labels))
    if len(rows) > MOST_POINTS:
        rows = np.random.default_rng(0).permutation(rows)[:MOST_POINTS]
    rows = rows[np.lexsort((rows, items.labels[rows, 0]))]
    anchors = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ANCHORS)).astype(int))
    unit = prepare_embeddings(np.asarray(items.embeddings[rows[anchors]]), "item").numpy()
    if reason := why_no_map(unit):
        return rows, np.zeros((len(rows), 2)), anchors, reason
    fixed, places = tsne(unit), np.empty((len(rows), 2))
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096]
        cosines = prepare_embeddings(np.asarray(items.embeddings[part]), "item").numpy() @ unit.T
        near = np.argpartition(-cosines, min(_NEAREST, len(unit)) - 1, axis=1)[:, :_NEAREST]
        nearest = np.take_along_axis(cosines, near, axis=1)
        weights = np.exp((nearest - nearest.max(axis=1, keepdims=True)) / _TEMPERATURE)[..., None]
        places[start : start + 4096] = (weights * fixed[near]).sum(axis=1) / weights.sum(axis=1)
    places[anchors] = fixed
    return rows, places, anchors, ""


def describe_map(
    figures: Figures, items: Items, placed: Placed, levels: Sequence[str], name_of: NameOf, run: str, split: str
) -> tuple[dict[str, Any] | None, str]:
    """Return the variables of the map in the page's template, and the reason if there is no map.

    Args:
        figures: object that keeps figures; if it keeps files, the map is also drawn as one figure per level.
        items: gallery of an evaluation.
        placed: their places, which :func:`place_items` returned.
        levels: names of the levels, finest first.
        name_of: names of the classes.
        run: name of the run.
        split: name of the split.
    """
    rows, places, anchors, reason = placed
    if reason:
        return None, f"{run}: no map of the embedding, because {reason}."
    low, span = places.min(axis=0), max(float(np.ptp(places, axis=0).max()), 1e-12)
    grid = np.round((places - low) / span * _GRID).astype(int)
    described = []
    for level, name in enumerate(levels):
        classes, own = np.unique(items.labels[rows, level], return_inverse=True)
        spelled = [name_of(level, label) for label in classes.tolist()]
        described.append({"name": name, "names": spelled, "classes": own.tolist()})
    keys = [str(row) if items.keys is None else items.keys[row] for row in rows.tolist()]
    data = {"x": grid[:, 0].tolist(), "y": grid[:, 1].tolist(), "levels": described, "keys": keys}
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode("utf-8", errors="replace"), 9)
    if figures.keeps_files:
        for level, name in enumerate(levels):
            draw = _scatter(places, items.labels[rows, level], level, name_of)
            title = f"{clean(run)}: images by {clean(name)}"
            figures.draw(f"{split}-map-{run}-{name}", title, draw, term="map", height=3.4)
    figures.terms["map"] = None  # the glossary explains the map
    shown = anchors[np.unique(np.linspace(0, len(anchors) - 1, _MOST_PICTURED).astype(int))]
    note = f"A dot is one of {len(rows):,} images"
    note += f" (sampled with seed 0 from {len(items.labels):,})" if len(rows) < len(items.labels) else ""
    if len(anchors) < len(rows):
        note += f". t-SNE by cosine distance placed {len(anchors):,} of them; every other image is at the weighted "
        note += f"mean of its {_NEAREST} nearest of these"
    else:
        note += ", placed by t-SNE of cosine distances"
    pictured = [(int(at), keys[at], name_of(0, int(items.labels[rows[at], 0]))) for at in shown]
    made = {"packed": base64.b64encode(packed).decode(), "note": f"{note}.", "pictured": pictured}
    return made | {"points": len(rows)}, ""


def _scatter(points: np.ndarray, labels: np.ndarray, level: int, name_of: NameOf) -> "Callable[[Axes], None]":
    """Return a function that draws dots: a colour for each of the largest classes, grey for all other classes."""
    classes, sizes = np.unique(labels[labels >= 0], return_counts=True)
    largest = classes[np.argsort(-sizes, kind="stable")[: len(SERIES)]].tolist()
    others = ~np.isin(labels, largest)

    def draw(axes: "Axes") -> None:
        look = {"s": float(np.clip(2400 / len(points), 1, 20)), "linewidths": 0, "rasterized": len(points) > 5_000}
        entries = [(axes.scatter(*points[others].T, color=OTHERS, alpha=0.6, **look), "others")] if others.any() else []
        for label, color in zip(largest, SERIES, strict=False):
            artist = axes.scatter(*points[labels == label].T, color=color, **look)
            entries.append((artist, clean(name_of(level, label), 22)))
        axes.set_axis_off()
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
        draw_legend(axes, entries, **below, ncols=2, markerscale=1.6, handletextpad=0.1)

    return draw
