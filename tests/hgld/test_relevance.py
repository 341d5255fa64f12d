"""Grades and relevance against slow implementations of their definitions, and against worked examples."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hgld
from hgld.errors import ConfigError, InputError
from tests import reference
from tests.rows import refused


def slow_grades(query, gallery):
    result = np.zeros((len(query), len(gallery)), dtype=int)
    for i, j in np.ndindex(result.shape):
        shared = [c for c, (q, g) in enumerate(zip(query[i], gallery[j], strict=True)) if q == g >= 0]
        result[i, j] = query.shape[1] - shared[0] if shared else 0
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
    st.booleans(),
)
def test_relevance_equals_reference(case, kind, alpha, count_query):
    num_levels, grades, weights = case
    options = {"alpha": alpha, "weights": weights, "count_query": count_query}
    fast = hgld.graded_relevance(grades, num_levels, kind, dtype=torch.float64, **options)
    for row, found in zip(grades.tolist(), fast.numpy(), strict=True):
        # the reference divides by the largest grade of the row instead of L
        scale = (max([*row, 1]) / num_levels) ** alpha if kind in ("population", "total") else 1.0
        expected = reference.relevances(row, num_levels, kind, **options)
        np.testing.assert_allclose(found, scale * np.array(expected), rtol=1e-12, atol=1e-15)


def test_level_of_zero_weight_gives_zero_not_nan():
    assert hgld.graded_relevance(torch.tensor([[1, 0]]), 2, "weighted_ap", weights=[0.0, 1.0]).tolist() == [[0.0, 0.0]]


test_shared_levels_refuse_invalid_labels = refused(
    hgld.shared_levels,
    [
        (torch.tensor([[0.0]]), torch.tensor([[0]]), "float32"),
        (torch.tensor([[0]]), torch.tensor([[0, 1]]), "1 levels and gallery labels 2"),
        (torch.zeros(1, 1, 1, dtype=torch.int64), torch.tensor([[0]]), r"\(1, 1, 1\)"),
        (torch.tensor([True]), torch.tensor([0]), "bool"),
    ],
    InputError,
)


test_graded_relevance_refuses_invalid_arguments = refused(
    lambda arguments: hgld.graded_relevance(**{"grades": torch.tensor([[2, 1, 0]]), "num_levels": 2, **arguments}),
    [
        ({"kind": "populaton"}, ConfigError, "populaton"),
        ({"alpha": float("nan")}, ConfigError, "nan"),
        ({"kind": "weighted_ap", "weights": [1.0]}, ConfigError, "expected 2"),
        ({"kind": "weighted_ap", "weights": [0.0, 0.0]}, ConfigError, "positive sum"),
        ({"num_levels": 1}, InputError, r"0\.\.1"),
        ({"num_levels": 0}, ConfigError, "num_levels is 0; expected at least 1"),
        ({"grades": torch.tensor([2, 1])}, InputError, r"\(Q, G\)"),
        ({"grades": torch.tensor([[2.0]])}, InputError, "integers"),
    ],
)
