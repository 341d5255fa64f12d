"""The number of groups by stability, and the tree that is cut for it."""

import numpy as np
import pytest
from hgld.pipelines.hierarchy.groups.group_count import numbers_to_try, stability_curve
from hgld.pipelines.hierarchy.groups.kmeans import unit
from hgld.pipelines.hierarchy.groups.ward_tree import ward, ward_cuts
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score

from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.groups import clustering
from hgld.pipelines.hierarchy.groups.clustering import cluster_names


def blobs(groups: int, members: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(groups), members)
    centres = random.normal(size=(groups, 24))
    return unit(centres[labels] + spread * random.normal(size=(len(labels), 24))).astype(np.float32), labels


@pytest.mark.parametrize(
    ("groups", "members"), [(14, 9), *(pytest.param(*n, marks=pytest.mark.slow) for n in [(8, 12), (20, 10)])]
)
def test_the_number_of_groups_that_are_there_is_the_curves_inner_optimum(groups, members):
    rows, labels = blobs(groups, members, spread=0.35)
    curve = stability_curve(rows, np.ones(len(rows)), names=len(rows), seed=0)
    assert curve.best is not None
    assert abs(curve.best - groups) <= 2
    assert 0 < curve.k.index(curve.best) < len(curve.k) - 1
    assert curve.score[curve.k.index(curve.best)] > max(curve.score[0], curve.score[-1])
    found = cluster_names(rows, [f"{i:04}" for i in range(len(rows))], config=ClusterConfig())
    assert found.stability is not None
    assert found.groups.max() + 1 == found.stability.best
    assert found.stability.best == pytest.approx(groups, abs=2)
    assert adjusted_rand_score(labels, found.groups) > 0.9


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_rows_without_groups_say_no_number_and_the_threshold_decides(seed):
    rows = unit(np.random.default_rng(seed).normal(size=(120, 24))).astype(np.float32)
    found = cluster_names(rows, [f"{i:04}" for i in range(120)], config=ClusterConfig(seed=seed))
    assert found.stability is not None
    assert found.stability.best is None
    assert max(found.stability.score) < 0.2, "agreement is nearly what it is by chance"
    config = ClusterConfig(threshold=found.threshold, seed=seed)
    by_threshold = cluster_names(rows, [f"{i:04}" for i in range(120)], config=config)
    assert np.array_equal(found.groups, by_threshold.groups)


def test_many_names_are_compared_by_their_parts_and_the_seed_decides(monkeypatch):
    monkeypatch.setattr(clustering, "LEAST_PARTS", 150)
    rows, labels = blobs(14, 12, spread=0.35)
    names = [f"{i:04}" for i in range(len(rows))]
    found = cluster_names(rows, names, config=ClusterConfig())
    assert found.stability is not None
    assert found.stability.best is not None
    assert adjusted_rand_score(labels, found.groups) > 0.85
    assert cluster_names(rows, names, config=ClusterConfig()).stability == found.stability
    assert cluster_names(rows, names, config=ClusterConfig(seed=1)).stability != found.stability


@pytest.mark.parametrize(("points", "names"), [(3, 3), (11, 11), (12, 50_000)])
def test_where_there_is_nothing_to_choose_nothing_is_tried(points, names):
    assert numbers_to_try(points, names) == []
    curve = stability_curve(np.eye(points), np.ones(points), names=names, seed=0)
    assert (curve.k, curve.best) == ((), None)


@given(st.integers(3, 25), st.integers(0, 2**32 - 1), st.booleans())
def test_cuts_of_one_tree_are_nested_and_those_of_single_cuts(count, seed, weighted):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, 4))
    weights = random.integers(1, 5, count).astype(float) if weighted else np.full(count, 3.0)
    numbers = list(range(1, count + 1))
    cuts = ward_cuts(rows, weights, numbers)
    for column, number in enumerate(numbers):
        assert len(np.unique(cuts[:, column])) == number
        assert np.array_equal(cuts[:, column], ward(rows, weights, number))
        if column:
            assert len({tuple(pair) for pair in cuts[:, column - 1 : column + 1]}) == number, "each part lies in one"
    if not weighted:
        known = [fcluster(linkage(rows, "ward"), number, "maxclust") for number in numbers]
        assert all(adjusted_rand_score(known[i], cuts[:, i]) == 1 for i in range(count))
