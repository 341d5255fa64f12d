"""Indexes of faiss: nearly the answers of an exhaustive search, kept in the cache, made anew when stale or damaged."""

import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld import open_dataset
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError, MissingExtraError, StorageError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.training.inference.embedder import Embedder
from hgld.training.inference.search_index import KeptIndex, SearchIndex, kept_index
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
def test_recall_against_an_exhaustive_search(kind, tmp_path):
    vectors = clustered(20_300)
    gallery, query = vectors[:20_000], vectors[20_000:]
    index = SearchIndex.of(gallery, kind)
    found, scores = index.nearest(query, 10)
    expected, _ = nearest_neighbors(query, gallery, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, expected, strict=True)])
    assert recall > 0.95
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", query, gallery[found]), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    KeptIndex(tmp_path / "index", kind, {}).make(gallery, np.arange(20_000))
    again = KeptIndex(tmp_path / "index", kind, {}).load().nearest(query, 10)
    np.testing.assert_array_equal(again[0], found)
    np.testing.assert_array_equal(again[1], scores)


@KINDS
@given(count=st.integers(1, 60), seed=st.integers(0, 9), equal=st.booleans())
def test_asked_for_all_items_it_gives_all_in_the_exact_order(kind, count, seed, equal):
    gallery = clustered(count, dimensions=5, clusters=3, seed=seed)
    if equal:
        gallery[:] = gallery[0]  # scores that tie are ordered by index
    query = clustered(3, dimensions=5, seed=seed + 100)
    found, scores = SearchIndex.of(gallery, kind).nearest(query, count)
    assert [sorted(row) for row in found.tolist()] == [list(range(count))] * 3
    _, exact = nearest_neighbors(query, gallery, count)
    np.testing.assert_allclose(scores, exact, atol=1e-5)
    assert not equal or found.tolist() == [list(range(count))] * 3


def test_what_cannot_be_asked():
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
    assert not index.is_current
    index.make(clustered(3), np.arange(3))
    assert index.is_current
    return index


def test_it_lies_in_the_cache_a_folder_for_each_kind_split_and_dataset(kept, dataset, embedder, tmp_path):
    others = [
        kept_index("hnsw", dataset, embedder),
        kept_index("ivf", open_dataset(tmp_path / "data"), embedder),
        kept_index("ivf", open_dataset(shutil.copytree(tmp_path / "data", tmp_path / "copy"), "test"), embedder),
    ]
    assert len({kept.folder, *(other.folder for other in others)}) == 4
    assert {index.folder.parent for index in (kept, *others)} == {tmp_path / "cache/hgld/search"}
    assert not any(other.is_current for other in others)


def test_what_an_embedding_depends_on_makes_it_stale(kept, dataset, embedder, tmp_path):
    alike = replace(embedder, batch_size=1, workers=1, checkpoint="step-7")
    assert kept_index("ivf", dataset, alike).is_current
    for other in (replace(embedder, scales=(1.0, 0.5)), replace(embedder, model=small_model(9))):
        assert not kept_index("ivf", dataset, other).is_current
    shutil.rmtree(tmp_path / "data")
    write_dataset(tmp_path / "data", items_of_classes([4, 3], ["test", "gallery"]))
    index = kept_index("ivf", open_dataset(tmp_path / "data", "test"), embedder)
    assert (index.folder, index.is_current) == (kept.folder, False)
    index.make(clustered(4), np.arange(4))
    assert len(index.load().positions) == 4


def test_one_of_a_file_of_embeddings_is_as_good_as_the_file(dataset, embedder, tmp_path):
    file = tmp_path / "e.npy"
    np.save(file, clustered(3))
    kept_index("ivf", dataset, embedder, file).make(clustered(3), np.arange(3))
    assert kept_index("ivf", dataset, replace(embedder, model=small_model(9)), file).is_current
    np.save(file, clustered(3, seed=1))
    assert not kept_index("ivf", dataset, embedder, file).is_current
    with pytest.raises(InputError, match=r"none\.npy: cannot be read"):
        kept_index("ivf", dataset, embedder, tmp_path / "none.npy")


@pytest.mark.parametrize("name", ["index.faiss", "positions.npy", "index.json"])
@pytest.mark.parametrize("data", [None, b"", b"{", b"IwFl" + bytes(100)])
def test_one_that_was_damaged_is_made_anew(kept, name, data):
    file = kept.folder / name
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
    assert not kept.is_current
    kept.make(clustered(3), np.arange(3))
    assert kept.is_current


def test_a_disk_that_fails_leaves_the_earlier_one(kept, monkeypatch):
    before = {path: path.read_bytes() for path in kept.folder.iterdir()}

    def full(file, rows):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StorageError, match=r"cannot keep the index .*\.ivf \(No space left on device\)"):
        kept.make(clustered(3, seed=2), np.arange(3))
    assert {path: path.read_bytes() for path in kept.folder.iterdir()} == before
    assert len(list(kept.folder.parent.iterdir())) == 1


def test_without_faiss_the_extra_is_named(dataset, embedder, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hgld\[faiss\]'"):
        kept_index("ivf", dataset, embedder)
