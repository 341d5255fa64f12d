"""Search by images, exhaustive or with an index that the user's cache keeps."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld import open_dataset
from hgld.cli import main
from hgld.distributed import ALONE
from hgld.errors import ConfigError, InputError, StorageError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.training.inference.embedder import Embedder
from hgld.training.inference.embedding import embed, write_embeddings
from hgld.training.inference.search import kept_embeddings, search
from hgld.training.inference.search_index import KeptIndex, SearchIndex, kept_index
from hgld.user_cache import KeptFolder
from tests.fake_releases.pictures import jpeg
from tests.forked import together
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.training.untrained_run import CONFIG_OF_RUN, small_model, write_run


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def items():
    rng = np.random.default_rng(5)
    turned = Item((2, 1), "test", jpeg(rng, orientation=6), orientation=6)
    return [*items_of_classes([3, 4], ["test"]), turned, Item((-1, -1), "test", jpeg(rng))]


@pytest.fixture(scope="module")
def dataset(module_path, items):
    folder = module_path / "small"
    write_dataset(folder, items)
    return open_dataset(folder, "test")


@pytest.fixture(scope="module")
def embedder():
    return Embedder.as_trained(small_model(), CONFIG_OF_RUN, ALONE)


def test_every_query_image_finds_itself_first(embedder, dataset, items, tmp_path):
    files = [tmp_path / f"{i}.jpg" for i in range(len(items))]
    for file, item in zip(files, items, strict=True):
        file.write_bytes(item.data)
    found = search(embedder, files, dataset, k=3).found
    for i, one in enumerate(found):
        first = one.matches[0]
        assert (first.key, first.index, first.score) == (dataset.keys[i], i, pytest.approx(1, abs=1e-5))
    assert found[0].matches[0].classes == {"fine": "0", "coarse": "0"}
    assert found[-1].matches[0].classes == {"fine": None, "coarse": None}


def test_saved_embeddings_of_another_model_are_refused(embedder, dataset, tmp_path):
    path = tmp_path / "e.npy"
    own = embed(embedder.model, dataset, view=embedder.view)
    for same in (own, own * 3, own.bfloat16().float()):
        write_embeddings(path, same, dataset)
        assert len(kept_embeddings(path, dataset, embedder)[1]) == len(dataset)
    others = {
        "mean cosine": embed(small_model(9), dataset, view=embedder.view),
        "mean cosine of nan": torch.full_like(own, torch.nan),
        "mean cosine of": own.roll(1, 0),
        "5 dimensions; expected 6": own[:, :5],
    }
    for reason, rows in others.items():
        write_embeddings(path, rows, dataset)
        with pytest.raises(InputError, match=rf"e\.npy: embeddings of another model: .*{reason}.*hgld embed"):
            kept_embeddings(path, dataset, embedder)
    write_embeddings(path, own, dataset)
    with pytest.raises(InputError, match="the checkpoint and options"):
        kept_embeddings(path, dataset, replace(embedder, scales=(0.5,)))


@pytest.mark.parametrize("kind", [None, "ivf"])
def test_unreadable_gallery_items_are_excluded_and_counted(embedder, items, tmp_path, kind):
    damaged = [
        Item(item.labels, item.split, item.data[:200] if i in (1, 4) else item.data) for i, item in enumerate(items)
    ]
    write_dataset(tmp_path / "damaged", damaged)
    dataset = open_dataset(tmp_path / "damaged", "test")
    file = tmp_path / "query.jpg"
    file.write_bytes(items[5].data)
    readable = embedder.embed_readable(dataset)
    write_embeddings(tmp_path / "e.npy", readable.vectors, readable.dataset, readable.faults)
    gallery = kept_embeddings(tmp_path / "e.npy", dataset, embedder)
    assert gallery[1].tolist() == [0, 2, 3, 5, 6, 7, 8]
    for saved, embeddings in ((None, None), (gallery, tmp_path / "e.npy")):
        for _ in range(2):  # the first pass makes an index, the second loads it
            index = None if kind is None else kept_index(kind, dataset, embedder, embeddings)
            answer = search(embedder, [file], dataset, k=99, gallery=saved, index=index)
            assert answer.left_out == 2
            (found,) = answer.found
            assert sorted(match.index for match in found.matches) == [0, 2, 3, 5, 6, 7, 8]
            assert found.matches[0].index == 5
            assert all(match.key == dataset.keys[match.index] for match in found.matches)
    (tmp_path / "e.faults.csv").unlink()
    with pytest.raises(InputError, match="Embed that split again"):
        kept_embeddings(tmp_path / "e.npy", dataset, embedder)


def test_search_error_contains_the_path_of_an_unreadable_query(embedder, dataset, items, tmp_path):
    text = tmp_path / "text.jpg"
    text.write_text("not an image")
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(items[0].data[:300])
    for path in (text, cut, tmp_path / "none.jpg", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            search(embedder, [path], dataset)
    sound = tmp_path / "sound.jpg"
    sound.write_bytes(items[0].data)
    with pytest.raises(ConfigError, match="k is 0"):
        search(embedder, [sound], dataset, k=0)


# -- indexes --

KINDS = pytest.mark.parametrize("kind", ["ivf", "hnsw"])


def clustered(count, dimensions=32, clusters=40, seed=0):
    """Return unit vectors in clusters, like embeddings of classes."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, dimensions))
    vectors = centres[rng.integers(clusters, size=count)] + 0.5 * rng.standard_normal((count, dimensions))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@KINDS
