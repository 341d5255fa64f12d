"""The export stage: GLDv2's label CSVs, the table of raw scraped names, the hierarchy, and the dropped landmarks."""

from pathlib import Path

import polars as pl

from hgld.errors import TableError
from hgld.hierarchy import Hierarchy
from hgld.pipelines.stage import Progress, StageResult, StageRun, run_stage

VERSION = 1
LABEL_SUFFIX = "_label_to_hierarchical.csv"
RAW_NAMES = "raw_names.csv"
HIERARCHY = "hierarchy.parquet"
DROPPED = "dropped.parquet"
LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
COLUMNS = ("landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made")
_KEY = ["split", "landmark_id"]


def run(root: Path, scraped: StageRun, cleaned: StageRun, assigned: StageRun, progress: Progress) -> StageRun:
    """Write the build's tables, all or none of them.

    ``{split}_label_to_hierarchical.csv`` has GLDv2's columns, quoting and line ends, sorted by landmark id;
    ``supercategory`` is the name as scraped (empty where the name was assigned), an undecided top level is an empty
    field. ``raw_names.csv`` has every landmark that was asked for; ``dropped.parquet`` those that are in no label CSV,
    with the stage that left them out and its reason.

    Raises:
        TableError: a landmark is neither labelled nor dropped.
    """
    inputs = {
        "scrape/landmarks": scraped.path("landmarks.parquet"),
        "clean/dropped": cleaned.path("dropped.parquet"),
        "assign/landmarks": assigned.path("landmarks.parquet"),
        "assign/dropped": assigned.path("dropped.parquet"),
    }

    def work(directory: Path) -> StageResult:
        scrape, clean_dropped, labelled, assign_dropped = (pl.read_parquet(file) for file in inputs.values())
        splits = scrape["split"].unique().sort().to_list()
        for done, split in enumerate(splits):
            progress("write label tables", done, len(splits))
            write_labels(labelled.filter(pl.col("split") == split), directory / f"{split}{LABEL_SUFFIX}")
        progress("write label tables", len(splits), len(splits))
        write_raw_names(scrape, labelled, directory / RAW_NAMES)
        hierarchy_of(labelled).to_parquet(directory / HIERARCHY)
        dropped = _all_dropped(scrape, labelled, clean_dropped, assign_dropped)
        dropped.write_parquet(directory / DROPPED)
        counts = {"landmarks": len(labelled), "without labels": len(dropped), "names": labelled["name"].n_unique()}
        return StageResult(counts, details={"splits": splits})

    return run_stage("export", root, version=VERSION, config={}, inputs=inputs, work=work)


def write_labels(rows: pl.DataFrame, file: Path) -> None:
    """Write one split of assign's landmarks as GLDv2's ``{split}_label_to_hierarchical.csv``.

    UTF-8, ``\\n`` line ends and quotes only where a field needs them (``csv.QUOTE_MINIMAL``); null is an empty field.
    """
    _write_csv(rows.select(COLUMNS).sort("landmark_id"), file)


def write_raw_names(scrape: pl.DataFrame, labelled: pl.DataFrame, file: Path) -> None:
    """Write the table of raw scraped names, one row a landmark that was asked for.

    ``names`` and ``class_ids`` hold a landmark's values in the same order, joined by ``|``; a bar or backslash inside
    a name has a backslash before it, an unknown class is empty. ``assigned`` and ``assigned_name`` are filled where
    no name was scraped and one was given.
    """
    given = labelled.filter(pl.col("assigned").is_not_null()).select(*_KEY, "assigned", "score", assigned_name="name")
    escaped = pl.element().str.replace_all("\\", "\\\\", literal=True).str.replace_all("|", "\\|", literal=True)
    rows = scrape.join(given, on=_KEY, how="left").select(
        *_KEY,
        "category",
        "status",
        "item",
        "redirected_to",
        pl.col("names").list.eval(escaped).list.join("|"),
        class_ids=pl.col("classes").list.eval(pl.element().fill_null("")).list.join("|"),
        assigned="assigned",
        assigned_name="assigned_name",
        score="score",
    )
    _write_csv(rows.sort(_KEY), file)


def hierarchy_of(labelled: pl.DataFrame) -> Hierarchy:
    """Return the tree of landmarks, groups and top levels; a landmark's class is ``"{split}/{id} {title}"``."""
    title = pl.col("title").str.strip_prefix("Category:")
    key = pl.format("{}/{}", "split", "landmark_id")
    named = labelled.with_columns(landmark=pl.concat_str(key, title, separator=" ", ignore_nulls=True))
    return Hierarchy.from_columns({level: named[level].to_list() for level in LEVELS})


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
    ).unique(_KEY, keep="first", maintain_order=True)
    missing = scrape.select(_KEY).join(labelled, on=_KEY, how="anti")
    rows = missing.join(drops, on=_KEY, how="left").sort(_KEY)
    lost = rows.filter(pl.col("reason").is_null())
    if len(lost):
        raise TableError(
            f"stage 'export': {len(lost)} landmarks have neither a label nor a reason, the first is "
            f"{lost['split'][0]}/{lost['landmark_id'][0]}. The stages' folders were mixed: remove stages/clean and "
            "stages/assign and run the same command again."
        )
    return rows.select(columns)
