"""The clean stage: scraped names become canonical names, one a landmark.

Rules for spellings and irrelevant classes stand in ``name_rules.yaml``. Names are compared without their case; of the
spellings of one name the most common one is shown, so that acronyms and proper nouns keep the capitals that most
people give them.
"""

from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import TableError
from pipelines.class_graph import ClassGraph
from pipelines.config import CleanConfig, key_fields
from pipelines.name_rules import RULES, NameRules, name_key
from pipelines.progress import Progress
from pipelines.stage import Outcome, StageRun, run_stage, write_dropped

VERSION = 1
PUBLISHED: dict[str, Any] = {
    "source": "Ramzi et al., Optimization of Rank Losses for Image Retrieval, arXiv 2309.08250; rounded",
    "splits": {
        "train": {"landmarks": 203_094, "scraped": 129_100, "kept": 128_800},
        "index": {"landmarks": 101_000, "scraped": 68_100, "kept": 67_900},
    },
    "names": 5_700,
}
_LANDMARK = ["split", "landmark_id"]
_MOST_DETAIL = 300  # characters of a detail: scraped text may be anything


def run(root: Path, scraped: StageRun, config: CleanConfig, progress: Progress) -> StageRun:
    """Clean the names of scraped landmarks into ``root/clean`` (see docs/stages.md for the files).

    Beside those, ``left_out.parquet`` (split, landmark_id, raw, class_id, reason) holds the names that a landmark
    had besides the one that it keeps. The outcome's details hold one's own figures (``own``) and the published ones
    (``published``) in the same form.

    Args:
        root: the build's directory of stages.
        scraped: the run of the scrape (or of the sample, or of ``--names``).
        config: what to do with landmarks of several names.
        progress: told about the distinct spellings and the landmarks.

    Raises:
        TableError: no landmark has a name left, or the table of classes cannot be read.
    """
    landmarks, classes = scraped.path("landmarks.parquet"), scraped.path("classes.parquet")
    return run_stage(
        "clean",
        root,
        version=VERSION,
        config=key_fields(config),
        inputs={"landmarks": landmarks, "classes": classes, "rules": RULES},
        work=partial(_clean, landmarks, classes, config, progress),
    )


def _clean(landmarks: Path, classes: Path, config: CleanConfig, progress: Progress, directory: Path) -> Outcome:
    table = pl.read_parquet(landmarks).sort(_LANDMARK)
    mentions = _mentions(table, NameRules.read(), progress)
    relevant = mentions.filter(pl.col("reason").is_null()).unique(
        [*_LANDMARK, "name"], keep="first", maintain_order=True
    )
    chosen, notes = _choose(relevant, ClassGraph.read(classes), config)
    kept = (
        table.select(*_LANDMARK, "category", "title")
        .join(chosen, on=_LANDMARK)
        .rename({"raw": "supercategory"})
        .select(*_LANDMARK, "category", "title", "supercategory", "name", "class_id")
        .sort(_LANDMARK)
    )
    dropped = _dropped(table, mentions, kept, config)
    if kept.is_empty():
        raise TableError(
            f"{landmarks}: none of its {len(table)} landmarks has a name that can be used "
            f"({_tally(dropped)}). Check the scrape's statuses, or the rules in {RULES.name}."
        )
    names = _names(kept)
    left_out = _left_out(mentions, kept, config)
    kept.write_parquet(directory / "landmarks.parquet")
    names.write_parquet(directory / "names.parquet")
    left_out.write_parquet(directory / "left_out.parquet")
    progress("clean", len(table), len(table))
    counts, details = _figures(table, kept, names, left_out)
    return Outcome(counts, write_dropped(directory, dropped), notes, details)


def _mentions(table: pl.DataFrame, rules: NameRules, progress: Progress) -> pl.DataFrame:
    """One row a scraped name of a found landmark, in the order given: raw, class_id, name, and why it is left out."""
    mentions = (
        table.filter(pl.col("status") == "found")
        .select(*_LANDMARK, pl.col("names").alias("raw"), pl.col("classes").alias("class_id"))
        .filter(pl.col("raw").list.len() > 0)
        .explode("raw", "class_id")
        .filter(pl.col("raw").is_not_null())
    )
    spellings = mentions.group_by("raw", "class_id").len("times").sort("raw", "class_id")
    rows = []
    for done, (raw, class_id, times) in enumerate(spellings.iter_rows(), 1):
        spelling = rules.canonical(raw)
        reason = rules.irrelevance(spelling, class_id) if spelling else "nothing is left of the name"
        rows.append((raw, class_id, times, spelling, name_key(spelling), sum(map(str.isupper, spelling)), reason))
        progress("clean: distinct names", done, len(spellings))
    schema = {
        "raw": pl.String,
        "class_id": pl.String,
        "times": pl.Int64,
        "spelling": pl.String,
        "key": pl.String,
        "capitals": pl.Int64,
        "reason": pl.String,
    }
    vocabulary = pl.DataFrame(rows, schema=schema, orient="row")
    shown = (
        vocabulary.group_by("key", "spelling", "capitals")
        .agg(pl.col("times").sum())
        .sort("key", "times", "capitals", "spelling", descending=[False, True, False, False])
        .group_by("key", maintain_order=True)
        .agg(pl.col("spelling").first().alias("name"))
    )
    vocabulary = vocabulary.join(shown, on="key").select("raw", "class_id", "name", "reason")
    return mentions.join(vocabulary, on=["raw", "class_id"], nulls_equal=True, how="left", maintain_order="left")