def test_approximate_index_has_high_recall_against_exhaustive_search(kind):
    vectors = clustered(2_100)
    gallery, query = vectors[:2_000], vectors[2_000:]
    index = SearchIndex.of(gallery, kind)
    found, scores = index.nearest(query, 10)
    expected, _ = nearest_neighbors(query, gallery, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, expected, strict=True)])
    assert recall > 0.95
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", query, gallery[found]), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    KeptIndex(KeptFolder("indexes", {}), kind).make(gallery, np.arange(2_000))
    opened = KeptIndex(KeptFolder("indexes", {}), kind).load()
    assert opened is not None
    again = opened.nearest(query, 10)
    np.testing.assert_array_equal(again[0], found)
    np.testing.assert_array_equal(again[1], scores)


@KINDS
@settings(max_examples=10)
@given(count=st.integers(1, 60), seed=st.integers(0, 9), equal=st.booleans())
def test_index_search_is_exact_if_k_is_the_gallery_size(kind, count, seed, equal):
    gallery = clustered(count, dimensions=5, clusters=3, seed=seed)
    if equal:
        gallery[:] = gallery[0]  # equal scores are ordered by index
    query = clustered(3, dimensions=5, seed=seed + 100)
    found, scores = SearchIndex.of(gallery, kind).nearest(query, count)
    assert [sorted(row) for row in found.tolist()] == [list(range(count))] * 3
    _, exact = nearest_neighbors(query, gallery, count)
    np.testing.assert_allclose(scores, exact, atol=1e-5)
    assert not equal or found.tolist() == [list(range(count))] * 3


def test_index_refuses_invalid_queries():
    index = SearchIndex.of(clustered(50, dimensions=4), "ivf")
    with pytest.raises(ConfigError, match="k is 51; expected 1 to 50"):
        index.nearest(clustered(1, dimensions=4), 51)
    with pytest.raises(InputError, match="3 dimensions, gallery embeddings 4"):
        index.nearest(clustered(1, dimensions=3), 1)
    with pytest.raises(InputError, match="NaN"):
        SearchIndex.of(np.full((2, 3), np.nan, np.float32), "hnsw")


@pytest.fixture
def indexed_dataset(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3, 4], ["test", "gallery"]))
    return open_dataset(tmp_path / "data", "test")


@pytest.fixture
def kept(indexed_dataset, embedder):
    index = kept_index("ivf", indexed_dataset, embedder)
    assert index.load() is None
    index.make(clustered(3), np.arange(3))
    return index


def test_saved_index_is_reused_only_if_the_gallery_embeddings_are_the_same(kept, indexed_dataset, embedder, tmp_path):
    alike = replace(embedder, batch_size=1, workers=1, checkpoint="step-7")
    found = kept_index("ivf", indexed_dataset, alike).load()
    assert found is not None
    assert found.positions.tolist() == [0, 1, 2]
    copy = open_dataset(shutil.copytree(tmp_path / "data", tmp_path / "copy", copy_function=shutil.copy), "test")
    others = {
        "kind": ("hnsw", indexed_dataset, embedder),
        "split": ("ivf", open_dataset(tmp_path / "data"), embedder),
        "files": ("ivf", copy, embedder),
        "view": ("ivf", indexed_dataset, replace(embedder, scales=(1.0, 0.5))),
        "weights": ("ivf", indexed_dataset, replace(embedder, model=small_model(9))),
    }
    assert [name for name, facts in others.items() if kept_index(*facts).load() is not None] == []


def test_index_of_an_embeddings_file_depends_only_on_the_file(indexed_dataset, embedder, tmp_path):
    file = tmp_path / "e.npy"
    np.save(file, clustered(3))
    kept_index("ivf", indexed_dataset, embedder, file).make(clustered(3), np.arange(3))
    assert kept_index("ivf", indexed_dataset, replace(embedder, model=small_model(9)), file).load() is not None
    np.save(file, clustered(3, seed=1))
    assert kept_index("ivf", indexed_dataset, embedder, file).load() is None
    with pytest.raises(InputError, match=r"none\.npy: cannot be read"):
        kept_index("ivf", indexed_dataset, embedder, tmp_path / "none.npy")


def test_failed_index_write_is_a_storage_error(kept, monkeypatch):
    def full(file, rows):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StorageError, match=r"cannot keep the index .* \(No space left on device\)"):
        kept.make(clustered(3, seed=2), np.arange(3))


# -- ``hgld search --index`` --


SEARCH = ["search", "one.jpg", "--checkpoint", "run", "--data", "data", "--device", "cpu", "--json"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "data", items_of_classes([4, 4, 3], ["test"]))
    write_run(tmp_path / "run")
    (tmp_path / "one.jpg").write_bytes(open_dataset(tmp_path / "data").read(2))
    return tmp_path


def test_search_index_is_built_reused_and_rebuilt_for_another_checkpoint(folder, hgld):
    for checkpoint in ("best", "last"):
        asked = [*SEARCH, "--checkpoint-choice", checkpoint]
        found = hgld(*asked, "--index", "hnsw")
        answers = [json.loads(out)["queries"][0]["matches"] for _, out, _ in (found, hgld(*asked))]
        assert sorted(match["key"] for match in answers[0]) == sorted(match["key"] for match in answers[1])
        assert answers[0][0]["score"] == pytest.approx(answers[1][0]["score"], abs=1e-5)
        assert hgld(*asked, "--index", "hnsw") == found == (0, found[1], "")
    kept = list((folder / "cache/hgld/indexes").glob("*/index.faiss"))
    assert len(kept) == 2
    for index in kept:
        index.write_bytes(b"IHNf")  # a damaged index is rebuilt
    assert hgld(*asked, "--index", "hnsw") == found


@pytest.mark.slow
def test_two_processes_build_one_search_index(folder):
    result = together(main, [*SEARCH, "--index", "ivf"], folder=folder)
    assert json.loads(result.stdout)["queries"][0]["matches"][0]["key"] == open_dataset(folder / "data").keys[2]
