"""The assign stage: labels of every reviewed group at all levels, and landmarks or items joined with them.

A group of the clustering keeps its labels, whatever it is called now. A group that decisions made has the labels that
the groups of its names agree on, and none where they differ. What people set goes before both; the coarsest label is
the review's. Where people gave groups of one coarser class different tops, the top of most landmarks keeps that class,
and each of the others gets one of its own, ``CLASS (TOP)``, so that every class has one parent.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import polars as pl

from hgld.tables import read_parquet

from ..stage import Progress, StageResult, StageRun, files_of, run_stage, write_dropped
from .groups.given import NONE
from .groups.levels import LANDMARKS, LevelPlan
from .names.landmark_tables import KEY, with_item_columns

VERSION = 5  # 5: the levels of groups too
_COLUMNS = {
    "split": pl.String,
    "landmark_id": pl.Int64,
    "category": pl.String,
    "title": pl.String,
    "supercategory": pl.String,
    "name": pl.String,
    "hierarchical_label": pl.String,
    "natural_or_human_made": pl.String,
}
_MOST_NOTES = 10


def run(root: Path, stages: Mapping[str, StageRun], progress: Progress, *, plan: LevelPlan = LANDMARKS) -> StageRun:
    """Run the stage: ``landmarks.parquet``, ``groups.parquet`` and ``dropped.parquet``.

    ``groups.parquet`` has a row for every reviewed group: label, and a column per level above the items. The first of
    these columns is the label again; it is null for the names that fit no given group.

    Raises:
        TableError: the stages' tables do not belong together.
    """
    reviewed = ("names", "groups", "set_levels", "items", "dropped")
    before = ("scrape/landmarks", "clean/landmarks", "cluster/names", "toplevel/levels")
    files = [*before, *(f"review/{name}" for name in reviewed)]
    inputs = files_of(stages, *(f"{file}.parquet" for file in files))
    config = {"levels": list(plan.names), "into": plan.into}
    return run_stage("assign", root, version=VERSION, config=config, inputs=inputs, work=partial(_join, inputs, plan))


def _join(inputs: Mapping[str, Path], plan: LevelPlan, directory: Path) -> StageResult:
    table = {role.removesuffix(".parquet"): read_parquet(file) for role, file in inputs.items()}
    levels = _levels(table, plan)
    levels.write_parquet(directory / "groups.parquet")
    tops = table["review/groups"].select("label", natural_or_human_made="top")
    ids = with_item_columns(table["scrape/landmarks"]).select(
        *KEY, id=pl.coalesce("id", pl.col(KEY[1]).cast(pl.String))
    )
    ids = ids.join(table["clean/landmarks"].select(KEY), on=KEY, how="semi")
    items = table["review/items"].join(ids, on=("split", "id"), how="left")
    fits = pl.col("landmark_id").is_not_null() & pl.col("label").is_not_null()
    put = items.filter(fits).select(*KEY, put_name="name", put_label="label")
    joined = (
        table["clean/landmarks"]
        .join(table["review/names"].select("name", "label"), on="name", how="left", maintain_order="left")
        .join(put, on=KEY, how="left", maintain_order="left")
        .with_columns(name=pl.coalesce("put_name", "name"), label=pl.coalesce("put_label", "label"))
        .join(tops, on="label", how="left", maintain_order="left")
    )
    labelled = joined.drop_nulls("label").rename({"label": "hierarchical_label"}).sort(KEY)
    landmarks = labelled.select(pl.col(name).cast(dtype) for name, dtype in _COLUMNS.items())
    left = joined.filter(pl.col("label").is_null()).join(table["review/dropped"], on="name", how="left")
    why = pl.concat_str("name", pl.concat_str("who", "why", separator=": ", ignore_nulls=True), separator=" - ")
    drops = left.select(*KEY, "category", reason=pl.lit("name-dropped"), detail=why).sort(KEY)
    landmarks.write_parquet(directory / "landmarks.parquet")
    counts = {
        "landmarks": len(landmarks),
        "names": landmarks["name"].n_unique(),
        "groups": landmarks["hierarchical_label"].n_unique(),
        **{level: levels[level].drop_nulls().n_unique() for level in plan.above},
        **{f"{plan.names[1]} without {level}": n for level in plan.above if (n := levels[level].null_count())},
        **({"put elsewhere by decision": len(put)} if len(put) else {}),
    }
    notes = [
        f"A decision of {row['who']} about the item {row['split']}/{row['id']} fits nothing: "
        + ("no item of this id has a name." if row["landmark_id"] is None else "its new name or group is gone.")
        for row in items.filter(~fits).iter_rows(named=True)
    ]
    if (more := len(notes) - _MOST_NOTES) > 0:
        notes[_MOST_NOTES:] = [f"{more} more decisions about single items fit nothing."]
    return StageResult(counts, write_dropped(directory, drops), notes=tuple(notes))


# -- levels of groups --------------------------------------------------------------------------------------------------


def _levels(table: Mapping[str, pl.DataFrame], plan: LevelPlan) -> pl.DataFrame:
    groups = table["review/groups"]
    rows = labels_above(table["cluster/names"], table["toplevel/levels"], table["review/names"], groups, plan.above)
    set_at = {(label, level): name for label, level, name, _ in table["review/set_levels"].iter_rows()}
    for label, row in zip(groups["label"].to_list(), rows, strict=True):
        row[:] = [set_at.get((label, level), name) for level, name in zip(plan.above, row, strict=True)]
    one_parent_each(rows, groups["landmarks"].to_list())
    own = [None if plan.into and label == NONE else label for label in groups["label"]]
    columns = {plan.names[1]: own, **{level: [row[depth] for row in rows] for depth, level in enumerate(plan.above)}}
    return pl.DataFrame({"label": groups["label"], **columns}, schema=dict.fromkeys(["label", *columns], pl.String))


def labels_above(
    names: pl.DataFrame, levels: pl.DataFrame, reviewed: pl.DataFrame, groups: pl.DataFrame, above: Sequence[str]
) -> list[list[str | None]]:
    """Return the labels of every reviewed group at the levels above it, finest first; the last one is the review's.

    Args:
        names: cluster's ``names.parquet``.
        levels: the top-level stage's ``levels.parquet``.
        reviewed: review's ``names.parquet``.
        groups: review's ``groups.parquet``.
        above: names of the levels.
    """
    known = {(group, level): label for group, level, label in levels.select("group", "level", "label").iter_rows()}
    sources = dict(reviewed.select("name", "label").join(names, on="name").group_by("label").agg("group").iter_rows())
    rows = []
    for label, group, top in groups.select("label", "group", "top").iter_rows():
        of = sources.get(label, []) if group is None else [group]
        found = [{known.get((source, level)) for source in of} for level in above[:-1]]
        rows.append([*(one.pop() if len(one) == 1 else None for one in found), top] if above else [])
    return rows


def one_parent_each(rows: list[list[str | None]], sizes: Sequence[int]) -> None:
    """Divide, in place, the classes that are below several classes of the next coarser level, the coarsest first."""
    for depth in reversed(range(len(rows[0]) - 1 if rows else 0)):
        parents: dict[str, Counter[str | None]] = defaultdict(Counter)
        for row, size in zip(rows, sizes, strict=True):
            if (label := row[depth]) is not None:
                parents[label][row[depth + 1]] += size
        main = {label: min(found, key=lambda p: (-found[p], p is None, p or "")) for label, found in parents.items()}
        taken = {row[depth] for row in rows}
        for row in rows:
            label, parent = row[depth], row[depth + 1]
            if label is not None and parent != main[label]:
                free = f"{label} ({parent or 'undecided'})"
                while free in taken:
                    free += "'"
                row[depth] = free
