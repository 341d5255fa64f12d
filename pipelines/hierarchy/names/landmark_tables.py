"""Tables of landmarks: the inputs of a build, with Commons categories, and the outputs of scraping."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import TableError, quoted
from hgld.tables import CsvText

from ...stage import Progress, StageResult, StageRun, run_stage, write_dropped
from ..scrape.titles import category_title

KEY = ["split", "landmark_id"]
ID, CATEGORY, NAME = "landmark_id", "category", "supercategory"
VERSION = 1  # version of the scrape stage; increase it if a change makes different tables from the same answers
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
DROPPED = {"split": pl.String, "row": pl.Int64, "landmark_id": pl.String, "category": pl.String, "reason": pl.String}
SCRAPED = {
    "split": pl.String,
    "landmark_id": pl.Int64,
    "category": pl.String,
    "title": pl.String,
    "redirected_to": pl.String,
    "item": pl.String,
    "status": pl.String,
    "names": pl.List(pl.String),
    "classes": pl.List(pl.String),
}
ITEMS = {  # further columns for items of ``--classes``
    "id": pl.String,
    "count": pl.Int64,
    "description": pl.String,
    "images": pl.List(pl.String),
    "language": pl.String,
}
CLASSES = {"class_id": pl.String, "label": pl.String, "language": pl.String, "parents": pl.List(pl.String)}


def read_landmarks(tables: Mapping[str, Path], *, named: bool = False) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return all landmarks of ``{split: CSV}`` tables, sorted by split and id, and the repeated rows.

    A landmark has the columns split, landmark_id, category and names. The input tables have the columns landmark_id and
    category, and supercategory if ``named``; other columns are ignored. A row that repeats an earlier row is dropped
    and listed with its line. If ``named``, a landmark may have several rows with different names; a row without a name
    adds no name.

    Raises:
        TableError: a file is missing, empty, too large or not UTF-8. Or a column is missing. Or a row has another
            number of cells than the header, or an id that is not a whole number. Or one id has two categories.
    """
    landmarks, dropped = [], []
    for split in sorted(tables):
        found, repeats = _read_table(split, Path(tables[split]), named)
        landmarks += sorted(found)
        dropped += repeats
    schema = {name: SCRAPED[name] for name in ("split", "landmark_id", "category", "names")}
    return pl.DataFrame(landmarks, schema, orient="row"), pl.DataFrame(dropped, schema=DROPPED, orient="row")


def run_names(root: Path, tables: Mapping[str, Path], progress: Progress) -> StageRun:
    """Run the stage ``scrape`` on already scraped tables, without network or class graph.

    Args:
        root: the build's directory of stages.
        tables: CSVs with landmark_id, category and supercategory by split; other columns are ignored.
        progress: function that receives the current task.
    """

    def work(directory: Path) -> StageResult:
        progress("scrape: reading names", 0, None)
        marks, dropped = read_landmarks(tables, named=True)
        columns = {
            **marks.to_dict(),
            "title": list(map(category_title, marks["category"])),
            "status": ["found" if len(names) else "no-instance-of" for names in marks["names"]],
            "classes": [(None,) * len(names) for names in marks["names"]],
        }
        return write_scraped(directory, scraped_table(columns), pl.DataFrame(schema=CLASSES), dropped)

    inputs = {f"names {split}": Path(path) for split, path in tables.items()}
    return run_stage("scrape", root, version=VERSION, config={"names": True}, inputs=inputs, work=work)


def scraped_table(columns: Mapping[str, Any]) -> pl.DataFrame:
    """Return the stage's table of landmarks, made from their values by column; missing columns are null."""
    schema = SCRAPED | {column: kind for column, kind in ITEMS.items() if column in columns}
    known = pl.DataFrame(dict(columns), schema={name: kind for name, kind in schema.items() if name in columns})
    return pl.concat([pl.DataFrame(schema=schema), known], how="diagonal")


def with_item_columns(scraped: pl.DataFrame) -> pl.DataFrame:
    """Return the table of landmarks with all columns of items; missing columns are null."""
    missing = {column: kind for column, kind in ITEMS.items() if column not in scraped.columns}
    return scraped.with_columns(pl.lit(None, dtype=kind).alias(column) for column, kind in missing.items())


def write_scraped(
    directory: Path, scraped: pl.DataFrame, classes: pl.DataFrame, dropped: pl.DataFrame, notes: tuple[str, ...] = ()
) -> StageResult:
    """Write the three tables of the stage ``scrape``; its result counts landmarks or items, in total and per status."""
    scraped.write_parquet(directory / "landmarks.parquet")
    classes.write_parquet(directory / "classes.parquet")
    tally = scraped.group_by("status").len().sort("len", "status", descending=[True, False])
    counts = {"landmarks": scraped.height, "categories": scraped["category"].n_unique()}
    if "id" in scraped.columns:
        counts = {"items": scraped.height, "different names": scraped["category"].n_unique()}
    counts |= dict(zip(tally["status"].to_list(), tally["len"].to_list(), strict=True))
    return StageResult(counts | {"classes": classes.height}, write_dropped(directory, dropped), notes)


def _read_table(split: str, path: Path, named: bool) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return (split, id, category, names) of each landmark of a table, and its repeated rows."""
    seen: dict[int, tuple[int, str, list[str]]] = {}
    repeats = []
    wanted = [ID, CATEGORY, NAME] if named else [ID, CATEGORY]
    for line, (number, category, *names) in CsvText.read(path).select(wanted):
        if not _WHOLE_NUMBER.fullmatch(number.strip()):
            raise TableError(
                f"{path}, line {line}: {ID} is {quoted(number[:80])}; expected a whole number. Correct the row."
            )
        landmark = int(number)
        first = seen.setdefault(landmark, (line, category, []))
        if first[1] != category:
            raise TableError(
                f"{path}: landmark {landmark} has the category {quoted(first[1])} in line {first[0]} and "
                f"{quoted(category)} in line {line}; expected one category per landmark. Delete the wrong row. "
                "If the rows use different ids (as GLDv2's train and index), put them into two tables: --landmarks "
                "train=... --landmarks index=..."
            )
        told = [name for name in names if name.strip() and name not in first[2]]
        if first[0] != line and not told:
            repeats.append((split, line, number, category, "repeats an earlier row"))
        first[2].extend(told)
    if not seen:
        raise TableError(f"{path}: no rows below the header; expected one landmark per row.")
    return [(split, i, category, names) for i, (_, category, names) in seen.items()], repeats
