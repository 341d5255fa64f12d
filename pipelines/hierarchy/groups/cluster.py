"""The cluster stage: names in groups, with a label for each group, a confidence for each name, and a map of names."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from hgld.errors import TableError
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, run_stage
from ..config import ClusterConfig, key_fields
from ..evidence.embed import read_embeddings
from ..evidence.evidence_stage import read_evidence
from ..names.class_graph import ClassGraph
from ..names.clean import NameRules
from .clustering import Clustering, check_options, cluster_names
from .doubt import DOUBTFUL, wrong_probabilities
from .group_count import NOTHING_TO_CHOOSE, StabilityCurve
from .group_names import Member, propose_labels

# -- the map of names: a picture for people, from which nothing is computed ----------------------------------------

MOST_PLACED = 1000  # t-SNE of 5,700 names takes half a minute on one core, of 1,000 some three seconds
ITERATIONS = 500
NEAREST = 3
PERPLEXITY = 30
LEAST_TSNE = 5


def name_map(rows: np.ndarray) -> np.ndarray:
    """Return a point of the plane for each name, so that names of similar vectors lie close together.

    t-SNE (van der Maaten and Hinton, JMLR 9, 2008) of at most 1,000 names, evenly out of the given order, started from
    their two leading principal axes, so that nothing is random; every other name is put at the mean of the 3 nearest of
    them, weighted by cosine. Fewer than 5 names are shown by their principal axes.

    Args:
        rows: (N, D) unit rows, in an order that does not depend on the machine (sorted names).

    Returns:
        (N, 2) float32.
    """
    placed = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_PLACED)).round().astype(np.int64))
    with threadpool_limits(limits=1):
        points = np.empty((len(rows), 2), dtype=np.float32)
        points[placed] = _place(rows[placed])
        rest = np.setdiff1d(np.arange(len(rows)), placed)
        cosine = rows[rest] @ rows[placed].T
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :NEAREST]
        near = np.maximum(np.take_along_axis(cosine, nearest, axis=1), 1e-3)
        points[rest] = (points[placed][nearest] * near[:, :, None]).sum(axis=1) / near.sum(axis=1, keepdims=True)
    return points.round(3)


def _place(rows: np.ndarray) -> np.ndarray:
    start = _principal(rows)
    spread = float(start[:, 0].std())
    if len(rows) < LEAST_TSNE or spread == 0:
        return start
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (len(rows) - 1) / 3),
        # an array is allowed; the scale is the one that scikit-learn gives its own PCA start
        init=start / spread * 1e-4,  # pyright: ignore[reportArgumentType]
        max_iter=ITERATIONS,
        n_jobs=1,
    )
    return tsne.fit_transform(rows)


def _principal(rows: np.ndarray) -> np.ndarray:
    """Return (n, 2) float32 scores on the two leading principal axes, signs fixed by an axis's largest entry."""
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * (lengths[:2] > 1e-6)[:, None]
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    scores = np.zeros((len(rows), 2), dtype=np.float32)
    scores[:, : len(axes)] = centred @ (axes * signs[:, None]).T
    return scores


# -- the stage -----------------------------------------------------------------------------------------------------

VERSION = 4  # 3: groups by stability; 4: probabilities of being wrong
CURVE = pl.Schema({"k": pl.Int32, **dict.fromkeys(("inertia", "score", "agreement", "by_chance", "error"), pl.Float64)})


def run(
    root: Path,
    cleaned: StageRun,
    evidence: StageRun,
    scraped: StageRun,
    config: ClusterConfig,
    progress: Progress,
    *,
    domain: str = "landmarks",
) -> StageRun:
    """Run the stage: ``names.parquet``, ``groups.parquet``, ``k_curve.parquet`` and ``map.parquet``.

    Args:
        root: the build's directory of stages.
        cleaned: the clean stage (names).
        evidence: the evidence stage (their rows).
        scraped: the scrape stage (the class graph).
        config: the options.
        progress: told what is being done.
        domain: of the names, whose rules labels of groups follow.

    Raises:
        ConfigError: options out of range, or more groups or clusters than the names allow.
        TableError: the inputs do not belong together.
    """
    check_options(config)
    inputs = {
        "clean/names": cleaned.path("names.parquet"),
        "evidence/rows": evidence.path("rows.npy"),
        "scrape/classes": scraped.path("classes.parquet"),
    }
    blocks = sorted(evidence.directory.glob("block-*.npy"))
    for file in (evidence.directory / "evidence.json", *blocks) if blocks else ():
        inputs[f"evidence/{file.name}"] = file
    return run_stage(
        "cluster",
        root,
        version=VERSION,
        config={**key_fields(config), "domain": domain},
        inputs=inputs,
        work=partial(_cluster, inputs, config, domain, progress),
    )


def check_rows(names: pl.DataFrame, embeddings: np.ndarray, file: Path) -> None:
    """Refuse embeddings that are not one row for each of some names.

    Raises:
        TableError: other numbers, or no name.
    """
    if len(names) != len(embeddings) or not len(names):
        raise TableError(
            f"{file}: {len(embeddings)} rows for the {len(names)} names of clean/names.parquet; expected one a name "
            "and at least one name. Remove the stage's folder, or look at what the clean stage dropped."
        )