def _choose(relevant: pl.DataFrame, graph: ClassGraph, config: CleanConfig) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """At most one row a landmark: that of its only name, or of the one that the policy takes; and notes for people.

    ``most-specific`` first leaves out every name whose class lies above another of the landmark's classes; if several
    names stay (no class above another, or classes unknown), the most common one of them is taken, as with
    ``most-common``: the one that most landmarks carry. Ties go to the name that comes first in the alphabet.
    """
    alone = relevant.filter(pl.len().over(_LANDMARK) == 1)
    several = relevant.filter(pl.len().over(_LANDMARK) > 1)
    if config.several == "drop":
        return alone.drop("reason"), ()
    frequency = relevant.group_by("name").len("frequency")
    notes: tuple[str, ...] = ()
    if config.several == "most-specific":
        landmarks = several.select(_LANDMARK).n_unique()
        several = several.join(_less_specific(several, graph), on=[*_LANDMARK, "class_id"], how="anti")
        undecided = several.filter(pl.len().over(_LANDMARK) > 1).select(_LANDMARK).n_unique()
        if undecided:
            note = (
                f"{undecided:,} of {landmarks:,} landmarks with several names have no one most specific class in the "
                "class graph; the most common of their most specific names was taken."
            )
            notes = (note,)
    picked = (
        several.join(frequency, on="name")
        .sort([*_LANDMARK, "frequency", "name"], descending=[False, False, True, False])
        .unique(_LANDMARK, keep="first", maintain_order=True)
        .drop("frequency")
    )
    return pl.concat([alone, picked]).drop("reason"), notes


def _less_specific(several: pl.DataFrame, graph: ClassGraph) -> pl.DataFrame:
    """Which (split, landmark_id, class_id) lie above another class of the same landmark."""
    classed = several.select(*_LANDMARK, "class_id").drop_nulls("class_id")
    together = classed.join(classed, on=_LANDMARK, suffix="_other").filter(
        pl.col("class_id") != pl.col("class_id_other")
    )
    pairs = together.select("class_id", "class_id_other").unique()
    above = [graph.is_more_specific(other, class_id) for class_id, other in pairs.iter_rows()]
    less_specific = pairs.filter(pl.Series(above, dtype=pl.Boolean))
    return together.join(less_specific, on=["class_id", "class_id_other"]).select(*_LANDMARK, "class_id").unique()


def _dropped(table: pl.DataFrame, mentions: pl.DataFrame, kept: pl.DataFrame, config: CleanConfig) -> pl.DataFrame:
    """Landmarks without a kept name: the scrape's status, or what became of their names."""
    fate = mentions.group_by(_LANDMARK).agg(
        pl.col("reason").is_null().any().alias("usable"),
        (pl.col("name") != "").any().alias("named"),
        pl.col("name").filter(pl.col("reason").is_null()).unique().sort().str.join(" | ").alias("several"),
        (pl.col("raw") + ": " + pl.col("reason")).unique().sort().str.join("; ").alias("unusable"),
    )
    reason = (
        pl.when(pl.col("status") != "found")
        .then(pl.col("status"))
        .when("usable")
        .then(pl.lit("several-names"))
        .when("named")
        .then(pl.lit("irrelevant"))
        .otherwise(pl.lit("empty-name"))
    )
    detail = pl.when("usable").then("several").otherwise("unusable").str.slice(0, _MOST_DETAIL)
    return (
        table.join(kept, on=_LANDMARK, how="anti")
        .join(fate, on=_LANDMARK, how="left")
        .select(*_LANDMARK, "category", reason.alias("reason"), detail.alias("detail"))
        .sort(_LANDMARK)
    )


def _left_out(mentions: pl.DataFrame, kept: pl.DataFrame, config: CleanConfig) -> pl.DataFrame:
    """The names of kept landmarks other than the one they keep (other spellings of that one are not left out)."""
    return (
        mentions.join(kept.select(*_LANDMARK, pl.col("name").alias("taken")), on=_LANDMARK)
        .filter((pl.col("name") != pl.col("taken")) | pl.col("reason").is_not_null())
        .select(*_LANDMARK, "raw", "class_id", pl.col("reason").fill_null(f"not the {config.several} name"))
        .sort(*_LANDMARK, "raw", "class_id")
    )


def _names(kept: pl.DataFrame) -> pl.DataFrame:
    return (
        kept.group_by("name")
        .agg(
            pl.len().cast(pl.Int64).alias("landmarks"),
            pl.col("class_id").drop_nulls().unique().sort().alias("class_ids"),
            pl.col("supercategory").unique().sort().alias("raw"),
        )
        .sort("name")
    )


def _figures(
    table: pl.DataFrame, kept: pl.DataFrame, names: pl.DataFrame, left_out: pl.DataFrame
) -> tuple[dict[str, int], dict[str, Any]]:
    """Counts for people, and the same figures in the form of :data:`PUBLISHED`."""
    splits = {}
    for split in table["split"].unique().sort():
        scraped = table.filter(pl.col("split") == split)
        splits[split] = {
            "landmarks": len(scraped),
            "scraped": int((scraped["status"] == "found").sum()),
            "kept": int((kept["split"] == split).sum()),
        }
    counts = {f"{what} ({split})": n for split, figures in splits.items() for what, n in figures.items()}
    counts |= {"names": len(names), "names left out of kept landmarks": len(left_out)}
    return counts, {"own": {"splits": splits, "names": len(names)}, "published": PUBLISHED}


def _tally(dropped: pl.DataFrame) -> str:
    reasons = dropped.group_by("reason").len().sort("len", "reason", descending=[True, False])
    return ", ".join(f"{reason}: {n}" for reason, n in reasons.iter_rows())
