"""Laws of the clustering: a partition, exact numbers, and nothing that depends on the order of names."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hgld.pipelines.hierarchy.groups.kmeans import k_curve, settle, spherical_kmeans, sums, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from threadpoolctl import threadpool_limits

from hgld.errors import ConfigError
from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder
from hgld.pipelines.hierarchy.groups.cluster import name_map
from hgld.pipelines.hierarchy.groups.clustering import Division, cluster_names, margins, mix, ward
from hgld.pipelines.hierarchy.sample import EXPECTED_GROUPS


def blobs(groups, members, dim=16, spread=0.15, seed=0):
    """Unit rows around orthogonal directions, and their groups."""
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(groups), members)
    rows = np.eye(dim)[truth] + spread * random.normal(size=(groups * members, dim)) / dim**0.5
    return unit(rows).astype(np.float32), truth


def names_of(count):
    return [f"name {i:04}" for i in range(count)]


def same_partition(a, b):
    return adjusted_rand_score(a, b) == 1


@st.composite
def unit_rows(draw, most=24):
    count = draw(st.integers(1, most))
    dim = draw(st.integers(2, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return unit(random.normal(size=(count, dim))).astype(np.float32)


FAST = settings(max_examples=15, deadline=None)


@FAST
@given(rows=unit_rows(), data=st.data())
def test_every_name_is_in_one_of_exactly_the_groups_asked_for(rows, data):
    wanted = data.draw(st.integers(1, len(rows)))
    found = cluster_names(rows, names_of(len(rows)), config=ClusterConfig(groups=wanted, restarts=1))
    assert found.groups.shape == (len(rows),)
    assert sorted(set(found.groups.tolist())) == list(range(wanted))
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    assert (found.next_groups != found.groups).all()
    assert ((found.next_groups >= 0) == (wanted > 1)).all()


@FAST
@given(rows=unit_rows(), seed=st.integers(0, 2**32 - 1), wanted=st.sampled_from([0, 1, 2]))
def test_the_order_of_names_changes_nothing(rows, seed, wanted):
    config = ClusterConfig(groups=min(wanted, len(rows)), restarts=2, weighted=True)
    names, weights = names_of(len(rows)), np.arange(1, len(rows) + 1)
    order = np.random.default_rng(seed).permutation(len(rows))
    here = cluster_names(rows, names, config=config, weights=weights)
    there = cluster_names(rows[order], [names[i] for i in order], config=config, weights=weights[order])
    for field in ("clusters", "groups", "confidence", "next_groups"):
        np.testing.assert_array_equal(getattr(here, field)[order], getattr(there, field))


@FAST
@given(rows=unit_rows(), factor=st.sampled_from([2, 4, 1024]))
def test_only_the_ratio_of_weights_counts(rows, factor):
    config = ClusterConfig(groups=min(3, len(rows)), restarts=2, weighted=True)
    weights = 1 + np.arange(len(rows)) % 5
    one = cluster_names(rows, names_of(len(rows)), config=config, weights=weights)
    many = cluster_names(rows, names_of(len(rows)), config=config, weights=weights * factor)
    np.testing.assert_array_equal(one.groups, many.groups)


def test_seed_and_weights_change_the_clusters_of_rows_without_structure():
    """So that what permutation, scaling and another number of threads leave alone is not left alone by everything."""
    rows = unit(np.random.default_rng(0).standard_normal((90, 6)).astype(np.float32))
    weights = 1 + np.arange(90) % 9

    def clusters(**fields):
        config = ClusterConfig(clusters=9, restarts=1, **fields)
        return cluster_names(rows, names_of(90), config=config, weights=weights).clusters.tolist()

    assert clusters() == clusters()
    assert clusters() != clusters(seed=1)
    assert clusters() != clusters(weighted=True)


@pytest.mark.parametrize("config", [ClusterConfig(groups=5), ClusterConfig(clusters=5), ClusterConfig()])
def test_separate_groups_are_found(config):
    rows, truth = blobs(5, 12)
    found = cluster_names(rows, names_of(len(rows)), config=config)
    assert same_partition(found.groups, truth)
    assert found.groups.tolist() == truth.tolist(), "groups are numbered in the order of their first names"


@pytest.mark.parametrize("criterion", ["silhouette", "elbow"])
def test_the_criterion_finds_the_number_of_separate_clusters(criterion):
    rows, truth = blobs(6, 30, spread=0.05)
    curve = k_curve(rows, weights=np.ones(len(rows)), criterion=criterion, seed=0)
    assert curve.best == truth.max() + 1
    assert list(curve.k) == sorted(set(curve.k))
    assert curve.inertia[curve.k.index(6)] < 0.1 < curve.inertia[0]


def test_a_given_k_has_no_curve_and_is_kept():
    rows, _ = blobs(5, 12)
    found = cluster_names(rows, names_of(len(rows)), config=ClusterConfig(clusters=3))
    assert found.k == 3
    assert found.curve.k == ()
    for group in range(found.groups.max() + 1):  # dividing never mixes clusters
        assert len(set(found.clusters[found.groups == group].tolist())) == 1


def test_a_higher_threshold_divides_less():
    rows, _ = blobs(5, 12, spread=1.5)
    counts = [
        cluster_names(rows, names_of(60), config=ClusterConfig(clusters=4, threshold=t)).groups.max() + 1
        for t in (1e-9, 0.3, 0.5, 0.7, 2.0)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 60
    assert counts[-1] == 4


def test_groups_of_many_names_are_joined_over_clusters():
    """Above 1,000 names the parts are not names: 40 clusters of k-means still come together as the 8 true groups."""
    rows, truth = blobs(8, 160, spread=0.4)
    found = cluster_names(rows, names_of(len(rows)), config=ClusterConfig(clusters=40, groups=8, restarts=1))
    assert adjusted_rand_score(truth, found.groups) > 0.99


def test_names_of_equal_vectors_stay_together():
    rows, _ = blobs(3, 4, spread=0)
    found = cluster_names(rows, names_of(12), config=ClusterConfig(groups=3))
    assert found.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    one = cluster_names(np.repeat(rows[:1], 5, axis=0), names_of(5), config=ClusterConfig())
    assert one.groups.tolist() == [0] * 5
    assert one.next_groups.tolist() == [-1] * 5


def test_one_name():
    found = cluster_names(np.array([[1, 0]], dtype=np.float32), ["lake"], config=ClusterConfig())
    assert (found.groups.tolist(), found.confidence.tolist(), found.k) == ([0], [1.0], 1)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (ClusterConfig(groups=4), "--groups 4 is more than the 3 names"),
        (ClusterConfig(clusters=9), "--clusters 9 is more than the 3 names"),
        (ClusterConfig(groups=-1), "--groups is -1"),
        (ClusterConfig(structure=1.5), "--structure is 1.5; expected a number from 0 to 1"),
        (ClusterConfig(threshold=float("nan")), "--threshold is nan"),
        (ClusterConfig(restarts=0), "--restarts is 0"),
    ],
)
def test_what_cannot_be_is_refused(config, told):
    rows, _ = blobs(3, 4, spread=0)
    with pytest.raises(ConfigError, match=told):
        cluster_names(rows, names_of(12), config=config)


@pytest.mark.parametrize(("rows", "names"), [(np.eye(3), ["a", "b"]), (np.eye(2), ["a", "a"]), (np.empty((0, 2)), [])])
def test_rows_and_names_must_fit(rows, names):
    with pytest.raises(ValueError, match="expected a row for each"):
        cluster_names(rows, names, config=ClusterConfig())


def test_the_number_of_threads_changes_no_bit():
    rows, _ = blobs(8, 60, spread=1.5)
    results = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads):
            results.append(cluster_names(rows, names_of(480), config=ClusterConfig(groups=9, restarts=2)))
    for field in ("clusters", "groups", "confidence", "next_groups"):
        assert getattr(results[0], field).tobytes() == getattr(results[1], field).tobytes()


def agreement(names, truth):
    """ARI and NMI of lexical's groups at the true number of groups."""
    config = ClusterConfig(groups=len(set(truth)))
    groups = cluster_names(LexicalEncoder(names).encode(names), names, config=config).groups
    return adjusted_rand_score(truth, groups), normalized_mutual_info_score(truth, groups)


