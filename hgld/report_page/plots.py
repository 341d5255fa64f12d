"""Figures of one evaluation for papers: the tree by error, confusions, examples, and precision-recall curves."""

from typing import TYPE_CHECKING

import numpy as np

from hgld.errors import ConfigError, InputError
from hgld.report_page.curves import RECALLS, MeanCurves
from hgld.report_page.embedding_map import NameOf
from hgld.report_page.figures import GRADES, INK, SERIES, clean
from hgld.report_page.gallery import Strip
from hgld.report_page.mistakes import describe_mistakes
from hgld.report_page.rankings import first_ranks, gain_of
from hgld.report_page.runs import Evaluation
from hgld.tree_drawing import plot_tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hgld.data.dataset import ShardDataset

KINDS = ("tree", "confusion", "strips", "curves")


def plot_evaluation(
    kind: str,
    evaluation: Evaluation,
    name_of: NameOf,
    metric: str,
    dataset: "ShardDataset | None" = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw one figure of an evaluation.

    Args:
        kind: ``tree`` (classes of the queries by error at rank 1), ``confusion`` (classes of the second finest level
            and of their first results), ``strips`` (queries with their first results) or ``curves`` (precision and
            recall per level).
        evaluation: an evaluation with embeddings.
        name_of: names of the classes.
        metric: metric that the examples state.
        dataset: dataset with the images for ``strips``.
        ax: axes to draw on. Default: the axes of a new figure.

    Raises:
        ConfigError: the kind is unknown, the evaluation has no embeddings, or ``strips`` has no dataset.
        InputError: no query has its finest class in the gallery.
    """
    from matplotlib import pyplot
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}.")
    if evaluation.ranked is None:
        raise ConfigError(f"a plot needs the embeddings of the evaluation: {evaluation.why_not}.")
    if kind == "strips" and dataset is None:
        raise ConfigError("strips show images: give the dataset to make_report, data=...")
    levels = evaluation.levels
    curves = MeanCurves(gain_of(evaluation), len(levels))
    is_normalized = bool(evaluation.report.settings.get("normalized", True))
    first = first_ranks(evaluation.ranked, normalize=is_normalized, visit=curves.add if kind == "curves" else None)
    if ax is None:
        size = {"tree": (9, 0.6 * len(levels) + 0.8), "strips": (9, 6.5)}.get(kind, (4.5, 3.5))
        _, ax = pyplot.subplots(figsize=size, layout="constrained")
    if kind == "curves":
        return _plot_curves(ax, curves, levels)
    made = describe_mistakes(evaluation, first, name_of, metric)
    if made is None:
        raise InputError("no query has its finest class in the gallery, so no result is right or wrong.")
    if kind == "confusion":
        return _plot_confusion(ax, made["level"], made["matrix"])
    if kind == "strips":
        assert dataset is not None
        return _plot_strips(ax, [strip for _, strips in made["outcomes"] for strip in strips], dataset)
    labels = evaluation.ranked.query.labels[first.findable]
    classes, example, own, sizes = np.unique(labels[:, 0], True, True, True)
    error = np.bincount(own, first.grades[first.findable, 0] < len(levels), len(classes)) / sizes
    plot_tree(levels, name_of, labels[example], sizes, ax, error)
    colors = ScalarMappable(Normalize(0, 1), "YlOrBr")
    ax.figure.colorbar(colors, ax=ax, label="error at rank 1")
    return ax


def _plot_curves(ax: "Axes", curves: MeanCurves, levels: list[str]) -> "Axes":
    for i, (level, curve) in enumerate(zip([*levels, "hierarchy"], curves.means(), strict=True)):
        if curve is not None:
            style = "--" if i == len(levels) else "-"
            ax.plot(RECALLS, curve, style, color=SERIES[i % len(SERIES)], label=f"{clean(level)} ({curve.mean():.3f})")
    ax.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    for text in ax.legend(title="area under the curve").get_texts():
        text.set_parse_math(False)
    return ax


def _plot_confusion(ax: "Axes", level: str, matrix: list[tuple[str, int, list[int]]]) -> "Axes":
    names = [clean(name, 24) for name, _, _ in matrix]
    shares = np.array([[count / max(queries, 1) for count in counts] for _, queries, counts in matrix])
    shares = shares.reshape(len(names), len(names))
    ax.imshow(shares, cmap="YlOrBr", vmin=0, vmax=1)
    for row, (_, _, counts) in enumerate(matrix):
        for column, count in enumerate(counts):
            ink = "white" if shares[row, column] > 0.6 else INK
            ax.text(column, row, str(count) if count else "", ha="center", va="center", fontsize=7, color=ink)
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7, parse_math=False)
    ax.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
    ax.set(xlabel=f"{clean(level)} of the first result", ylabel=f"{clean(level)} of the query")
    return ax


def _plot_strips(ax: "Axes", strips: list[Strip], dataset: "ShardDataset") -> "Axes":
    from matplotlib.patches import Rectangle

    place = {key: i for i, key in enumerate(dataset.keys.to_list())}
    for row, strip in enumerate(strips):
        bottom = -1.12 * row - 0.75
        for column, tile in enumerate([strip.query, *strip.ranked[0][1]]):
            left, color = column + 0.05 + 0.25 * bool(column), INK if tile.frame is None else GRADES[tile.frame]
            if tile.key in place:
                image = dataset.image(place[tile.key]).resize((112, 112))
                ax.imshow(np.asarray(image), extent=(left, left + 0.9, bottom, bottom + 0.9))
            ax.add_patch(Rectangle((left, bottom), 0.9, 0.9, fill=False, edgecolor=color, linewidth=2.5))
            look = {"ha": "center", "va": "top", "fontsize": 5, "parse_math": False}
            ax.text(left + 0.45, bottom - 0.04, clean(tile.caption, 14), **look)
    widest = max((len(strip.ranked[0][1]) for strip in strips), default=0)
    ax.set(xlim=(0, widest + 1.3), ylim=(-1.12 * len(strips), 0.3), aspect="equal")
    ax.set_axis_off()
    return ax
