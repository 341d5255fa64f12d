"""A small finished build for the review page, with hostile names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.pipelines.hierarchy.review.decisions import Role
from hgld.pipelines.hierarchy.review.journal import Journal
from hgld.pipelines.hierarchy.review.learner import Learner
from hgld.pipelines.hierarchy.review.queue import Queue
from hgld.pipelines.hierarchy.review.state import Review
from hgld.pipelines.hierarchy.review.tables import BuildTables, Thumbnails

SCRIPT = '<script>window.broken=1</script><img src=x onerror="window.broken=1">'
BREAKOUT = "\"'><svg onload=window.broken=1>__proto__ ${1} {{1}} \u202egnp"
# group: (label, top class, {name: (number of landmarks, confidence, is doubtful, next group)})
GROUPS = {
    0: (
        "mountain",
        "natural",
        {"mountain": (6, 0.9, False, 2), "mountain pass": (3, 0.04, True, 2), "peak": (2, 0.7, False, 2)},
    ),
    1: ("ship", "human-made", {"schooner": (3, 0.8, False, 0), "tug": (1, 0.02, True, 0)}),
    2: ("pass", None, {"water gap": (1, 0.6, False, 0)}),
    3: (
        SCRIPT,
        "human-made",
        {SCRIPT: (2, 0.01, True, 0), BREAKOUT: (1, 0.5, False, 0), "__proto__": (1, 0.3, False, 1)},
    ),
}


def write_build(root: Path, groups: dict = GROUPS) -> Path:
    """Write the tables of English landmarks under ``root``, and return ``root``."""
    stages = root / "stages"
    for stage in ("cluster", "toplevel", "clean", "scrape", "evidence"):
        (stages / stage).mkdir(parents=True)
    names = sorted((n, g, *facts) for g, (_, _, members) in groups.items() for n, facts in members.items())
    _write(
        stages / "cluster/names.parquet",
        "name landmarks cluster group confidence next_group wrong",
        [(n, count, g, g, sure, second, 0.75 if doubtful else 0.125) for n, g, count, sure, doubtful, second in names],
        dict.fromkeys(("confidence", "wrong"), pl.Float32)
        | dict.fromkeys(("cluster", "group", "next_group"), pl.Int32),
    )
    labelled = [(g, label, "medoid", f"nearest to all: {label}", len(m), 1) for g, (label, _, m) in groups.items()]
    _write(stages / "cluster/groups.parquet", "group label method evidence names landmarks", labelled)
    tops = [(g, label, top, top and "p279", f"P279 path of {label}", 0.5) for g, (label, top, _) in groups.items()]
    kinds = {"group": pl.Int32} | dict.fromkeys(("top", "method"), pl.String)
    _write(stages / "toplevel/groups.parquet", "group label top method evidence margin", tops, kinds)
    (stages / "toplevel/done.json").write_text("{}")
    cleaned = [(n, count, ["Q1000001"] if n == "mountain" else [], [n, n.upper()], True) for n, _, count, *_ in names]
    kinds = {"class_ids": pl.List(pl.String)}
    _write(stages / "clean/names.parquet", "name landmarks class_ids raw english", cleaned, kinds)
    (stages / "clean/done.json").write_text(json.dumps({"config": {"domain": "landmarks"}}))
    axes = np.eye(len(groups) + len(names), dtype=np.float32)  # the embedding of a name is near the axis of its group
    rows = axes[[sorted(groups).index(g) for _, g, *_ in names]] + 0.5 * axes[len(groups) :]
    np.save(stages / "evidence/block-text.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    block = {"name": "text", "weight": 1.0, "is_form": False, "known": len(names)}
    (stages / "evidence/evidence.json").write_text(json.dumps({"blocks": [block], "agreement": [[None]]}))
    landmarks = [(n, i) for n, _, count, *_ in names for i in range(count)]
    items = [("train", k, "http://x", f"Category:{n} {i}", n, n, None) for k, (n, i) in enumerate(landmarks)]
    columns = "split landmark_id category title supercategory name class_id"
    _write(stages / "clean/landmarks.parquet", columns, items, {"class_id": pl.String})
    classes = [("Q1000001", "mountain range", "en", ["Q8502"]), ("Q8502", "mountain", "en", [])]
    _write(stages / "scrape/classes.parquet", "class_id label language parents", classes)
    return root


def _write(file: Path, columns: str, rows: list, kinds: Any = None) -> None:
    pl.DataFrame(rows, schema=columns.split(), schema_overrides=kinds, orient="row").write_parquet(file)


def opened(
    build: Path,
    who: str = "ada",
    others: tuple[Path, ...] = (),
    *,
    role: Role = "annotator",
    file: Path | None = None,
    images: Path | None = None,
    learns: bool = False,
) -> Review:
    """Return the review page of annotator ``who`` with decisions in WHO.yaml; ``learns`` adds learner and queue."""
    tables, learner = BuildTables(build), Learner.of(build / "stages") if learns else None
    queue = None if learner is None else Queue(learner.rows)
    journal = Journal(file or build / f"{who}.yaml", who, role)
    return Review(tables, journal, others, Thumbnails(images, tables.images()), learner, queue)