def test_the_samples_groups_are_near_those_made_by_hand():
    expected = pl.read_csv(EXPECTED_GROUPS)
    ari, nmi = agreement(expected["name"].to_list(), expected["group"].to_list())
    assert ari >= 0.45
    assert nmi >= 0.75


@pytest.mark.skipif("HGLD_DATA" not in os.environ, reason="HGLD_DATA names no folder of real data")
def test_real_names_are_grouped_as_well_as_aimed_at():
    table = pl.read_csv(Path(os.environ["HGLD_DATA"]) / "gldv2_washington_landmarks" / "labels.csv")
    ari, nmi = agreement(table["label"].to_list(), table["mid"].to_list())
    assert ari >= 0.45
    assert nmi >= 0.75


# -- its parts ------------------------------------------------------------------------------------------------


@FAST
@given(rows=unit_rows(), data=st.data())
def test_ward_joins_as_scipy_does(rows, data):
    """With equal weights our chain and scipy's linkage make the same cuts (random rows have no ties)."""
    wanted = data.draw(st.integers(1, len(rows)))
    ours = ward(rows, np.ones(len(rows)), wanted)
    assert sorted(set(ours.tolist())) == list(range(wanted))
    if len(rows) > 1:
        theirs = fcluster(linkage(rows.astype(np.float64), "ward"), wanted, "maxclust")
        assert same_partition(ours, theirs)


