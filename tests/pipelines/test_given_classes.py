"""Classes given by texts: shares, neighbours that help, and names that are left open."""

import numpy as np
import pytest
from hgld.pipelines.hierarchy.groups.kmeans import unit
from hgld.pipelines.hierarchy.levels.given_classes import class_shares
from hypothesis import given
from hypothesis import strategies as st


def clouds(spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(seed)
    centres = unit(random.normal(size=(3, 16)))
    labels = np.repeat([0, 1, 2], [60, 20, 10])
    rows = unit(centres[labels] + spread * random.normal(size=(90, 16)) / 4).astype(np.float32)
    texts = [unit(c[None] + 0.8 * random.normal(size=(2, 16)) / 4).astype(np.float32) for c in centres]
    return rows, labels, texts


def test_neighbours_settle_what_the_texts_leave_open():
    rows, labels, texts = clouds(1.0)
    nearest = np.stack([(rows @ text.T).max(axis=1) for text in texts], axis=1).argmax(axis=1)
    found = class_shares(rows, texts).shares.argmax(axis=1)
    assert (found == labels).mean() > max(0.9, (nearest == labels).mean())


def test_a_larger_margin_decides_fewer_names_and_errs_less():
    rows, labels, texts = clouds(1.9, seed=2)
    shares = class_shares(rows, texts)
    coverage, error = [], []
    for margin in (0.0, 0.2, 0.5):
        decided = shares.decided(margin)
        coverage.append((decided >= 0).mean())
        error.append((decided != labels)[decided >= 0].mean())
    assert coverage == sorted(coverage, reverse=True)
    assert coverage[0] == 1 > coverage[2] > 0
    assert error[0] > error[1] >= error[2]


def test_names_that_nothing_is_said_about_stay_open():
    rows = np.eye(6, dtype=np.float32)
    texts = [rows[[0]], rows[[1]]]
    shares = class_shares(rows, texts)
    assert shares.decided().tolist() == [0, 1, -1, -1, -1, -1]
    np.testing.assert_allclose(shares.shares[2:], 0.5)


@given(st.integers(2, 30), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_shares_sum_to_one_and_follow_the_order_of_names(count, classes, seed):
    random = np.random.default_rng(seed)
    rows = unit(random.normal(size=(count, 6))).astype(np.float32)
    texts = [unit(random.normal(size=(2, 6))).astype(np.float32) for _ in range(classes)]
    shares = class_shares(rows, texts).shares
    assert shares.min() >= 0
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    order = random.permutation(count)
    np.testing.assert_allclose(class_shares(rows[order], texts).shares, shares[order], atol=1e-6)


def test_a_groups_share_is_the_weighted_mean_of_its_names():
    rows, _, texts = clouds(1.0)
    shares = class_shares(rows, texts)
    mean = shares.of_group(np.array([0, 70]), np.array([3, 1]))
    assert mean == pytest.approx((3 * shares.shares[0] + shares.shares[70]) / 4)
