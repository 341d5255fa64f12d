"""Whitening, query expansion and pooling over scales against reference implementations."""

import json
import operator

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sklearn.decomposition import PCA

import hgld.evaluation.postprocess
import hgld.evaluation.row_table
from hgld.errors import ConfigError, InputError, SchemaError
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import Whitening, expand_queries, pool_scales
from tests.rows import each_row, refused


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_rows(seed, *shape):
    generator = np.random.default_rng(seed)
    return generator.normal(size=shape) @ np.diag(np.linspace(0.2, 2, shape[-1])) + generator.normal(size=shape[-1])


@pytest.fixture
def fitted():
    return Whitening.fit(random_rows(0, 300, 6), fitted_on="other set")


@each_row(("power", "dimensions"), [(0.0, 3), (0.25, None), (0.5, None)])
def test_whitening_equals_scikit_learns_pca(power, dimensions):
    train, test = random_rows(0, 300, 6), random_rows(1, 20, 6)
    pca = PCA(dimensions, svd_solver="full").fit(unit(train))
    expected = unit(pca.transform(unit(test)) / pca.explained_variance_**power)
    whitening = Whitening.fit(train, fitted_on="train", dimensions=dimensions, power=power)
    found = whitening.apply(test)
    assert found.dtype == np.float32
    # compares products, because the signs of principal components are arbitrary
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
    np.testing.assert_allclose(whitening.variances, pca.explained_variance_, rtol=1e-5)


def test_block_size_does_not_change_whitening(fitted, monkeypatch):
    for module in (hgld.evaluation.postprocess, hgld.evaluation.row_table):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    again = Whitening.fit(torch.from_numpy(random_rows(0, 300, 6)), fitted_on="other set")
    np.testing.assert_allclose(again.components, fitted.components, atol=1e-9)
    np.testing.assert_allclose(again.apply(random_rows(1, 20, 6)), fitted.apply(random_rows(1, 20, 6)), atol=1e-6)


def test_saved_whitening_is_read_back_unchanged(tmp_path, fitted):
    fitted.save(tmp_path / "whitening.safetensors")
    loaded = Whitening.load(tmp_path / "whitening.safetensors")
    described = {"power": 0.25, "dimensions": 6, "fitted_on": "other set", "fitted_items": 300}
    assert loaded.describe() == fitted.describe() == described  # the default power is square-rooted whitening
    np.testing.assert_array_equal(loaded.apply(random_rows(1, 20, 6)), fitted.apply(random_rows(1, 20, 6)))


def test_directions_without_variance_get_the_least_positive_variance():
    variances = Whitening.fit(FLAT, fitted_on="flat").variances
    assert variances[2:].tolist() == [variances[2]] * 5
    assert Whitening.fit(FLAT, fitted_on="flat", dimensions=2).components.shape == (2, 7)


SYMMETRIC = Whitening.fit(np.array([[1.0, 0], [-1, 0]]), fitted_on="x", dimensions=1)
FLAT = np.pad(random_rows(3, 40, 3), ((0, 0), (0, 4)))


test_post_processing_refuses_invalid_arguments = refused(
    operator.call,
    [
        (lambda: Whitening.fit(FLAT, fitted_on="x", power=2), ConfigError, "power is 2"),
        (lambda: Whitening.fit(FLAT, fitted_on="x", dimensions=0), ConfigError, "dimensions is 0"),
        (lambda: Whitening.fit(FLAT, fitted_on="x", dimensions=5), InputError, "vary in 3 dimensions; expected 5"),
        (lambda: Whitening.fit(np.ones((4, 3)), fitted_on="x"), InputError, "vary in 0 dimensions"),
        (lambda: Whitening.fit(FLAT[:1], fitted_on="x"), InputError, "at least 2"),
        (lambda: SYMMETRIC.apply(FLAT), InputError, "have 7 dimensions; the whitening was fitted on x with 2"),
        (lambda: SYMMETRIC.apply(np.eye(2)), InputError, "embedding 1 equals the whitening's mean"),
        (lambda: pool_scales([FLAT[:4], FLAT[:3]]), InputError, "of one shape"),
        (lambda: pool_scales([np.array([[1.0, 0]]), np.array([[-1.0, 0]])]), InputError, "image 0: .* cancel out"),
        (lambda: pool_scales([FLAT], p=0), ConfigError, "p is 0"),
    ],
)