@FAST
@given(rows=unit_rows(most=10), data=st.data())
def test_a_weight_is_as_many_equal_points(rows, data):
    weights = np.array(data.draw(st.lists(st.integers(1, 4), min_size=len(rows), max_size=len(rows))))
    wanted = data.draw(st.integers(1, len(rows)))
    joined = ward(rows, weights, wanted)
    copies = ward(np.repeat(rows, weights, axis=0), np.ones(weights.sum()), wanted)
    assert same_partition(np.repeat(joined, weights), copies)


@FAST
@given(rows=unit_rows(), data=st.data())
def test_settled_rows_are_nearest_to_their_own_centre(rows, data):
    k = data.draw(st.integers(1, len(rows)))
    weights = np.ones(len(rows))
    labels = spherical_kmeans(rows, k, weights=weights, restarts=2, seed=0)
    assert sorted(set(labels.tolist())) == list(range(k))
    np.testing.assert_array_equal(settle(rows, labels, weights), labels)
    start = np.arange(len(rows)) % k
    moved = settle(rows, start, weights)  # the objective of spherical k-means never falls
    assert np.linalg.norm(sums(rows, moved, weights, k), axis=1).sum() >= (
        np.linalg.norm(sums(rows, start, weights, k), axis=1).sum() - 1e-4
    )


def test_a_division_can_be_cut_into_at_least_so_many_parts():
    rows, truth = blobs(4, 10, spread=1.0)
    division = Division(rows, truth)
    for parts in (4, 7, 15, 39, 40):
        assert parts <= division.at(division.threshold_for(parts)).max() + 1 <= parts + 1
    assert division.at(division.threshold_for(1)).max() + 1 == 4, "clusters themselves are not joined"


def test_margins_by_hand():
    angle = np.deg2rad([0, 10, 90, 100, 50])
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    confidence, following, own = margins(rows, np.array([0, 0, 1, 1, 2]), np.ones(5))
    a, b = 1 - np.cos(np.deg2rad(10)), 1 - np.cos(np.deg2rad(50))  # own centre without itself; the group of one
    assert confidence[0] == pytest.approx((b - a) / b, abs=1e-5)
    assert following.tolist() == [2, 2, 2, 2, 0]
    assert confidence[4] == 0, "alone in its group"
    assert own[0] == pytest.approx(np.cos(np.deg2rad(5)), abs=1e-5)


def test_structure_is_the_weighted_mean_of_the_two_distances():
    rows, _ = blobs(3, 4, spread=1.0)
    graph = np.kron(np.eye(4), np.ones((3, 3))).astype(np.float32) * 0.5 + np.eye(12, dtype=np.float32) * 0.5
    for weight in (0.0, 0.25, 1.0):
        mixed = mix(rows, graph, weight)
        np.testing.assert_allclose(mixed @ mixed.T, (1 - weight) * rows @ rows.T + weight * graph, atol=1e-5)
    assert mix(rows, graph, 0.0) is rows
    assert mix(rows, np.full((12, 12), np.nan, dtype=np.float32), 0.7) is rows, "nothing known: the text alone"


def test_names_outside_the_graph_take_the_place_of_their_neighbours():
    rows, truth = blobs(2, 6, spread=0.3)
    graph = (truth[:, None] == truth[None]).astype(np.float32)
    graph[0, :] = graph[:, 0] = np.nan
    mixed = mix(rows, graph, 1.0)
    np.testing.assert_allclose(np.linalg.norm(mixed, axis=1), 1, atol=1e-5)
    assert (mixed[0] @ mixed[1:6].T > 0.99).all()
    assert (mixed[0] @ mixed[6:].T < 0.01).all()


def test_structure_decides_what_the_text_leaves_open():
    rows = np.tile(unit(np.ones((1, 4))), (6, 1)).astype(np.float32) + 0.01 * np.eye(6, 4, dtype=np.float32)
    graph = np.kron(np.eye(2), np.ones((3, 3))).astype(np.float32)
    config = ClusterConfig(groups=2, structure=0.5)
    found = cluster_names(unit(rows), names_of(6), config=config, similarity=graph)
    assert found.groups.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("count", [1, 2, 4, 5, 40])
def test_every_name_has_a_place_on_the_map(count):
    rows, _ = blobs(max(1, count // 4), 4)
    rows = np.repeat(rows, 2, axis=0)[:count]
    points = name_map(rows)
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()
    assert points.tobytes() == name_map(rows).tobytes()


def test_the_map_keeps_neighbours_and_places_names_beyond_the_most_placed(monkeypatch):
    monkeypatch.setattr("hgld.pipelines.hierarchy.groups.cluster.MOST_PLACED", 200)
    rows, truth = blobs(6, 50, spread=0.3)
    points = name_map(rows)
    centres = np.stack([points[truth == g].mean(axis=0) for g in range(6)])
    nearest = ((points[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == truth).mean() > 0.98
