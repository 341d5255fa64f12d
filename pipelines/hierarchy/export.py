"""The export stage: label tables, the table of raw scraped names, the hierarchy, and the dropped landmarks or items."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import polars as pl

from hgld.errors import TableError
from hgld.hierarchy import Hierarchy
from hgld.tables import read_parquet

from ..stage import Progress, StageResult, StageRun, files_of, run_stage
from .groups.given import NONE
from .groups.levels import HUMAN_MADE, LANDMARK_LEVELS, LANDMARKS, NATURAL, LevelPlan
from .names.landmark_tables import KEY, with_item_columns

VERSION = 2  # 2: levels of any name
LABEL_SUFFIX = "_label_to_hierarchical.csv"
RAW_NAMES = "raw_names.csv"
LABELS = "labels.csv"
HIERARCHY = "hierarchy.parquet"
DROPPED = "dropped.parquet"
COLUMNS = ("landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made")


def run(root: Path, stages: Mapping[str, StageRun], progress: Progress, *, plan: LevelPlan = LANDMARKS) -> StageRun:
    """Write the build's tables, all or none of them.

    Landmarks get ``{split}_label_to_hierarchical.csv`` with GLDv2's columns, quoting and line ends, sorted by landmark
    id; ``supercategory`` is the name as scraped, an undecided top level, or one of
    other classes than natural and human-made, is an empty field. ``raw_names.csv`` has every landmark that was asked
    for. Items, and landmarks at other levels than GLDv2's, get ``labels.csv``: id, name, and one column per level above
    the items. ``dropped.parquet`` has those without labels, with the stage that left them out and its reason.

    Raises:
        TableError: a landmark is neither labelled nor dropped.
    """
    files = (
        "scrape/landmarks",
        "scrape/dropped",
        "clean/dropped",
        "assign/landmarks",
        "assign/dropped",
        "assign/groups",
    )
    inputs = files_of(stages, *(f"{file}.parquet" for file in files))

    def work(directory: Path) -> StageResult:
        scrape, unread, clean_dropped, placed, assign_dropped, levels = map(read_parquet, inputs.values())
        labelled, items = placed, "id" in scrape.columns
        splits = scrape["split"].unique().sort().to_list()
        if plan.into:
            none = pl.col("hierarchical_label") == NONE
            labelled = labelled.with_columns(hierarchical_label=pl.when(~none).then("hierarchical_label"))
        if {*plan.top} != {NATURAL, HUMAN_MADE}:  # another top level is no answer to GLDv2's question
            labelled = labelled.with_columns(natural_or_human_made=pl.lit(None, pl.String))
        if not items:
            for split in splits:
                rows = labelled.filter(pl.col("split") == split).select(COLUMNS).sort("landmark_id")
                _write_csv(rows, directory / f"{split}{LABEL_SUFFIX}")
            write_raw_names(scrape, directory / RAW_NAMES)
        named = with_levels(placed, with_item_columns(scrape), levels, plan)
        if items or plan.names != LANDMARK_LEVELS:
            _write_csv(named.select("id", "name", *plan.names[1:]), directory / LABELS)
        tree = {plan.names[0]: named["key"], **{level: named[level] for level in plan.names[1:]}}
        Hierarchy.from_columns({level: labels.to_list() for level, labels in tree.items()}).to_parquet(
            directory / HIERARCHY
        )
        dropped = _all_dropped(scrape, labelled, {"assign": assign_dropped, "clean": clean_dropped})
        if items:
            dropped = _with_unread(dropped, scrape, unread)
        dropped.write_parquet(directory / DROPPED)
        progress("write label tables", 1, 1)
        counts = {
            "items" if items else "landmarks": len(labelled),
            "without labels": len(dropped),
            "names": labelled["name"].n_unique(),
        }
        return StageResult(counts, details={"splits": splits, "levels": list(plan.names)})

    config = {"plan": asdict(plan)}
    return run_stage("export", root, version=VERSION, config=config, inputs=inputs, work=work)


def with_levels(labelled: pl.DataFrame, scrape: pl.DataFrame, levels: pl.DataFrame, plan: LevelPlan) -> pl.DataFrame:
    """Return a row for every labelled item: its finest class as ``key``, id, name as given, a column per level above.

    The finest class of a landmark is ``"{split}/{landmark_id} {title}"``, that of an item its name, followed by its id
    in parentheses where several items have that name.
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
    """Write the table of raw scraped names, one row per landmark that was asked for.

    ``names`` and ``class_ids`` hold a landmark's values in the same order, joined by ``|``; a bar or backslash inside
    a name has a backslash before it, an unknown class is empty.
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
    empty_is_null = pl.col(pl.String).replace("", None)  # polars would write "" for an empty text, csv.writer nothing
    rows.with_columns(empty_is_null).write_csv(file, quote_style="necessary", line_terminator="\n")


def _all_dropped(scrape: pl.DataFrame, labelled: pl.DataFrame, stages: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return a row for every scraped landmark without a label, with the last stage that excluded it and its reason."""
    columns = ["split", "landmark_id", "category", "stage", "reason", "detail"]
    rejected = [rows.with_columns(stage=pl.lit(stage)).select(columns) for stage, rows in stages.items()]
    drops = pl.concat(rejected).unique(KEY, keep="first", maintain_order=True)
    missing = scrape.select(KEY).join(labelled, on=KEY, how="anti")
    rows = missing.join(drops, on=KEY, how="left").sort(KEY)
    lost = rows.filter(pl.col("reason").is_null())
    if len(lost):
        raise TableError(
            f"stage 'export': {len(lost)} landmarks have neither a label nor a reason, the first is "
            f"{lost['split'][0]}/{lost['landmark_id'][0]}. The stages' folders were mixed: remove stages/clean and "
            "stages/assign and run the same command again."
        )
    return rows.select(columns)


def _with_unread(dropped: pl.DataFrame, scrape: pl.DataFrame, unread: pl.DataFrame) -> pl.DataFrame:
    """Return the drops of items with their ids, after the rows of the list that became no item, with their lines."""
    ids = scrape.select(*KEY, "id")
    of_items = dropped.join(ids, on=KEY, how="left", maintain_order="left").with_columns(row=pl.lit(None, pl.Int64))
    rows = unread.select(
        "split",
        pl.lit(None, pl.Int64).alias("landmark_id"),
        "category",
        pl.lit("scrape").alias("stage"),
        "reason",
        pl.lit(None, pl.String).alias("detail"),
        pl.col("landmark_id").alias("id"),
        "row",
    )
    return pl.concat([rows, of_items.select(rows.columns)])
