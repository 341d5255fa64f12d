"""Wrong labels: class model and label channel equal reference implementations, and planted errors are found."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from hgld.label_audit import silent, wrong_labels
from hgld.label_audit.class_model import ClassModel, ClassRegression
from hgld.label_audit.wrong_labels import choices, find_wrong_labels, log_joint, meeting_levels
from tests.hgld.test_audit_classes import classes_of

TREE = np.array([[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 1, 0], [4, 2, 1], [5, 2, 1], [6, 3, 1]])


def clusters(seed=0, each=8):
    """Return unit embeddings and their classes in TREE; classes of the same parent are nearer to each other."""
    rng = np.random.default_rng(seed)
    parts = [scale * rng.standard_normal((7, 16))[TREE[:, level]] for level, scale in enumerate((0.6, 0.8, 1))]
    centres = np.sum(parts, axis=0)
    classes = np.repeat(np.arange(7), each)
    rows = centres[classes] + 0.3 * rng.standard_normal((len(classes), 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), classes


def density(items, between):
    """Return the log density of a class's items under one joint Gaussian, summed over the dimensions."""
    size = len(items)
    return sum(
        multivariate_normal.logpdf(items[:, d], np.zeros(size), np.eye(size) + variance)
        for d, variance in enumerate(between)
    )


def test_scores_and_bayes_factors_equal_quotients_of_densities():
    rows, classes = clusters(each=4)
    model = ClassModel.fit(rows[:, :3], classes)
    scores = model.scores(np.arange(len(rows)))
    for item, label in itertools.product(range(0, len(rows), 5), range(7)):
        others = model.items[[i for i in np.flatnonzero(classes == label) if i != item]]
        both = np.concatenate([others, model.items[[item]]])
        expected = density(both, model.between) - density(others, model.between)
        assert scores[item, label] - 1.5 * math.log(2 * math.pi) == pytest.approx(expected, abs=1e-8)
    first, second = model.items[:3], model.items[3:9]
    expected = density(model.items[:9], model.between) - density(first, model.between) - density(second, model.between)
    assert model.log_ratio(first, second) == pytest.approx(expected, abs=1e-8)
    assert model.log_ratio(second, first) == pytest.approx(expected, abs=1e-8)


def test_regression_is_optimal_and_scores_held_out_items():
    """At the optimum, gradient of likelihood and prior cancel: per class, sum((label - probability) x) = weights."""
    rows, classes = clusters(each=15)
    found = ClassRegression.fit(rows[:, :6], classes)
    scores = found.scores(np.arange(len(rows)))
    np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1, atol=1e-5)
    for fold in range(5):
        seen = (found.folds != fold).numpy()
        assert np.bincount(classes[~seen]).tolist() == [3] * 7
        items, weights = found.items.double().numpy(), found.weights[fold].double().numpy()
        logits = items @ weights.T
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(np.exp(scores[~seen]), shares[~seen], atol=1e-5)
        smoothed = 0.95 * np.eye(7)[classes] + 0.05 / 7
        pull = (smoothed - shares)[seen].T @ items[seen]
        np.testing.assert_allclose(pull[:, :-1], weights[:, :-1], atol=0.02)
        np.testing.assert_allclose(pull[:, -1], 0, atol=0.02)


def test_large_regression_uses_a_coarser_level(monkeypatch):
    rows, classes = clusters(each=12)
    shown = classes.copy()
    shown[5] = 6
    fitted = []
    fit = ClassRegression.fit
    monkeypatch.setattr(ClassRegression, "fit", lambda rows, labels: fitted.append(labels) or fit(rows, labels))
    monkeypatch.setattr(wrong_labels, "_MOST_REGRESSED", 4 * len(rows))
    assert find_wrong_labels(rows, shown, TREE, silent).wrong[5, 0] > 0.5
    assert (fitted[0] == TREE[shown, 1]).all()


def test_label_channel_reaches_every_label_and_sums_to_one():
    shares = np.array([0.7, 0.1, 0.05, 0.15])
    numbers = choices(TREE)
    for true in range(7):
        met = meeting_levels(np.array([true]), np.arange(7)[None], TREE)[0]
        assert numbers[true].tolist() == [1] + [(met == level).sum() for level in (1, 2, 3)]
        reached = sum(shares[level] / numbers[true, level] for level in met)
        assert reached == pytest.approx(sum(shares[level] for level in set(met.tolist())))


def test_joint_probability_equals_its_formula():
    rng = np.random.default_rng(0)
    evidence, met = rng.standard_normal((3, 4, 2)), rng.integers(0, 3, (3, 4))
    filled = np.array([[False] * 4, [False, False, False, True], [False] * 4])
    chance, values = -rng.random((3, 4)), rng.standard_normal(4)
    found = log_joint(*map(torch.from_numpy, (values, evidence, filled, met, chance))).exp().numpy()
    logits = np.where(filled, 0, np.exp(evidence @ np.log1p(np.exp(values[:2]))))
    noise = np.exp([0, *values[2:]])
    expected = logits / logits.sum(axis=1, keepdims=True) * noise[met] / noise.sum() * np.exp(chance)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_planted_wrong_labels_are_found_with_level_and_true_class():
    rows, classes = clusters(each=30)
    planted = {5: 6, 40: 3, 100: 2}  # wrong at the coarsest, the middle and the finest level
    shown = classes.copy()
    shown[list(planted)] = list(planted.values())
    found = find_wrong_labels(rows, shown, TREE, silent)
    assert set(np.flatnonzero(found.wrong[:, 0] > 0.5)) == set(planted)
    assert [(found.wrong[item] > 0.5).sum() for item in planted] == [3, 2, 1]
    assert [found.proposed[item, 0] for item in planted] == [classes[item] for item in planted]
    assert (np.diff(found.wrong, axis=1) <= 1e-9).all()
    assert found.rates[0] == pytest.approx(3 / len(rows), abs=0.01)


def test_label_of_a_single_item_class_is_audited_at_coarser_levels():
    rows, classes = clusters()
    keep = (classes != 2) | (np.arange(len(classes)) == 16)
    found = find_wrong_labels(rows[keep], classes[keep], TREE, silent)
    assert found.wrong[16, 0] == found.wrong[16, 1] < 0.5
    flat = find_wrong_labels(rows[keep], classes[keep], TREE[:, :1], silent)
    assert np.isnan(flat.wrong[16, 0])
    assert np.isfinite(np.delete(flat.wrong, 16, axis=0)).all()


def test_equal_class_sizes_do_not_reveal_the_label():
    """If an item is left out, its own class is one item smaller than other classes. This must not reveal its label."""
    rows, classes, ancestors = classes_of(0)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    assert find_wrong_labels(rows, classes, ancestors, silent).rates.max() < 0.02
