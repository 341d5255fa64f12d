"""The cluster stage, which groups names by their vectors, with a label per group and a confidence per name.

Names with equal vectors form one point, whose weight is the number of these names. Ward's linkage joins the points, and
its tree is cut into the wanted number of groups; or k-means divides the points. Then every point moves to the group
whose centre has the highest cosine, until no point moves (spherical k-means: Dhillon and Modha, Machine Learning 42,
2001). More than 6,000 points are first joined by k-means into at least 2,000 parts.

Without a wanted number, the stage tries a geometric series of numbers up to half of the points. It takes the number
with the highest mean simplified silhouette (:func:`silhouettes`). :func:`coarsen` finds the levels above the groups in
the same way, from the mean vectors of the groups.

One thread does all sums, so that the number of cores does not change the groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import KMeans, MiniBatchKMeans
from threadpoolctl import threadpool_limits

from hgld.errors import ConfigError
from hgld.settings import key_fields
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage, silent
from ..config import BuildConfig, ClusterConfig
from ..encoders.embed import read_embeddings
from ..names.class_graph import ClassGraph
from ..unit_rows import leading_axes, silhouettes, sums, unit
from .doubt import wrong_probabilities
from .evidence import read_evidence
from .group_names import label_groups

MOST_LINKED = 6000  # maximum number of points for the linkage, whose distances then take 150 MB
_LEAST_PARTS, _PARTS_PER_GROUP = 2000, 4
_MOST_COPIES = 2000  # maximum number of points in the linkage, in which copies represent weights
_MOST_TRIED = 24
_MOST_ROUNDS = 100
_TRIAL_RESTARTS = 2  # restarts that are enough to compare numbers of groups


@dataclass(frozen=True, eq=False)
class Clustering:
    """The group of every name, in the order in which the names were given.

    Attributes:
        groups: (N,) int32 group of every name; groups are numbered in the order of first occurrence.
        confidence: (N,) float32, 0..1: the simplified silhouette, or 0 if it is negative.
        next_groups: (N,) int32: the nearest other group; -1 if there is no other group.
        centrality: (N,) float32: cosine with the centre of the name's group.
        tried: score of every tried number of groups; empty if the user gave the number.
    """

    groups: np.ndarray
    confidence: np.ndarray
    next_groups: np.ndarray
    centrality: np.ndarray
    tried: dict[int, float] = field(default_factory=dict)


def cluster_names(rows: np.ndarray, config: ClusterConfig, progress: Progress = silent) -> Clustering:
    """Group names by their embeddings.

    Args:
        rows: (N, D) unit rows, one per name, N at least 1.
        config: number of groups, method and seed.
        progress: function that receives the current task.

    Raises:
        ConfigError: more groups are wanted than there are different vectors.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    _, first, point = np.unique(np.round(rows, 6), axis=0, return_index=True, return_inverse=True)
    point = np.argsort(np.argsort(first))[point.ravel()]  # number the points in the order of their first rows
    points, weights = unit(rows[np.sort(first)]), np.bincount(point).astype(np.float64)
    if config.groups > len(points):
        raise ConfigError(
            f"--groups is {config.groups}, but the {len(rows)} names have only {len(points)} different embeddings. "
            f"Choose at most {len(points)}."
        )
    progress("group the names", 0, 1)
    with threadpool_limits(limits=1):
        part, parts, mass = _parts(points, weights, config)
        numbers = [config.groups] if config.groups else numbers_to_try(len(parts))
        if config.method == "kmeans":
            restarts = 10 if config.groups else _TRIAL_RESTARTS
            cuts = [kmeans(parts, k, weights=mass, restarts=restarts, seed=config.seed) for k in numbers]
        else:
            cuts = ward_cuts(parts, mass, numbers)
        best, scores = _best(unit(parts), cuts, mass)
        groups = _numbered(settle(points, cuts[best][part], weights)[point])
        score, following, own = silhouettes(rows, groups)
    progress("group the names", 1, 1)
    return Clustering(
        groups.astype(np.int32),
        np.clip(score, 0, 1),
        following.astype(np.int32),
        own,
        {} if config.groups else dict(zip(numbers, scores, strict=True)),
    )


