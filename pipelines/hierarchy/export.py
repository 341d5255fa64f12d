"""The export stage, which writes tables of labels at all levels, the tree, and the dropped landmarks or items.

A clustered group keeps its coarser labels, even if it was renamed. If decisions made a group, it gets the coarser
labels on which the clustered groups of its names agree, and no coarser labels if these groups differ. Labels set by
people override both; the coarsest label comes from the review. Every class has one parent. If people gave groups of one
coarser class different tops, the top with most landmarks keeps the class. Every other top gets a new class, ``CLASS
(TOP)``.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import polars as pl

from hgld.errors import some
from hgld.hierarchy import Hierarchy
from hgld.tables import read_parquet

from ..stage import Progress, StageResult, StageRun, files_of, run_stage
from .groups.given import NONE
from .groups.levels import HUMAN_MADE, LANDMARK_LEVELS, LANDMARKS, NATURAL, LevelPlan
from .names.landmark_tables import KEY, with_item_columns

VERSION = 4  # version 4 added the classes of all levels from the review
LABEL_SUFFIX = "_label_to_hierarchical.csv"
RAW_NAMES = "raw_names.csv"
LABELS = "labels.csv"
HIERARCHY = "hierarchy.parquet"
DROPPED = "dropped.parquet"
INNER = ("landmarks.parquet", "groups.parquet")
"""Tables for later stages, which are not results of a build."""

COLUMNS = ("landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made")
_INPUTS = (
    *("scrape/landmarks", "scrape/dropped", "clean/landmarks", "clean/dropped"),
    *(f"review/{name}" for name in ("names", "groups", "items", "dropped")),
)


def run(root: Path, stages: Mapping[str, StageRun], progress: Progress, *, plan: LevelPlan = LANDMARKS) -> StageRun:
    """Write all of the build's tables; if one cannot be written, write none.

    Landmarks get ``{split}_label_to_hierarchical.csv`` with GLDv2's columns, quoting and line ends, sorted by landmark
    id; ``supercategory`` is the scraped name. The field of the top level is empty if the top is undecided, or if the
    top classes are not natural and human-made. ``raw_names.csv`` has every requested landmark. Items, and landmarks
    with other levels than GLDv2's, get ``labels.csv``: id, name, and one column per level above the items.
    ``dropped.parquet`` has the landmarks or items without labels, with the excluding stage and its reason.

    ``groups.parquet`` has a row for every reviewed group: label, and a column per level above the items. The first of
    these columns repeats the label, but is null for "none of these". ``landmarks.parquet`` has the labelled landmarks
    with their names and groups.
    """
    inputs = files_of(stages, *(f"{file}.parquet" for file in _INPUTS))
    work = partial(_export, inputs, plan, progress)
    return run_stage("export", root, version=VERSION, config={"plan": asdict(plan)}, inputs=inputs, work=work)


def _export(inputs: Mapping[str, Path], plan: LevelPlan, progress: Progress, directory: Path) -> StageResult:
    table = {role.removesuffix(".parquet"): read_parquet(file) for role, file in inputs.items()}
    scrape, levels = table["scrape/landmarks"], _levels(table, plan)
    joined, notes = _join(table)
    placed = joined.drop_nulls("hierarchical_label")
    levels.write_parquet(directory / "groups.parquet")
    placed.select("split", "landmark_id", "category", "title", "supercategory", "name", *COLUMNS[3:]).write_parquet(
        directory / "landmarks.parquet"
    )
    splits, are_items = scrape["split"].unique().sort().to_list(), "id" in scrape.columns
    if not are_items:
        labelled = placed.select("split", *COLUMNS)
        if plan.into:
            none = pl.col("hierarchical_label") == NONE
            labelled = labelled.with_columns(hierarchical_label=pl.when(~none).then("hierarchical_label"))
        if {*plan.top} != {NATURAL, HUMAN_MADE}:  # GLDv2's column allows only these two classes
            labelled = labelled.with_columns(natural_or_human_made=pl.lit(None, pl.String))
        for split in splits:
            _write_csv(labelled.filter(split=split).drop("split"), directory / f"{split}{LABEL_SUFFIX}")
        write_raw_names(scrape, directory / RAW_NAMES)
    named = with_levels(placed, with_item_columns(scrape), levels, plan)
    if are_items or plan.names != LANDMARK_LEVELS:
        _write_csv(named.select("id", "name", *plan.names[1:]), directory / LABELS)
    tree = {plan.names[0]: named["key"], **{level: named[level] for level in plan.names[1:]}}
    Hierarchy.from_columns({level: labels.to_list() for level, labels in tree.items()}).to_parquet(
        directory / HIERARCHY
    )
    dropped = _dropped(table, joined, are_items)
    dropped.write_parquet(directory / DROPPED)
    progress("write label tables", 1, 1)
    counts = {
        "items" if are_items else "landmarks": len(placed),
        "without labels": len(dropped),
        "names": placed["name"].n_unique(),
        "groups": placed["hierarchical_label"].n_unique(),
        **{level: levels[level].drop_nulls().n_unique() for level in plan.above},
        **{f"{plan.names[1]} without {level}": n for level in plan.above if (n := levels[level].null_count())},
        **({"put elsewhere by decision": n} if (n := joined["put_label"].count()) else {}),
    }
    details = {"splits": splits, "levels": list(plan.names)}
    by_people = dropped.filter(stage="review")["reason"].value_counts()
    return StageResult(counts, dict(by_people.iter_rows()), notes, details)


def _join(table: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return every named landmark with its name, group and top (null if its name was dropped), and notes."""
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
        .join(table["review/groups"].select("label", "top"), on="label", how="left", maintain_order="left")
        .rename({"label": "hierarchical_label", "top": "natural_or_human_made"})
        .sort(KEY)
    )
    lost = [f"{split}/{id_} (by {who})" for split, id_, who in items.filter(~fits)["split", "id", "who"].iter_rows()]
    note = f"Decisions about these items have no effect, because the item, name or group is gone: {some(lost)}."
    return joined, (note,) if lost else ()


