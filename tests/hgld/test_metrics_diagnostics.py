import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError
from hgld.evaluation.evaluate import evaluate
from hgld.metrics import (
    class_batches,
    class_distances,
    clustering_nmi,
    decomposability_bound,
    decomposability_gap,
    gap_over_batches,
    smoothing_errors,
)
from tests import reference


def blobs(classes: int = 4, size: int = 10, spread: float = 0.05):
    generator = torch.Generator().manual_seed(0)
    centers = torch.eye(8)[:classes].repeat_interleave(size, dim=0)
    labels = torch.arange(classes).repeat_interleave(size)
    return centers + spread * torch.randn(centers.shape, generator=generator), labels


@given(st.lists(st.integers(-1, 3), min_size=2, max_size=12), st.integers(0, 100))
def test_class_distances_are_means_over_all_pairs(labels, seed):
    if max(labels) < 0:
        return
    embeddings = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed))
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1).numpy()
    pairs = [(i, j) for i, j in itertools.combinations(range(len(labels)), 2) if labels[i] >= 0 and labels[j] >= 0]
    intra = [1 - unit[i] @ unit[j] for i, j in pairs if labels[i] == labels[j]]
    inter = [1 - unit[i] @ unit[j] for i, j in pairs if labels[i] != labels[j]]
    found = class_distances(embeddings, np.array(labels))
    np.testing.assert_allclose(found.intra, np.mean(intra) if intra else np.nan, atol=1e-6)
    np.testing.assert_allclose(found.inter, np.mean(inter) if inter else np.nan, atol=1e-6)


def test_nmi_of_separate_and_of_meaningless_classes():
    embeddings, labels = blobs()
    assert clustering_nmi(embeddings, labels) == pytest.approx(1.0)
    assert clustering_nmi(embeddings, labels.roll(5) % 2, num_clusters=4) < 0.9
    assert clustering_nmi(embeddings, labels, num_clusters=1) == 0.0


def test_the_gap_is_the_mean_over_batches_less_the_whole():
    embeddings, labels = blobs(spread=0.8)
    batches = [np.arange(0, 40, 2), np.arange(1, 40, 2)]
    found = decomposability_gap(embeddings, labels, batches, metrics=["AP", "R@1"])
    for name, gap in found.items():
        parts = [evaluate(embeddings[b], labels[b], metrics=[name]).values[name] for b in batches]
        assert gap == pytest.approx(np.mean(parts) - evaluate(embeddings, labels, metrics=[name]).values[name])
    assert found["AP/level0"] > 0


def least_ap(batches: list[tuple[int, int]]) -> float:
    """The least AP of all orders that put each batch's positives before its negatives, by trying them all."""

    @cache
    def least(state: tuple[int, ...]) -> float:
        positives = sum(min(at, p) for at, (p, _) in zip(state, batches, strict=True))
        found = []
        for batch, (p, n) in enumerate(batches):
            if state[batch] < p + n:
                gained = (positives + 1) / (sum(state) + 1) if state[batch] < p else 0.0
                found.append(gained + least((*state[:batch], state[batch] + 1, *state[batch + 1 :])))
        return min(found, default=0.0)

    return least((0,) * len(batches)) / sum(p for p, _ in batches)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4), st.booleans())
def test_the_bound_of_the_gap_is_the_worst_order_of_perfect_batches(batches, alike):
    batches = [batches[0]] * len(batches) if alike else batches
    positives, negatives = (np.array(column) for column in zip(*batches, strict=True))
    bound = decomposability_bound(positives, negatives)
    if not positives.any():
        assert math.isnan(bound)
        return
    worst = 1 - least_ap(batches)
    assert bound == pytest.approx(worst) if alike else bound >= worst - 1e-12


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=3), st.randoms())
def test_scores_that_are_calibrated_keep_the_gap_below_the_second_bound(batches, random):
    left = random.sample(range(100), 100)  # different scores, in per cent
    scores = [sorted((left.pop() / 100 for _ in range(p + n)), reverse=True) for p, n in batches]
    positive = [s for part, (p, _) in zip(scores, batches, strict=True) for s in part[:p]]
    wrong = [np.array(part[p:]) for part, (p, _) in zip(scores, batches, strict=True)]
    everything = [*positive, *np.concatenate(wrong)]
    ap = reference.average_precision(everything, [int(i < len(positive)) for i in range(len(everything))])
    counts = [np.array(column) for column in zip(*batches, strict=True)]
    bad = np.array([(part > 0.3).sum() for part in wrong])
    near = decomposability_bound(*counts, good_positives=sum(s > 0.5 for s in positive), bad_negatives=bad)
    assert 1 - ap <= near + 1e-12
    assert near <= decomposability_bound(*counts) + 1e-12


