"""Finished stages of a tiny build (docs/reference/build-files.md), for the tests of later stages."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.pipelines.hierarchy.build import build_hierarchy
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig
from hgld.pipelines.hierarchy.names.landmark_tables import DROPPED
from hgld.pipelines.stage import StageResult, StageRun, run_stage, silent, write_dropped, write_json

TEXTS = pl.List(pl.String)
HOSTILE = '<script>alert(1)</script> "quoted", $x$ | =cmd()'

SCRAPED = [
    # split, id, title, status, names, classes
    ("index", 1, "Category:Lake Como", "found", ["lake"], ["Q23397"]),
    ("index", 2, "Category:Nowhere", "missing", [], []),
    ("train", 1, "Category:Chartres Cathedral", "found", ["cathedral"], ["Q2977"]),
    ("train", 2, "Category:Notre-Dame, Paris", "found", ["Cathedral", "a|b\\c"], ["Q2977", None]),
    ("train", 3, 'Category:The "Pont" Neuf', "found", ["bridge"], [None]),
    ("train", 4, None, "no-item", [], []),
    ("train", 5, "Category:Odd", "found", [HOSTILE], [None]),
    ("train", 6, "Category:Mont Blanc", "found", ["mountain"], ["Q8502"]),
    ("train", 7, "Category:Two", "found", ["bridge", "lake"], [None, None]),
]
NAMES = {  # name: (group number, confidence, next group, probability of being wrong)
    "Cathedral": (0, 0.9, 1, 0.1),
    "bridge": (1, 0.8, 0, 0.2),
    "lake": (2, 0.7, 3, 0.3),
    "mountain": (3, 0.2, 2, 0.6),
    HOSTILE: (4, 0.1, 0, 0.8),
}
LABELS = ["Cathedral", "bridge", "lake", "mountain", HOSTILE]
TOPS = ["human-made", "human-made", "natural", "natural", None]
KEPT = [("index", 1), ("train", 1), ("train", 2), ("train", 3), ("train", 5), ("train", 6)]


def _stage(name: str, root: Path, work: Callable[[Path], StageResult]) -> StageRun:
    return run_stage(name, root, version=1, config={}, inputs={}, work=work)


def _scrape(folder: Path) -> StageResult:
    rows = [
        {
            "split": split,
            "landmark_id": number,
            "category": f"http://commons.wikimedia.org/wiki/{(title or 'no category').replace(' ', '_')}",
            "title": title,
            "redirected_to": "Category:Chartres" if number == 1 and split == "train" else None,
            "item": "Q1" if status == "found" else None,
            "status": status,
            "names": names,
            "classes": classes,
        }
        for split, number, title, status, names, classes in SCRAPED
    ]
    schema = {"names": TEXTS, "classes": TEXTS, "redirected_to": pl.String, "item": pl.String}
    pl.DataFrame(rows, schema_overrides=schema).write_parquet(folder / "landmarks.parquet")
    pl.DataFrame(schema=DROPPED).write_parquet(folder / "dropped.parquet")
    return StageResult({"landmarks": len(rows)})


def _clean(scraped: StageRun, folder: Path) -> StageResult:
    table = pl.read_parquet(scraped.path("landmarks.parquet"))
    is_kept = pl.Series([row in KEPT for row in table.select("split", "landmark_id").iter_rows()])
    kept = table.filter(is_kept).with_columns(
        supercategory=pl.col("names").list.first(),
        name=pl.col("names").list.first().replace("cathedral", "Cathedral"),
        class_id=pl.col("classes").list.first(),
    )
    columns = ["split", "landmark_id", "category", "title", "supercategory", "name", "class_id"]
    kept.select(columns).write_parquet(folder / "landmarks.parquet")
    names = kept.group_by("name").agg(landmarks=pl.len().cast(pl.Int64), class_ids="class_id", raw="supercategory")
    names.sort("name").write_parquet(folder / "names.parquet")
    reason = pl.when(pl.col("status") == "found").then(pl.lit("several-names")).otherwise("status")
    dropped = table.filter(~is_kept).select(
        "split", "landmark_id", "category", reason.alias("reason"), pl.lit(None, pl.String).alias("detail")
    )
    own = {s: {"landmarks": 7, "scraped": 6, "kept": 5} for s in ("train", "index")}
    published = {"source": "paper", "splits": {"train": {"landmarks": 203_094, "scraped": 129_100, "kept": 128_800}}}
    details = {"own": {"splits": own, "names": 5}, "published": {**published, "names": 5_700}}
    return StageResult({"names": 5}, write_dropped(folder, dropped), details=details)


def _embed(folder: Path) -> StageResult:
    np.save(folder / "embeddings.npy", np.eye(len(NAMES), dtype=np.float32))
    write_json(folder / "encoder.json", {"name": "lexical", "key": "k", "dim": len(NAMES), "templates": []})
    return StageResult()


def _names(cleaned: StageRun) -> pl.DataFrame:
    names = pl.read_parquet(cleaned.path("names.parquet")).select("name", "landmarks")
    facts = [NAMES[name] for name in names["name"]]
    return names.with_columns(
        pl.Series("group", [f[0] for f in facts], dtype=pl.Int32),
        pl.Series("confidence", [f[1] for f in facts], dtype=pl.Float32),
        pl.Series("next_group", [f[2] for f in facts], dtype=pl.Int32),
        pl.Series("wrong", [f[3] for f in facts], dtype=pl.Float32),
        pl.Series("doubtful", [f[3] > 0.5 for f in facts]),
    )


def _cluster(cleaned: StageRun, folder: Path) -> StageResult:
    names = _names(cleaned)
    names.write_parquet(folder / "names.parquet")
    groups = names.group_by("group").agg(names=pl.len().cast(pl.Int64), landmarks=pl.col("landmarks").sum())
    groups.sort("group").with_columns(
        label=pl.Series(LABELS), method=pl.lit("head-noun"), evidence=pl.lit("<b>1 of 1</b> names")
    ).write_parquet(folder / "groups.parquet")
    return StageResult({"groups": len(LABELS)}, details={"method": "ward", "silhouettes": {2: 0.2, 3: 0.4}})


def _review(cleaned: StageRun, without: str | None, folder: Path) -> StageResult:
    names = _names(cleaned)
    table = names.select(
        "name",
        "landmarks",
        pl.Series("label", [LABELS[g] for g in names["group"]]),
        "confidence",
        "wrong",
        "doubtful",
        pl.lit(None, pl.String).alias("decided_by"),
    )
    gone = pl.col("name") == (without or "")
    table.filter(~gone).write_parquet(folder / "names.parquet")
    groups = (
        table.filter(~gone).group_by("label").agg(names=pl.len(), landmarks=pl.col("landmarks").sum()).sort("label")
    )
    top = dict(zip(LABELS, TOPS, strict=True))
    groups.with_columns(
        top=pl.Series([top[label] for label in groups["label"]], dtype=pl.String),
        method=pl.lit("p279"),
        group=pl.Series([LABELS.index(label) for label in groups["label"]], dtype=pl.Int32),
        evidence=pl.lit("cathedral > church building > architectural structure"),
        decided_by=pl.lit(None, pl.String),
    ).write_parquet(folder / "groups.parquet")
    dropped = table.filter(gone).select(
        "name", "landmarks", reason=pl.lit("dropped"), who=pl.lit("ann"), why=pl.lit("not a kind of place")
    )
    decided = {
        "applied": [{"action": "drop", "names": ["<i>x</i>"], "who": "ann", "when": "2026-11-21", "why": "no"}],
        "unmatched": [],
        "conflicts": [],
    }
    write_json(folder / "decisions.json", {**decided, "kappa": []})
    text = ("split", "id", "name", "label", "who", "why")
    pl.DataFrame(schema=dict.fromkeys(text, pl.String)).write_parquet(folder / "items.parquet")
    pl.DataFrame(schema=dict.fromkeys(("label", "level", "class", "who"), pl.String)).write_parquet(
        folder / "set_levels.parquet"
    )
    wrong = {"still_wrong": {"names": [1.9, 1.0, 3.8], "items": [2.6, 1.5, 5.0]}}
    return StageResult({"groups": len(groups)}, write_dropped(folder, dropped), details=wrong)


def _toplevel(folder: Path) -> StageResult:
    rows = [(group, "natural_or_human_made", top) for group, top in enumerate(TOPS)]
    schema = {"group": pl.Int32, "level": pl.String, "label": pl.String}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(folder / "levels.parquet")
    return StageResult()


@pytest.fixture(scope="session")
def tiny_stages() -> Callable[..., dict[str, StageRun]]:
    """``tiny_stages(root, without=None)`` writes scrape to review; ``without`` is a name that review dropped."""

    def make(root: Path, without: str | None = None) -> dict[str, StageRun]:
        scraped = _stage("scrape", root, _scrape)
        cleaned = _stage("clean", root, lambda folder: _clean(scraped, folder))
        reviewed = _stage("review", root, lambda folder: _review(cleaned, without, folder))
        return {
            "scrape": scraped,
            "clean": cleaned,
            "embed": _stage("embed", root, _embed),
            "cluster": _stage("cluster", root, lambda folder: _cluster(cleaned, folder)),
            "toplevel": _stage("toplevel", root, _toplevel),
            "review": reviewed,
        }

    return make


@pytest.fixture
def build(tmp_path):
    """Build a list of names with the encoder that needs no weights."""

    def make(text, out="out", **options):
        file = tmp_path / "list.csv"
        file.write_text(text if isinstance(text, str) else "\n".join(text))
        config = BuildConfig("classes", (("classes", file),), embed=EmbedConfig("lexical"), **options)
        return build_hierarchy(tmp_path / out, config, silent)

    return make
