"""Grades and relevance against slow implementations of their definitions, and against worked examples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hgld
from hgld.errors import ConfigError, InputError
from hgld.relevance import GainFunction


def slow_grades(query, gallery):
    num_levels = query.shape[1]
    result = np.zeros((len(query), len(gallery)), dtype=int)
    for i, q in enumerate(query):
        for j, g in enumerate(gallery):
            for c in range(num_levels):
                if q[c] == g[c] and q[c] >= 0:
                    result[i, j] = num_levels - c
                    break
    return result


def slow_relevance(grades, num_levels, kind, alpha, weights):
    result = np.zeros(grades.shape)
    for i, row in enumerate(grades):
        with_positives = [p for p in range(1, num_levels + 1) if np.sum(row >= p) > 0]
        given_weights = weights or [1 / num_levels] * num_levels
        norm = sum(given_weights[p - 1] for p in with_positives)
        for j, grade in enumerate(row):
            if grade == 0:
                continue
            if kind == "population":
                result[i, j] = (grade / num_levels) ** alpha / np.sum(row == grade)
            elif kind == "total":
                result[i, j] = (grade / num_levels) ** alpha
            elif kind == "exponential":
                result[i, j] = 2**grade - 1
            elif norm > 0:
                result[i, j] = sum(given_weights[p - 1] / norm / np.sum(row >= p) for p in range(1, grade + 1))
    return result


def label_tables(levels):
    return hnp.arrays(np.int64, st.tuples(st.integers(0, 6), st.just(levels)), elements=st.integers(-1, 2))


@given(st.integers(1, 4).flatmap(lambda n: st.tuples(label_tables(n), label_tables(n))))
def test_grades_equal_reference(tables):
    query, gallery = tables
    grades = hgld.shared_levels(torch.from_numpy(query), gallery)
    assert grades.dtype == torch.int64
    np.testing.assert_array_equal(grades.numpy(), slow_grades(query, gallery))


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.just(n),
            hnp.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(0, 8)), elements=st.integers(0, n)),
            st.none() | st.lists(st.floats(0.1, 5), min_size=n, max_size=n),
        )
    ),
    st.sampled_from(["population", "total", "weighted_ap", "exponential"]),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
def test_relevance_equals_reference(case, kind, alpha):
    num_levels, grades, weights = case
    fast = hgld.graded_relevance(grades, num_levels, kind, alpha, weights, dtype=torch.float64)
    np.testing.assert_allclose(
        fast.numpy(), slow_relevance(grades, num_levels, kind, alpha, weights), rtol=1e-12, atol=1e-15
    )


def test_count_query_lowers_relevance_of_own_class_only():
    grades = torch.tensor([[2, 2, 1]])
    assert hgld.graded_relevance(grades, 2, count_query=True).tolist()[0] == pytest.approx([1 / 3, 1 / 3, 1 / 2])
    assert hgld.graded_relevance(grades, 2).tolist()[0] == pytest.approx([1 / 2, 1 / 2, 1 / 2])


def test_level_of_zero_weight_gives_zero_not_nan():
    assert hgld.graded_relevance(torch.tensor([[1, 0]]), 2, "weighted_ap", weights=[0.0, 1.0]).tolist() == [[0.0, 0.0]]


@given(
    st.integers(1, 7).flatmap(
        lambda n: hnp.arrays(np.int64, st.tuples(st.integers(1, 4), st.just(n + 1)), elements=st.integers(0, 3))
    ),
    st.sampled_from(["population", "total", "weighted_ap", "exponential"]),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.booleans(),
)
def test_relative_gains_are_proportional_to_gains(counts, kind, alpha, count_query):
    counts, gain = torch.from_numpy(counts), GainFunction(kind, alpha, count_query=count_query)
    gains, relative = gain.of_counts(counts, relative=False), gain.of_counts(counts)
    for row, own, other in zip(counts[:, 1:], gains[:, 1:], relative[:, 1:], strict=True):
        if (row > 0).any():
            here = row > 0
            unit = own[here].max() / other[here].max()
            np.testing.assert_allclose(other[here] * unit, own[here], rtol=1e-12)
    assert not gains[:, 0].any()
    assert not relative[:, 0].any()


def test_relative_gains_stay_above_zero_for_large_alpha():
    counts = torch.tensor([[5, 2, 0, 0], [5, 2, 3, 0]])
    gain = GainFunction(alpha=5000.0)
    assert gain.of_counts(counts).tolist() == [[0, 0.5, 0, 0], [0, 0, 1 / 3, 0]]
    assert not gain.of_counts(counts, relative=False)[:, :3].any()


@pytest.mark.parametrize(
    ("query", "gallery", "words"),
    [
        (torch.tensor([[0.0]]), torch.tensor([[0]]), "float32"),
        (torch.tensor([[0]]), torch.tensor([[0, 1]]), "1 levels and gallery labels 2"),
        (torch.zeros(1, 1, 1, dtype=torch.int64), torch.tensor([[0]]), r"\(1, 1, 1\)"),
        (torch.tensor([True]), torch.tensor([0]), "bool"),
    ],
)
def test_shared_levels_refuse_invalid_labels(query, gallery, words):
    with pytest.raises(InputError, match=words):
        hgld.shared_levels(query, gallery)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"kind": "populaton"}, ConfigError, "populaton"),
        ({"alpha": -1.0}, ConfigError, "-1.0"),
        ({"alpha": float("nan")}, ConfigError, "nan"),
        ({"kind": "weighted_ap", "weights": [1.0]}, ConfigError, "expected 2"),
        ({"kind": "weighted_ap", "weights": [0.0, 0.0]}, ConfigError, "positive sum"),
        ({"num_levels": 1}, InputError, r"0\.\.1"),
        ({"num_levels": 0}, ConfigError, "at least one"),
        ({"grades": torch.tensor([2, 1])}, InputError, "(Q, G)"),
        ({"grades": torch.tensor([[2.0]])}, InputError, "integers"),
    ],
)
def test_graded_relevance_refuses_invalid_arguments(arguments, error, words):
    call = {"grades": torch.tensor([[2, 1, 0]]), "num_levels": 2, **arguments}
    with pytest.raises(error, match=words.replace("(Q", r"\(Q").replace("G)", r"G\)")):
        hgld.graded_relevance(**call)
