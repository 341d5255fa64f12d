"""Clustering gives partitions with exact group counts and the same result for any number of threads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from hgld.errors import ConfigError
from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.groups import cluster
from hgld.pipelines.hierarchy.groups.cluster import cluster_names, coarsen, kmeans, settle, ward_cuts
from hgld.pipelines.hierarchy.unit_rows import nearest, silhouettes, sums, unit
from tests.rows import each_row

FAST = settings(max_examples=10)
METHODS = ("ward", "kmeans")


def blobs(groups, members, dim=16, spread=0.15, seed=0):
    """Return unit vectors around orthogonal directions, and their groups."""
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(groups), members)
    rows = np.eye(dim)[truth] + spread * random.normal(size=(groups * members, dim)) / dim**0.5
    return unit(rows).astype(np.float32), truth


@st.composite
def unit_rows(draw, most=24):
    count, dim = draw(st.integers(1, most)), draw(st.integers(2, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return unit(random.normal(size=(count, dim))).astype(np.float32)


@FAST
@given(rows=unit_rows(), method=st.sampled_from(METHODS), data=st.data())
def test_clustering_gives_exactly_the_requested_number_of_groups(rows, method, data):
    wanted = data.draw(st.integers(1, len(rows)))
    found = cluster_names(rows, ClusterConfig(groups=wanted, method=method))
    assert found.groups.shape == (len(rows),)
    assert list(dict.fromkeys(found.groups.tolist())) == list(range(wanted)), (
        "groups are numbered in the order of their first names"
    )
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    assert (found.next_groups != found.groups).all()
    assert ((found.next_groups >= 0) == (wanted > 1)).all()


@each_row("method", METHODS)
@each_row("wanted", [5, 0])
def test_clustering_finds_well_separated_groups_and_their_number(method, wanted):
    rows, truth = blobs(5, 12)
    found = cluster_names(rows, ClusterConfig(groups=wanted, method=method))
    assert found.groups.tolist() == truth.tolist()
    assert max(found.tried, key=lambda count: found.tried[count], default=5) == 5
    assert bool(found.tried) == (wanted == 0)


def test_names_above_the_linkage_limit_are_grouped_in_two_steps(monkeypatch):
    monkeypatch.setattr(cluster, "MOST_LINKED", 250)
    monkeypatch.setattr(cluster, "_LEAST_PARTS", 50)
    rows, truth = blobs(8, 80, spread=0.4)
    for wanted in (8, 0):
        found = cluster_names(rows, ClusterConfig(groups=wanted))
        assert adjusted_rand_score(truth, found.groups) > 0.99


def test_names_with_equal_vectors_share_a_group():
    rows, _ = blobs(3, 4, spread=0)
    assert cluster_names(rows, ClusterConfig(groups=3)).groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    one = cluster_names(np.repeat(rows[:1], 5, axis=0), ClusterConfig())
    assert (one.groups.tolist(), one.next_groups.tolist()) == ([0] * 5, [-1] * 5)
    with pytest.raises(ConfigError, match=r"--groups is 4, but .* only 3 different"):
        cluster_names(rows, ClusterConfig(groups=4))


def test_number_of_threads_does_not_change_groups():
    rows, _ = blobs(8, 60, spread=1.5)
    results = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads):
            results.append(cluster_names(rows, ClusterConfig(groups=9)))
    for field in ("groups", "confidence", "next_groups"):
        assert getattr(results[0], field).tobytes() == getattr(results[1], field).tobytes()


# -- steps of the clustering ------------------------------------------------------------------------------------------


@FAST
@given(rows=unit_rows(most=10), data=st.data())
def test_weighted_ward_cuts_match_scipy_with_repeated_points(rows, data):
    weights = np.array(data.draw(st.lists(st.integers(1, 4), min_size=len(rows), max_size=len(rows))))
    wanted = data.draw(st.integers(1, len(rows)))
    [labels] = ward_cuts(rows, weights, [wanted])
    assert len(set(labels.tolist())) == wanted
    if len(rows) > 1:
        tree = linkage(np.repeat(rows, weights, axis=0).astype(np.float64), "ward")
        assert adjusted_rand_score(np.repeat(labels, weights), fcluster(tree, wanted, "maxclust")) == 1
    [labels] = ward_cuts(np.eye(9), np.ones(9), [4])
    assert len(set(labels.tolist())) == 4, "points at equal distances are not split into 4 groups"


@FAST
@given(rows=unit_rows(), data=st.data())
def test_settling_assigns_every_row_to_its_nearest_centre(rows, data):
    k = data.draw(st.integers(1, len(rows)))
    weights = np.ones(len(rows))
    labels = kmeans(rows, k, weights=weights, restarts=2, seed=0)
    assert sorted(set(labels.tolist())) == list(range(k))
    np.testing.assert_array_equal(settle(rows, labels, weights), labels)
    start = np.arange(len(rows)) % k
    moved = settle(rows, start, weights)  # settling must not lower the objective of spherical k-means
    lengths = [np.linalg.norm(sums(rows, each, k), axis=1).sum() for each in (start, moved)]
    assert lengths[1] >= lengths[0] - 1e-4


def test_silhouettes_match_values_computed_by_hand():
    angle = np.deg2rad([0, 10, 90, 100, 50])
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    score, following, own = silhouettes(rows, np.array([0, 0, 1, 1, 2]))
    # a: cosine distance to the other row of the group; b: to the single row of the nearest group
    a, b = 1 - np.cos(np.deg2rad(10)), 1 - np.cos(np.deg2rad(50))
    assert score[0] == pytest.approx((b - a) / b, abs=1e-5)
    assert following.tolist() == [2, 2, 2, 2, 0]
    assert score[4] == 0, "a row alone in its group has score 0"
    assert own[0] == pytest.approx(np.cos(np.deg2rad(5)), abs=1e-5)


def test_coarsening_joins_near_groups_and_finds_their_number():
    centres = np.kron(np.eye(3), np.ones((2, 1)))
    centres = np.hstack([centres, np.tile([[0.1], [-0.1]], (3, 1))])
    rows = np.repeat(centres, 8, axis=0) + np.random.default_rng(0).normal(0, 0.05, (48, 4))
    for wanted, expected in {0: [0, 0, 1, 1, 2, 2], 3: [0, 0, 1, 1, 2, 2], 9: [0, 1, 2, 3, 4, 5]}.items():
        joined, margin = coarsen(unit(rows).astype(np.float32), np.repeat(np.arange(6), 8), wanted)
        assert joined.tolist() == expected
        assert wanted == 9 or (margin > 0.5).all()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_nearest_rows_match_a_full_sort(count, wanted, seed):
    rows = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    indices, cosines = nearest(rows, rows, wanted)
    cosine = rows @ rows.T
    assert np.array_equal(indices, np.argsort(-cosine, axis=1, kind="stable")[:, :wanted])
    assert np.array_equal(cosines, np.take_along_axis(cosine, indices, axis=1))
