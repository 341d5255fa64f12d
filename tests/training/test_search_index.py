"""Indexes of faiss: nearly the answers of an exhaustive search, kept in the cache, made anew when stale or damaged."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld import open_dataset
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError, StorageError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.training.inference.embedder import Embedder
from hgld.training.inference.search_index import KeptIndex, SearchIndex, kept_index
from hgld.user_cache import KeptFolder
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.training.untrained_run import CONFIG_OF_RUN, small_model

KINDS = pytest.mark.parametrize("kind", ["ivf", "hnsw"])


def clustered(count, dimensions=32, clusters=100, seed=0):
    """Unit vectors around centres, as embeddings of classes lie."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, dimensions))
    vectors = centres[rng.integers(clusters, size=count)] + 0.5 * rng.standard_normal((count, dimensions))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@KINDS
def test_index_recall_against_exhaustive_search(kind, tmp_path, monkeypatch):
    vectors = clustered(5_300)
    gallery, query = vectors[:5_000], vectors[5_000:]
    index = SearchIndex.of(gallery, kind)
    found, scores = index.nearest(query, 10)
    expected, _ = nearest_neighbors(query, gallery, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, expected, strict=True)])
    assert recall > 0.95
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", query, gallery[found]), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    KeptIndex(KeptFolder("indexes", {}), kind).make(gallery, np.arange(5_000))
    opened = KeptIndex(KeptFolder("indexes", {}), kind).load()
    assert opened is not None
    again = opened.nearest(query, 10)
    np.testing.assert_array_equal(again[0], found)
    np.testing.assert_array_equal(again[1], scores)


@KINDS
@given(count=st.integers(1, 60), seed=st.integers(0, 9), equal=st.booleans())
def test_index_search_for_all_items_is_exact(kind, count, seed, equal):
    gallery = clustered(count, dimensions=5, clusters=3, seed=seed)
    if equal:
        gallery[:] = gallery[0]  # scores that tie are ordered by index
    query = clustered(3, dimensions=5, seed=seed + 100)
    found, scores = SearchIndex.of(gallery, kind).nearest(query, count)
    assert [sorted(row) for row in found.tolist()] == [list(range(count))] * 3
    _, exact = nearest_neighbors(query, gallery, count)
    np.testing.assert_allclose(scores, exact, atol=1e-5)
    assert not equal or found.tolist() == [list(range(count))] * 3


def test_index_rejects_impossible_queries():
    index = SearchIndex.of(clustered(50, dimensions=4), "ivf")
    with pytest.raises(ConfigError, match="k is 51; expected 1 to 50"):
        index.nearest(clustered(1, dimensions=4), 51)
    with pytest.raises(InputError, match="3 dimensions, gallery embeddings 4"):
        index.nearest(clustered(1, dimensions=3), 1)
    with pytest.raises(InputError, match="NaN"):
        SearchIndex.of(np.full((2, 3), np.nan, np.float32), "hnsw")


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_dataset(tmp_path / "data", items_of_classes([3, 4], ["test", "gallery"]))
    return open_dataset(tmp_path / "data", "test")


@pytest.fixture(scope="module")
def embedder():
    return Embedder.as_trained(small_model(), CONFIG_OF_RUN, Processes(0, 1, torch.device("cpu")))


@pytest.fixture
def kept(dataset, embedder):
    index = kept_index("ivf", dataset, embedder)
    assert index.load() is None
    index.make(clustered(3), np.arange(3))
    return index


def test_index_key_covers_everything_that_changes_its_embeddings(kept, dataset, embedder, tmp_path):
    alike = replace(embedder, batch_size=1, workers=1, checkpoint="step-7")
    found = kept_index("ivf", dataset, alike).load()
    assert found is not None
    assert found.positions.tolist() == [0, 1, 2]
    copy = open_dataset(shutil.copytree(tmp_path / "data", tmp_path / "copy", copy_function=shutil.copy), "test")
    others = {
        "kind": ("hnsw", dataset, embedder),
        "split": ("ivf", open_dataset(tmp_path / "data"), embedder),
        "files": ("ivf", copy, embedder),
        "view": ("ivf", dataset, replace(embedder, scales=(1.0, 0.5))),
        "weights": ("ivf", dataset, replace(embedder, model=small_model(9))),
    }
    assert [name for name, facts in others.items() if kept_index(*facts).load() is not None] == []


def test_index_of_an_embeddings_file_depends_only_on_the_file(dataset, embedder, tmp_path):
    file = tmp_path / "e.npy"
    np.save(file, clustered(3))
    kept_index("ivf", dataset, embedder, file).make(clustered(3), np.arange(3))
    assert kept_index("ivf", dataset, replace(embedder, model=small_model(9)), file).load() is not None
    np.save(file, clustered(3, seed=1))
    assert kept_index("ivf", dataset, embedder, file).load() is None
    with pytest.raises(InputError, match=r"none\.npy: cannot be read"):
        kept_index("ivf", dataset, embedder, tmp_path / "none.npy")


def test_failed_index_write_is_a_storage_error(kept, monkeypatch):
    def full(file, rows):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StorageError, match=r"cannot keep the index .* \(No space left on device\)"):
        kept.make(clustered(3, seed=2), np.arange(3))
