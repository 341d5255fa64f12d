"""The assign stage: join landmarks or items with the groups of their names."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import polars as pl

from hgld.tables import read_parquet

from ..stage import Progress, StageResult, StageRun, run_stage, write_dropped
from .names.landmark_tables import KEY, with_item_columns

VERSION = 4  # 4: names are those scraped, none is guessed from images
LANDMARKS = {
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


def run(root: Path, scraped: StageRun, cleaned: StageRun, reviewed: StageRun, progress: Progress) -> StageRun:
    """Join landmarks with their names' groups: ``landmarks.parquet``, and ``dropped.parquet``.

    Raises:
        TableError: clean's and review's tables do not belong together.
    """
    inputs = {
        "scrape/landmarks": scraped.path("landmarks.parquet"),
        "clean/landmarks": cleaned.path("landmarks.parquet"),
        "review/names": reviewed.path("names.parquet"),
        "review/groups": reviewed.path("groups.parquet"),
        "review/dropped": reviewed.path("dropped.parquet"),
        "review/items": reviewed.path("items.parquet"),
    }
    return run_stage("assign", root, version=VERSION, config={}, inputs=inputs, work=partial(_join, inputs))


def _join(inputs: Mapping[str, Path], directory: Path) -> StageResult:
    table = {role: read_parquet(file) for role, file in inputs.items()}
    tops = table["review/groups"].select("label", natural_or_human_made="top")
    items = _items_with_ids(table["review/items"], table["scrape/landmarks"], table["clean/landmarks"])
    fits = pl.col("landmark_id").is_not_null() & pl.col("label").is_not_null()
    put = items.filter(fits).select(*KEY, put_name="name", put_label="label")
    joined = (
        table["clean/landmarks"]
        .join(table["review/names"].select("name", "label"), on="name", how="left", maintain_order="left")
        .join(put, on=KEY, how="left", maintain_order="left")
        .with_columns(name=pl.coalesce("put_name", "name"), label=pl.coalesce("put_label", "label"))
        .join(tops, on="label", how="left", maintain_order="left")
    )
    is_labelled = pl.col("label").is_not_null()
    labelled = joined.filter(is_labelled).rename({"label": "hierarchical_label"}).sort(KEY)
    landmarks = labelled.select(pl.col(name).cast(dtype) for name, dtype in LANDMARKS.items())
    left = joined.filter(~is_labelled).join(
        table["review/dropped"].select("name", "reason", "who", "why"), on="name", how="left", maintain_order="left"
    )
    why = pl.concat_str("name", pl.concat_str("who", "why", separator=": ", ignore_nulls=True), separator=" - ")
    drops = left.select(*KEY, "category", reason=pl.lit("name-dropped"), detail=why).sort(KEY)
    landmarks.write_parquet(directory / "landmarks.parquet")
    reasons = write_dropped(directory, drops)
    counts = {
        "landmarks": len(landmarks),
        "names": landmarks["name"].n_unique(),
        "groups": landmarks["hierarchical_label"].n_unique(),
    }
    counts |= {"put elsewhere by decision": len(put)} if len(put) else {}
    notes = [
        f"A decision of {row['who']} about the item {row['split']}/{row['id']} fits nothing: "
        + ("no item of this id has a name." if row["landmark_id"] is None else "its new name or group is gone.")
        for row in items.filter(~fits).iter_rows(named=True)
    ]
    more = len(notes) - _MOST_NOTES
    notes = [*notes[:_MOST_NOTES], *([f"{more} more decisions about single items fit nothing."] if more > 0 else [])]
    return StageResult(counts, reasons, notes=tuple(notes))


def _items_with_ids(items: pl.DataFrame, scraped: pl.DataFrame, landmarks: pl.DataFrame) -> pl.DataFrame:
    """Return the decisions about single landmarks or items with the landmark's id; null if none with a name has it."""
    ids = with_item_columns(scraped).select(*KEY, id=pl.coalesce("id", pl.col("landmark_id").cast(pl.String)))
    return items.join(ids.join(landmarks.select(KEY), on=KEY, how="semi"), on=("split", "id"), how="left")