def _cluster(
    inputs: Mapping[str, Path], config: ClusterConfig, domain: str, progress: Progress, out: Path
) -> StageResult:
    names = read_parquet(inputs["clean/names"])
    embeddings = read_embeddings(inputs["evidence/rows"])
    check_rows(names, embeddings, inputs["evidence/rows"])
    graph = ClassGraph.read(inputs["scrape/classes"])
    classes = [tuple(ids or ()) for ids in names["class_ids"].to_list()]
    similarity = graph.similarity(classes) if config.structure > 0 else None
    found = cluster_names(
        embeddings,
        names["name"].to_list(),
        config=config,
        weights=names["landmarks"].to_numpy(),
        similarity=similarity,
        progress=progress,
    )
    groups = _groups(names, classes, found, graph, domain)
    progress("estimate what is wrong", 0, 1)
    blocks = _blocks(inputs.get("evidence/evidence.json"))
    wrong = wrong_probabilities(found.rows, found.groups, names["name"].to_list(), blocks=blocks, seed=config.seed)
    progress("estimate what is wrong", 1, 1)
    members = names.select("name", "landmarks").with_columns(
        pl.Series("cluster", found.clusters),
        pl.Series("group", found.groups),
        pl.Series("confidence", found.confidence),
        pl.Series("next_group", found.next_groups).replace(-1, None),
        pl.Series("wrong", wrong),
        pl.Series("doubtful", wrong > DOUBTFUL),
    )
    progress("draw the map", 0, 1)
    places = name_map(found.rows)
    progress("draw the map", 1, 1)
    members.write_parquet(out / "names.parquet")
    groups.write_parquet(out / "groups.parquet")
    _curve(found).write_parquet(out / "k_curve.parquet")
    write_map(out, names, places)
    return _stage_result(found, config, similarity)


def _blocks(about: Path | None) -> list[np.ndarray]:
    """Return the rows of every evidence that takes part."""
    if about is None:
        return []
    evidence = read_evidence(about.parent)
    return [block.rows for block, weight in zip(evidence.blocks, evidence.weights, strict=True) if weight > 0]


def _groups(
    names: pl.DataFrame, classes: list[tuple[str, ...]], found: Clustering, graph: ClassGraph, domain: str
) -> pl.DataFrame:
    members: list[list[Member]] = [[] for _ in range(int(found.groups.max()) + 1)]
    rows = zip(names["name"], names["landmarks"], classes, found.centrality.tolist(), names["english"], strict=True)
    for group, row in zip(found.groups.tolist(), rows, strict=True):
        members[group].append(Member(*row))
    proposals = propose_labels(members, graph, NameRules.read(domain=domain), domain)
    return pl.DataFrame(
        {
            "group": range(len(members)),
            "label": [p.label for p in proposals],
            "method": [p.method for p in proposals],
            "evidence": [p.evidence for p in proposals],
            "names": [len(group) for group in members],
            "landmarks": [sum(m.landmarks for m in group) for group in members],
        },
        schema_overrides={"group": pl.Int32, "names": pl.Int64, "landmarks": pl.Int64},
    )


def _curve(found: Clustering) -> pl.DataFrame:
    """Return the curve of the criterion: numbers of clusters with their inertia, or of groups with their stability."""
    tried, stability = found.curve, found.stability or NOTHING_TO_CHOOSE
    absent = [None] * len(stability.k)
    columns = {
        "k": [*tried.k, *stability.k],
        "inertia": [*tried.inertia, *absent],
        "score": [*tried.score, *stability.score],
        "agreement": [*[None] * len(tried.k), *stability.agreement],
        "by_chance": [*[None] * len(tried.k), *stability.by_chance],
        "error": [*[None] * len(tried.k), *stability.error],
    }
    return pl.DataFrame(columns, schema=CURVE)


def write_map(out: Path, names: pl.DataFrame, places: np.ndarray) -> None:
    """Write ``map.parquet``: every name with its point, as of :func:`name_map`."""
    names.select("name").with_columns(x=places[:, 0], y=places[:, 1]).write_parquet(out / "map.parquet")


def write_no_curve(out: Path) -> None:
    """Write the ``k_curve.parquet`` of groups that are given: no number of them was tried."""
    pl.DataFrame(schema=CURVE).write_parquet(out / "k_curve.parquet")


def _stage_result(found: Clustering, config: ClusterConfig, similarity: np.ndarray | None) -> StageResult:
    counts: dict[str, int | float] = {
        "names": len(found.groups),
        "clusters": found.k,
        "groups": int(found.groups.max()) + 1,
    }
    notes: tuple[str, ...] = ()
    if similarity is not None:
        counts["names_in_class_graph"] = int((~np.isnan(similarity.diagonal())).sum())
        if not counts["names_in_class_graph"]:
            note = f"--structure {config.structure} changed nothing: no name has a known Wikidata class. "
            notes = (note + "The html route and --names give none; the api route does.",)
    if found.stability is not None and found.stability.best is None:
        notes = (*notes, _not_said(found, found.stability))
    details = {
        "k": (found.stability.best if found.stability else None) or found.k,
        "criterion": ("stability" if found.stability else config.criterion if found.curve.k else "given"),
        "threshold": round(found.threshold, 6),
        "wanted_groups": config.groups or None,
    }
    return StageResult(counts, notes=notes, details=details)


def _not_said(found: Clustering, stability: StabilityCurve) -> str:
    groups = int(found.groups.max()) + 1
    why = (
        f"no number from {stability.k[0]} to {stability.k[-1]} gives groups that come back on resamples more surely "
        "than fewer and more groups do"
        if stability.k
        else "there are too few names of different meaning to try numbers on resamples"
    )
    return (
        f"the data do not say how many groups there are: {why}. The {groups} here follow from the threshold "
        f"({found.threshold:.3f}); give --groups if you know a number."
    )