def with_levels(labelled: pl.DataFrame, scrape: pl.DataFrame, levels: pl.DataFrame, plan: LevelPlan) -> pl.DataFrame:
    """Return a row for every labelled item: finest class (``key``), id, original name, and a column per level above.

    The finest class of a landmark is ``"{split}/{landmark_id} {title}"``. The finest class of an item is its name,
    followed by its id in parentheses if several items have the name.
    """
    rows = (
        labelled.join(scrape.select(*KEY, "id"), on=KEY, how="left", maintain_order="left")
        .select(*KEY, "id", "title", given=pl.coalesce("supercategory", "name"), label="hierarchical_label")
        .join(levels, on="label", how="left", maintain_order="left")
        .sort(KEY)
    )
    key, title = pl.format("{}/{}", *KEY), pl.col("title").str.strip_prefix("Category:")
    several = pl.format("{} ({})", "given", "id")
    finest = (
        pl.when(pl.col("id").is_null())
        .then(pl.concat_str(key, title, separator=" ", ignore_nulls=True))
        .when(pl.col("given").is_duplicated())
        .then(several)
        .otherwise("given")
    )
    id_ = pl.coalesce("id", key)
    return rows.select(finest.alias("key"), id_.alias("id"), pl.col("given").alias("name"), *plan.names[1:])


def write_raw_names(scrape: pl.DataFrame, file: Path) -> None:
    """Write the table of raw scraped names, one row per requested landmark.

    ``names`` and ``class_ids`` hold a landmark's values in the same order, separated by ``|``. A bar or backslash
    inside a name has a backslash before it, and an unknown class is empty.
    """
    escaped = pl.element().str.replace_all("\\", "\\\\", literal=True).str.replace_all("|", "\\|", literal=True)
    rows = scrape.select(
        *KEY,
        "category",
        "status",
        "item",
        "redirected_to",
        pl.col("names").list.eval(escaped).list.join("|"),
        class_ids=pl.col("classes").list.eval(pl.element().fill_null("")).list.join("|"),
    )
    _write_csv(rows.sort(KEY), file)


def _write_csv(rows: pl.DataFrame, file: Path) -> None:
    # polars writes "" for an empty text, but GLDv2's files have an empty cell
    empty_is_null = pl.col(pl.String).replace("", None)
    rows.with_columns(empty_is_null).write_csv(file, quote_style="necessary", line_terminator="\n")


def _dropped(table: Mapping[str, pl.DataFrame], joined: pl.DataFrame, are_items: bool) -> pl.DataFrame:
    """Return a row for every scraped landmark without a label, with the excluding stage and its reason.

    If the names come from a list (--classes), the table has two more columns: id, and row (line in the list). The table
    then begins with the rows of the list that could not be used.
    """
    columns = ["split", "landmark_id", "category", "stage", "reason", "detail"]
    left = joined.filter(pl.col("hierarchical_label").is_null()).join(table["review/dropped"], on="name", how="left")
    why = pl.concat_str("name", pl.concat_str("who", "why", separator=": ", ignore_nulls=True), separator=" - ")
    by_people = left.select(*KEY, "category", reason=pl.lit("name-dropped"), detail=why)
    stages = {"review": by_people, "clean": table["clean/dropped"]}
    drops = pl.concat([rows.with_columns(stage=pl.lit(stage)).select(columns) for stage, rows in stages.items()])
    missing = table["scrape/landmarks"].select(KEY).join(joined.drop_nulls("hierarchical_label"), on=KEY, how="anti")
    rows = missing.join(drops, on=KEY, how="left").sort(KEY)
    if not are_items:
        return rows.select(columns)
    ids = table["scrape/landmarks"].select(*KEY, "id")
    unread = table["scrape/dropped"].with_columns(stage=pl.lit("scrape")).rename({"landmark_id": "id"})
    return pl.concat(
        [unread, rows.select(columns).join(ids, on=KEY, how="left", maintain_order="left")], how="diagonal"
    ).select(*columns, "id", "row")


# -- levels of groups --------------------------------------------------------------------------------------------------


def _levels(table: Mapping[str, pl.DataFrame], plan: LevelPlan) -> pl.DataFrame:
    groups = table["review/groups"]
    rows = groups["classes"].to_list()
    one_parent_each(rows, groups["landmarks"].to_list())
    own = [None if plan.into and label == NONE else label for label in groups["label"]]
    columns = {plan.names[1]: own, **{level: [row[depth] for row in rows] for depth, level in enumerate(plan.above)}}
    return pl.DataFrame({"label": groups["label"], **columns}, schema=dict.fromkeys(["label", *columns], pl.String))


def one_parent_each(rows: list[list[str | None]], sizes: Sequence[int]) -> None:
    """Split, in place, the classes that have several parents, beginning at the coarsest level."""
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