def written(path, fitted, metadata=None, **tensors):
    parts = {"mean": fitted.mean, "components": np.ascontiguousarray(fitted.components), "variances": fitted.variances}
    facts = {"schema_version": 1, "power": 0.25, "fitted_on": "x", "num_items": 3, **(metadata or {})}
    save_file({**parts, **tensors}, path, {"hgld.whitening": json.dumps(facts)})
    return path


test_malformed_whitening_files_are_refused = refused(
    lambda metadata, tensors, *, tmp_path, fitted: Whitening.load(
        written(tmp_path / "w.safetensors", fitted, metadata, **tensors)
    ),
    [
        ({"schema_version": 2}, {}, "schema version is 2"),
        ({"power": "much"}, {}, "not a whitening"),
        ({"power": float("nan")}, {}, "invalid mean, components"),
        ({}, {"variances": np.zeros(6)}, "invalid mean, components"),
        ({}, {"mean": np.full(6, np.nan)}, "invalid mean, components"),
    ],
    SchemaError,
)


def test_broken_whitening_files_are_refused(tmp_path, fitted, monkeypatch):
    file = tmp_path / "w.safetensors"
    for write in (
        lambda: None,
        lambda: file.write_bytes(b"\x80\x04 no tensors"),
        lambda: save_file({"mean": fitted.mean}, file, {"hgld.whitening": "[1]"}),
    ):
        write()
        with pytest.raises(SchemaError, match="not a whitening"):
            Whitening.load(file)
    monkeypatch.setattr(hgld.evaluation.postprocess, "_MOST_BYTES", 10)
    with pytest.raises(SchemaError, match="at most 10"):
        Whitening.load(file)


def slow_expansion(query, gallery, k, alpha, own=None):
    """Return each query plus its k best gallery items, weighted by max(score, 0) ** alpha, normalised."""
    expanded = []
    for number, q in enumerate(query):
        scores = [(float(q @ g), place) for place, g in enumerate(gallery) if own is None or place != own[number]]
        total = q.copy()
        for score, place in sorted(scores, key=lambda pair: (-pair[0], pair[1]))[:k]:
            total = total + max(score, 0.0) ** alpha * gallery[place]
        expanded.append(total / np.linalg.norm(total))
    return np.array(expanded)


@each_row(("k", "alpha"), [(1, 0.0), (3, 2.0), (20, 0.5)])
def test_query_expansion_equals_reference(k, alpha):
    query, gallery = unit(random_rows(1, 5, 4)), unit(random_rows(2, 20, 4))
    found = expand_queries(query * 3, gallery, EvaluationOptions(query_expansion=(alpha, k)))
    np.testing.assert_allclose(found, slow_expansion(query, gallery, k, alpha), atol=1e-5)


ROWS = unit(random_rows(3, 12, 4))


def test_query_expansion_excludes_the_query_itself():
    found = expand_queries(ROWS, ROWS, EvaluationOptions(query_expansion=(2.0, 4)), np.arange(12))
    np.testing.assert_allclose(found, slow_expansion(ROWS, ROWS, 4, 2.0, np.arange(12)), atol=1e-5)


test_query_expansion_refuses_invalid_arguments = refused(
    lambda gallery, expansion, self_index: expand_queries(
        ROWS, gallery, EvaluationOptions(query_expansion=expansion), self_index
    ),
    [
        (ROWS, (-1, 2), None, ConfigError, "alpha is -1"),
        (ROWS, (2, 12), np.arange(12), ConfigError, "1 to 11"),
        (ROWS[:, :2], (2, 1), None, InputError, "dimensions"),
        (ROWS, (2, 1), np.arange(11), InputError, "self_index"),
    ],
)


@each_row("p", [1.0, 3.0])
def test_pooled_scales_equal_reference(p):
    scales = [random_rows(seed, 6, 5) for seed in range(3)]
    normal = [unit(part) for part in scales]
    expected = np.zeros((6, 5))
    for row, column in np.ndindex(6, 5):
        total = sum(np.sign(part[row, column]) * abs(part[row, column]) ** p for part in normal) / 3
        expected[row, column] = np.sign(total) * abs(total) ** (1 / p)
    np.testing.assert_allclose(pool_scales(scales, p=p), unit(expected), atol=1e-6)
