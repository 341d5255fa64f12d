import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError
from hgld.evaluation.evaluate import evaluate
from hgld.metrics import class_distances, clustering_nmi, decomposability_gap


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
    assert found["AP/level_0"] > 0


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
    with pytest.raises(InputError, match="no batches"):
        decomposability_gap(embeddings, labels, [])
