"""The export stage: label tables, the table of raw scraped names, the hierarchy, and the dropped landmarks or items."""

from dataclasses import asdict
from pathlib import Path

import polars as pl

from hgld.errors import TableError
from hgld.hierarchy import Hierarchy
from hgld.tables import read_parquet

from ..stage import Progress, StageResult, StageRun, run_stage
from .groups.given import NONE
from .levels.levels import HUMAN_MADE, LANDMARK_LEVELS, LANDMARKS, NATURAL, LevelPlan
from .levels.reviewed_levels import GROUPS
from .names.landmark_tables import KEY, with_item_columns

VERSION = 2  # 2: levels of any name
LABEL_SUFFIX = "_label_to_hierarchical.csv"
RAW_NAMES = "raw_names.csv"
LABELS = "labels.csv"
HIERARCHY = "hierarchy.parquet"
DROPPED = "dropped.parquet"
COLUMNS = ("landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made")


def run(
    root: Path,
    scraped: StageRun,
    cleaned: StageRun,
    assigned: StageRun,
    levelled: StageRun,
    progress: Progress,
    *,
    plan: LevelPlan = LANDMARKS,
) -> StageRun:
    """Write the build's tables, all or none of them.

    Landmarks get ``{split}_label_to_hierarchical.csv`` with GLDv2's columns, quoting and line ends, sorted by landmark
    id; ``supercategory`` is the name as scraped, an undecided top level, or one of
    other classes than natural and human-made, is an empty field. ``raw_names.csv`` has every landmark that was asked
    for. Items, and landmarks at other levels than GLDv2's, get ``labels.csv``: id, name, and one column a level above
    the items. ``dropped.parquet`` has those without labels, with the stage that left them out and its reason.

    Raises:
        TableError: a landmark is neither labelled nor dropped.
    """
    inputs = {
        "scrape/landmarks": scraped.path("landmarks.parquet"),
        "scrape/dropped": scraped.path("dropped.parquet"),
        "clean/dropped": cleaned.path("dropped.parquet"),
        "assign/landmarks": assigned.path("landmarks.parquet"),
        "assign/dropped": assigned.path("dropped.parquet"),
        "levels/groups": levelled.path(GROUPS),
    }

    def work(directory: Path) -> StageResult:
        scrape, unread, clean_dropped, placed, assign_dropped, levels = map(read_parquet, inputs.values())
        labelled = placed
        items = "id" in scrape.columns
        splits = scrape["split"].unique().sort().to_list()
        progress("write label tables", 0, len(splits))
        if plan.into:
            none = pl.col("hierarchical_label") == NONE
            labelled = labelled.with_columns(hierarchical_label=pl.when(~none).then("hierarchical_label"))
        if {*plan.top} != {NATURAL, HUMAN_MADE}:  # another top level is no answer to GLDv2's question
            labelled = labelled.with_columns(natural_or_human_made=pl.lit(None, pl.String))
        if not items:
            for split in splits:
                write_labels(labelled.filter(pl.col("split") == split), directory / f"{split}{LABEL_SUFFIX}")
            write_raw_names(scrape, directory / RAW_NAMES)
        named = with_levels(placed, with_item_columns(scrape), levels, plan)
        if items or plan.names != LANDMARK_LEVELS:
            _write_csv(named.select("id", "name", *plan.names[1:]), directory / LABELS)
        hierarchy_of(named, plan).to_parquet(directory / HIERARCHY)
        progress("write label tables", len(splits), len(splits))
        dropped = _all_dropped(scrape, labelled, clean_dropped, assign_dropped)
        if items:
            dropped = _with_unread(dropped, scrape, unread)
        dropped.write_parquet(directory / DROPPED)
        counts = {
            "items" if items else "landmarks": len(labelled),
            "without labels": len(dropped),
            "names": labelled["name"].n_unique(),
        }
        return StageResult(counts, details={"splits": splits, "levels": list(plan.names)})

    config = {"plan": asdict(plan)}
    return run_stage("export", root, version=VERSION, config=config, inputs=inputs, work=work)


def with_levels(labelled: pl.DataFrame, scrape: pl.DataFrame, levels: pl.DataFrame, plan: LevelPlan) -> pl.DataFrame:
    """Return a row for every labelled item: its finest class as ``key``, id, name as given, a column a level above.

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


def write_labels(rows: pl.DataFrame, file: Path) -> None:
    """Write one split of assign's landmarks as GLDv2's ``{split}_label_to_hierarchical.csv``.

    UTF-8, ``\\n`` line ends and quotes only where a field needs them (``csv.QUOTE_MINIMAL``); null is an empty field.
    """
    _write_csv(rows.select(COLUMNS).sort("landmark_id"), file)


def write_raw_names(scrape: pl.DataFrame, file: Path) -> None:
    """Write the table of raw scraped names, one row a landmark that was asked for.

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


def hierarchy_of(named: pl.DataFrame, plan: LevelPlan) -> Hierarchy:
    """Return the tree of the rows of :func:`with_levels`."""
    columns = {plan.names[0]: "key", **{level: level for level in plan.names[1:]}}
    return Hierarchy.from_columns({level: named[column].to_list() for level, column in columns.items()})


def _write_csv(rows: pl.DataFrame, file: Path) -> None:
    empty_is_null = pl.col(pl.String).replace("", None)  # polars would write "" for an empty text, csv.writer nothing
    rows.with_columns(empty_is_null).write_csv(file, quote_style="necessary", line_terminator="\n")


def _all_dropped(
    scrape: pl.DataFrame, labelled: pl.DataFrame, clean_dropped: pl.DataFrame, assign_dropped: pl.DataFrame
) -> pl.DataFrame:
    """Return a row for every scraped landmark without a label, with the last stage that left it out."""
    columns = ["split", "landmark_id", "category", "stage", "reason", "detail"]
    drops = pl.concat(
        [
            assign_dropped.with_columns(stage=pl.lit("assign")).select(columns),
            clean_dropped.with_columns(stage=pl.lit("clean")).select(columns),
        ]
    ).unique(KEY, keep="first", maintain_order=True)
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