def test_items_are_dealt_to_batches_of_groups():
    classes = np.repeat(np.arange(30), 8)
    batch = class_batches(classes, 24, 4, seed=1)
    assert np.bincount(batch).tolist() == [24] * 10
    for number in range(10):
        sizes = np.bincount(classes[batch == number])
        assert set(sizes) <= {0, 4, 8}
    assert set(np.bincount(class_batches(np.arange(7), 4, 4)).tolist()) == {3, 4}


def test_the_gap_over_batches_equals_its_twin_and_vanishes_in_one_batch():
    embeddings, labels = blobs(spread=0.8)
    small, whole = gap_over_batches(embeddings, labels, [10, 40], images_per_class=3, queries=12, seed=2)
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1)
    batch = class_batches(labels.numpy(), 10, 3, seed=2)
    aps = []
    for query in np.sort(np.random.default_rng(2).permutation(40)[:12]):  # every item has a positive
        others = [j for j in range(40) if j != query]
        parts = [[j for j in others if batch[j] == b] for b in range(batch.max() + 1)]
        ranked = [others, *(part for part in parts if any(labels[j] == labels[query] for j in part))]
        found = [
            reference.average_precision((unit[part] @ unit[query]).tolist(), (labels[part] == labels[query]).tolist())
            for part in ranked
        ]
        aps.append((found[0], np.mean(found[1:])))
    expected = np.mean(aps, axis=0)
    assert (small.whole, small.batches) == pytest.approx(tuple(expected), abs=1e-6)
    assert small.gap == pytest.approx(expected[1] - expected[0], abs=1e-6)
    assert 0 < small.calibrated <= small.bound
    assert (whole.gap, whole.bound) == (0, 0)


def test_smoothing_errors_equal_their_twin():
    embeddings, labels = blobs(spread=0.5)
    taus = [0.01, 0.2]
    found = smoothing_errors(embeddings, labels, taus, batch=20, images_per_class=5, least_slope=0.1)
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1)
    dealt = class_batches(labels.numpy(), 20, 5)
    for tau, one in zip(taus, found, strict=True):
        errors, inside = [], []
        for query in range(40):
            others = [j for j in range(40) if j != query and dealt[j] == dealt[query]]
            scores = {j: float(unit[j] @ unit[query]) for j in others}
            positive = [j for j in others if labels[j] == labels[query]]
            smooth = []
            for k in positive:
                steps = {j: 1 / (1 + math.exp(-(scores[j] - scores[k]) / tau)) for j in others if j != k}
                smooth.append((1 + sum(steps[j] for j in positive if j != k)) / (1 + sum(steps.values())))
                slopes = [4 * step * (1 - step) for step in steps.values()]  # 1 is the steepest
                inside += [slope >= 0.1 for slope in slopes]
            exact = reference.average_precision(list(scores.values()), [int(j in positive) for j in others])
            errors.append(abs(np.mean(smooth) - exact))
        assert (one.tau, one.error) == (tau, pytest.approx(np.mean(errors), abs=1e-6))
        assert one.operating == pytest.approx(np.mean(inside))
    assert found[0].error < found[1].error
    assert found[0].operating < found[1].operating


def test_bad_input_is_one_clear_error():
    embeddings, labels = blobs()
    with pytest.raises(InputError, match="one level"):
        class_distances(embeddings, labels[:, None])
    with pytest.raises(InputError, match="no item has a known label"):
        class_distances(embeddings, -torch.ones(40).long())
    with pytest.raises(ConfigError, match=r"expected 1\.\.40"):
        clustering_nmi(embeddings, labels, num_clusters=41)
    with pytest.raises(InputError, match="batch 1 has 1 items"):
        decomposability_gap(embeddings, labels, [np.arange(10), np.arange(1)])
    with pytest.raises(InputError, match="no class has two items"):
        gap_over_batches(embeddings, torch.arange(40), [8])
    with pytest.raises(InputError, match="no class has two items in a batch"):
        smoothing_errors(embeddings, torch.arange(40), [0.1])
    with pytest.raises(InputError, match="no batches"):
        decomposability_gap(embeddings, labels, [])
