"""Retrieval galleries: a query and its first items, whose frames show the grade shared with the query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hgld.report_page.embedding_map import NameOf
from hgld.report_page.figures import grade_index
from hgld.report_page.rankings import FirstRanks
from hgld.report_page.runs import Evaluation, Items

SHOWN = 9


@dataclass(frozen=True)
class Tile:
    """One image of a gallery.

    Attributes:
        key: key of the item, whose image the page shows if it has room; None if the files have no keys.
        frame: index of the frame's colour (:func:`hgld.report_page.figures.grade_index`); None for a query.
        caption: finest class of the item.
        shared: finest level that the item shares with the query, in words.
        says: text for tooltips and screen readers: classes and the level shared with the query; the page adds the
            image's path.
    """

    key: str | None
    frame: int | None
    caption: str
    shared: str
    says: str


@dataclass(frozen=True)
class Strip:
    """A query with its first ranks in one or several runs."""

    query: Tile
    value: str
    ranked: tuple[tuple[str, tuple[Tile, ...]], ...]


def strips(
    queries: Sequence[int],
    runs: Mapping[str, Evaluation],
    first: Mapping[str, FirstRanks],
    metric: str,
    name_of: NameOf,
    shown: int = SHOWN,
) -> list[Strip]:
    """Make the galleries of selected queries, with one row of ranked images per run.

    Args:
        queries: indices of the queries.
        runs: evaluations with embeddings, of the same queries.
        first: first ranks of each run.
        metric: metric whose value the page shows next to the query, if the runs have it per query.
        name_of: function that returns the name of a class, given level and id.
        shown: maximum number of ranks.
    """
    made = []
    for query in queries:
        rows, values = [], []
        head = Tile(None, None, "", "", "")
        for name, evaluation in runs.items():
            assert evaluation.ranked is not None
            levels, asked = evaluation.levels, evaluation.ranked.query
            head = _tile(asked, query, None, "query", "", levels, name_of) if not rows else head
            found = [ranks[query, :shown].tolist() for ranks in (first[name].items, first[name].grades)]
            tiles = [
                _tile(
                    evaluation.ranked.other_side,
                    item,
                    grade_index(grade, len(levels)),
                    f"same {levels[len(levels) - grade]}" if grade else "nothing in common",
                    f"rank {place}, ",
                    levels,
                    name_of,
                )
                for place, (item, grade) in enumerate(zip(*found, strict=True), 1)
            ]
            rows.append((name, tuple(tiles)))
            per_query = evaluation.report.per_query
            if metric in per_query.columns and len(per_query):
                values.append(f"{100 * per_query[metric][query]:.1f}")
        made.append(Strip(head, f"{metric} {' → '.join(values)}" if values else "", tuple(rows)))
    return made


def _tile(
    side: Items, item: int, frame: int | None, shared: str, place: str, levels: Sequence[str], name_of: NameOf
) -> Tile:
    key = None if side.keys is None else side.keys[item]
    names = [name_of(level, int(label)) for level, label in enumerate(side.labels[item])]
    classes = "; ".join(f"{level}: {name}" for level, name in zip(levels, names, strict=True))
    return Tile(key, frame, names[0], shared, f"{place}{shared}. {classes}." + ("" if key else f" item {item}"))
