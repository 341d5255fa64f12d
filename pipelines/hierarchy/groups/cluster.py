"""The cluster stage: names in groups, with a label for each group and a confidence for each name."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from hgld.settings import key_fields
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage
from ..config import BuildConfig
from ..encoders.embed import read_embeddings
from ..names.class_graph import ClassGraph
from .clustering import Clustering, cluster_names
from .doubt import DOUBTFUL, wrong_probabilities
from .evidence import read_evidence
from .group_names import label_groups

VERSION = 6  # 5: Ward's linkage or k-means alone, the number of groups by the silhouette


def run(root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress) -> StageRun:
    """Run the stage: ``names.parquet`` and ``groups.parquet``.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: options of grouping, and the domain whose rules labels of groups follow.
        progress: told what is being done.

    Raises:
        ConfigError: more groups than the names allow.
        TableError: the inputs do not belong together.
    """
    files = ("clean/names.parquet", "evidence/rows.npy", "scrape/classes.parquet", "evidence/evidence.json")
    blocks = [f"evidence/{file.name}" for file in sorted(stages["evidence"].directory.glob("block-*.npy"))]
    inputs = files_of(stages, *files, *blocks)
    stated = {**key_fields(config.cluster), "domain": config.domain}
    work = partial(_cluster, inputs, config, progress)
    return run_stage("cluster", root, version=VERSION, config=stated, inputs=inputs, work=work)


def _cluster(inputs: Mapping[str, Path], config: BuildConfig, progress: Progress, out: Path) -> StageResult:
    names = read_parquet(inputs["clean/names.parquet"])
    rows = read_embeddings(inputs["evidence/rows.npy"])
    graph = ClassGraph.read(inputs["scrape/classes.parquet"])
    found = cluster_names(rows, config.cluster, progress)
    labels = label_groups(names, found.groups, found.centrality, graph, config.domain)
    evidence = read_evidence(inputs["evidence/evidence.json"].parent)
    blocks = [block.rows for block, weight in zip(evidence.blocks, evidence.weights, strict=True) if weight > 0]
    wrong = wrong_probabilities(rows, found.groups, names["name"].to_list(), blocks=blocks)
    write_groups(out, names, found, wrong, [(one.label, one.method, one.evidence) for one in labels])
    counts = {"names": len(names), "groups": int(found.groups.max()) + 1}
    return StageResult(counts, details={"method": config.cluster.method, "silhouettes": found.tried})


def write_groups(
    out: Path,
    names: pl.DataFrame,
    placed: Clustering,
    wrong: np.ndarray,
    labels: Sequence[tuple[str, str, str]],
) -> None:
    """Write the tables of the stage.

    Args:
        out: the stage's folder.
        names: clean's ``names.parquet``.
        placed: the group of every name.
        wrong: (N,) probabilities that a name is in a wrong group.
        labels: label, method and evidence of every group.
    """
    members = names.select("name", "landmarks").with_columns(
        pl.Series("group", placed.groups, dtype=pl.Int32),
        pl.Series("confidence", placed.confidence, dtype=pl.Float32),
        pl.Series("next_group", placed.next_groups, dtype=pl.Int32).replace(-1, None),
        pl.Series("wrong", wrong, dtype=pl.Float32),
        pl.Series("doubtful", wrong > DOUBTFUL),
    )
    sizes = members.group_by("group").agg(pl.len().cast(pl.Int64).alias("names"), pl.col("landmarks").sum())
    table = pl.DataFrame(labels, schema=dict.fromkeys(("label", "method", "evidence"), pl.String), orient="row")
    groups = table.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("group"), pl.all()).join(
        sizes, on="group", how="left", maintain_order="left"
    )
    members.write_parquet(out / "names.parquet")
    groups.with_columns(pl.col("names", "landmarks").fill_null(0)).write_parquet(out / "groups.parquet")