def coarsen(rows: np.ndarray, units: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Join groups into coarser groups by Ward's linkage of their names' mean rows.

    Args:
        rows: (N, D) unit rows of names.
        units: (N,) the group of every name, 0..U-1; every group has at least one name.
        wanted: number of coarser groups; 0: chosen from the data; more than U counts as U.

    Returns:
        (U,) the coarser group of every group, numbered in the order of first occurrence; (U,) float32 margins (0..1) by
        which each group is nearer to its coarser group than to the next coarser group.
    """
    mass = np.bincount(units).astype(np.float64)
    with threadpool_limits(limits=1):
        means = sums(rows.astype(np.float64), units, len(mass)) / mass[:, None]
        cuts = ward_cuts(means, mass, [min(wanted, len(mass))] if wanted else numbers_to_try(len(mass)))
        centres = unit(means)
        labels = _numbered(cuts[_best(centres, cuts, mass)[0]])
        return labels, np.clip(silhouettes(centres, labels, mass)[0], 0, 1)


def numbers_to_try(count: int) -> list[int]:
    """Return the numbers of groups to try: a geometric series from 2 to half the number of points."""
    if count <= 2:
        return [count]
    return sorted({round(number) for number in np.geomspace(2, max(2, count // 2), _MOST_TRIED)})


def ward_cuts(points: np.ndarray, weights: np.ndarray, numbers: Sequence[int]) -> list[np.ndarray]:
    """Join weighted points by Ward's criterion and cut the tree at several numbers of groups.

    scipy's linkage has no weights. So points are repeated in proportion to their weights, to about 2,000 points in all.

    Args:
        points: (n, D) points.
        weights: (n,) weights of the points, above 0.
        numbers: numbers of groups, each 1..n.

    Returns:
        for each number of groups, (n,) labels of the points.
    """
    if len(points) == 1:
        return [np.zeros(1, dtype=np.int64) for _ in numbers]
    copies = np.maximum(1, np.round(weights * min(1, _MOST_COPIES / weights.sum()))).astype(np.int64)
    tree = linkage(np.repeat(points, copies, axis=0).astype(np.float64), "ward")
    first = np.cumsum(copies) - copies
    # heights of the tree's joins by rank: if real heights were equal, a cut could miss the number of groups
    order = np.arange(len(tree), dtype=np.float64)
    return [fcluster(tree, number, "maxclust_monocrit", monocrit=order)[first] - 1 for number in numbers]


def kmeans(rows: np.ndarray, k: int, *, weights: np.ndarray, restarts: int, seed: int) -> np.ndarray:
    """Return (N,) labels 0..k-1 of rows by k-means on their 64 leading axes, improved by :func:`settle`."""
    found = KMeans(k, n_init=restarts, random_state=seed)  # pyright: ignore[reportArgumentType]  # an int is allowed
    return settle(unit(rows), found.fit_predict(leading_axes(rows), sample_weight=weights), weights)


def settle(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Move every row to the group whose centre has the highest cosine, until no row moves.

    A round that would empty a group ends the loop, so the number of groups stays the same.

    Args:
        rows: (N, D) unit rows.
        labels: (N,) initial labels 0..k-1.
        weights: (N,) weights of the rows, above 0.

    Returns:
        (N,) labels 0..k-1.
    """
    k = int(labels.max()) + 1
    for _ in range(_MOST_ROUNDS):
        cosine = rows @ unit(sums(rows, labels, k, weights)).T
        own = np.take_along_axis(cosine, labels[:, None], axis=1)[:, 0]
        # rows move only for a real gain, because the last bits of a sum differ between machines
        moved = np.where(own >= cosine.max(axis=1) - 1e-6, labels, cosine.argmax(axis=1))
        if np.array_equal(moved, labels) or len(np.unique(moved)) < k:
            break
        labels = moved
    return labels


def _parts(points: np.ndarray, weights: np.ndarray, config: ClusterConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the part of every point, and the parts' means and weights; up to 6,000 points are one part each."""
    if len(points) <= MOST_LINKED:
        return np.arange(len(points)), points, weights
    wanted = min(len(points), max(_LEAST_PARTS, _PARTS_PER_GROUP * config.groups))
    found = MiniBatchKMeans(
        wanted,
        n_init=1,  # pyright: ignore[reportArgumentType]  # an int is allowed
        batch_size=4096,
        random_state=config.seed,
        reassignment_ratio=0,
    )
    part = np.unique(found.fit_predict(leading_axes(points), sample_weight=weights), return_inverse=True)[1]
    mass = np.bincount(part, weights)
    return part, (sums(points, part, len(mass), weights) / mass[:, None]).astype(np.float32), mass


def _best(rows: np.ndarray, cuts: Sequence[np.ndarray], weights: np.ndarray) -> tuple[int, list[float]]:
    """Return the index of the first cut with the highest mean silhouette, and all scores."""
    if len(cuts) == 1:
        return 0, [0.0]
    means = [np.average(np.clip(silhouettes(rows, cut, weights)[0], 0, 1), weights=weights) for cut in cuts]
    scores = [round(float(mean), 6) for mean in means]
    return scores.index(max(scores)), scores


def _numbered(labels: np.ndarray) -> np.ndarray:
    """Return the same partition with labels in the order of their first occurrence."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.ravel()]


# -- the stage ---------------------------------------------------------------------------------------------------------

VERSION = 8  # version 8: names have error probabilities without a mark for the doubtful ones


def run(root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress) -> StageRun:
    """Run the stage, which writes ``names.parquet`` and ``groups.parquet``.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: options of grouping, and the domain, whose rules apply to the groups' labels.
        progress: receives the current task.

    Raises:
        ConfigError: more groups are wanted than the names allow.
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
        names: table ``names.parquet`` of the stage clean.
        placed: the group of every name.
        wrong: (N,) probabilities that the name's group is wrong.
        labels: label, method and evidence of every group.
    """
    members = names.select("name", "landmarks").with_columns(
        pl.Series("group", placed.groups, dtype=pl.Int32),
        pl.Series("confidence", placed.confidence, dtype=pl.Float32),
        pl.Series("next_group", placed.next_groups, dtype=pl.Int32).replace(-1, None),
        pl.Series("wrong", wrong, dtype=pl.Float32),
    )
    sizes = members.group_by("group").agg(pl.len().cast(pl.Int64).alias("names"), pl.col("landmarks").sum())
    table = pl.DataFrame(labels, schema=dict.fromkeys(("label", "method", "evidence"), pl.String), orient="row")
    groups = table.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("group"), pl.all()).join(
        sizes, on="group", how="left", maintain_order="left"
    )
    members.write_parquet(out / "names.parquet")
    groups.with_columns(pl.col("names", "landmarks").fill_null(0)).write_parquet(out / "groups.parquet")
