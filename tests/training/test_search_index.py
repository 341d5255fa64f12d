"""Indexes of faiss: nearly the answers of an exhaustive search, kept, made anew when stale, refused when damaged."""

import hashlib
import json
import re
import shutil
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld import files, open_dataset
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError, MissingExtraError, StorageError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.pipelines.check.verify import verify
from hgld.pipelines.stage import silent
from hgld.training.inference import search_index
from hgld.training.inference.embedder import Embedder
from hgld.training.inference.search_index import INDEX, RECORD, FaissIndex, KeptIndex, kept_index, read_index
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
    index = FaissIndex.of(gallery, kind)
    found, scores = index.nearest(query, 10)
    expected, _ = nearest_neighbors(query, gallery, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, expected, strict=True)])
    assert recall > 0.95
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", query, gallery[found]), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    index.save(tmp_path / "index")
    again = read_index(tmp_path / "index", kind, 20_000, 32).nearest(query, 10)
    np.testing.assert_array_equal(again[0], found)
    np.testing.assert_array_equal(again[1], scores)


@KINDS
@given(count=st.integers(1, 60), seed=st.integers(0, 9), equal=st.booleans())
def test_asked_for_all_items_it_gives_all_in_the_exact_order(kind, count, seed, equal):
    gallery = clustered(count, dimensions=5, clusters=3, seed=seed)
    if equal:
        gallery[:] = gallery[0]  # scores that tie are ordered by index
    query = clustered(3, dimensions=5, seed=seed + 100)
    found, scores = FaissIndex.of(gallery, kind).nearest(query, count)
    assert [sorted(row) for row in found.tolist()] == [list(range(count))] * 3
    _, exact = nearest_neighbors(query, gallery, count)
    np.testing.assert_allclose(scores, exact, atol=1e-5)
    assert not equal or found.tolist() == [list(range(count))] * 3


def test_what_cannot_be_asked(tmp_path):
    index = FaissIndex.of(clustered(50, dimensions=4), "ivf")
    with pytest.raises(ConfigError, match="k is 51; expected 1 to 50"):
        index.nearest(clustered(1, dimensions=4), 51)
    with pytest.raises(InputError, match="3 dimensions, gallery embeddings 4"):
        index.nearest(clustered(1, dimensions=3), 1)
    with pytest.raises(InputError, match="NaN"):
        FaissIndex.of(np.full((2, 3), np.nan, np.float32), "hnsw")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "small"
    write_dataset(folder, items_of_classes([3, 4], ["test", "gallery"]))
    return folder


@pytest.fixture
def dataset(source, tmp_path):
    shutil.copytree(source, tmp_path / "data")
    return open_dataset(tmp_path / "data", "test")


@pytest.fixture(scope="module")
def embedder():
    return Embedder.as_trained(small_model(), CONFIG_OF_RUN, Processes(0, 1, torch.device("cpu")))


@pytest.fixture
def kept(dataset, embedder):
    index = kept_index("ivf", dataset, embedder)
    index.make(clustered(3), np.arange(3))
    return index


def test_it_lies_beside_the_shards_and_verify_does_not_mind(dataset, embedder, tmp_path):
    index = kept_index("hnsw", dataset, embedder)
    assert index.outdated() == ""
    index.make(clustered(3), np.arange(3))
    assert sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "data" / "search").rglob("*")) == [
        "data/search/test.hnsw",
        f"data/search/test.hnsw/{INDEX}",
        f"data/search/test.hnsw/{RECORD}",
    ]
    assert kept_index("hnsw", dataset, embedder).outdated() is None
    assert kept_index("ivf", dataset, embedder).outdated() == ""
    assert kept_index("hnsw", open_dataset(tmp_path / "data"), embedder).folder.name == "all.hnsw"
    assert not len(verify(tmp_path / "data", progress=silent).findings)
    (tmp_path / "data" / "search").rename(tmp_path / "elsewhere")
    (tmp_path / "data" / "search").symlink_to(tmp_path / "elsewhere")
    assert verify(tmp_path / "data", progress=silent).findings["kind"].to_list() == ["stray-file"]


def test_what_an_embedding_depends_on_makes_it_stale(kept, dataset, embedder, source, tmp_path):
    assert kept.outdated() is None
    alike = replace(embedder, batch_size=1, workers=1, checkpoint="step-7")
    assert kept_index("ivf", dataset, alike).outdated() is None
    others = {
        "options": replace(embedder, scales=(1.0, 0.5)),
        "weights": replace(embedder, model=small_model(9)),
    }
    for name, other in others.items():
        assert kept_index("ivf", dataset, other).outdated() == f"it was made with other {name}"
    write_dataset(source.parent / "other", items_of_classes([4, 3], ["test", "gallery"]))
    (tmp_path / "data" / "search").rename(source.parent / "other" / "search")
    index = kept_index("ivf", open_dataset(source.parent / "other", "test"), embedder)
    assert index.outdated() == "it was made with other items"
    record = json.loads((index.folder / RECORD).read_text())
    record["schema_version"] = 99
    (index.folder / RECORD).write_text(json.dumps(record))
    assert index.outdated() == "it was written by another version of hgld"
    index.make(clustered(4), np.arange(4))
    assert index.outdated() is None
    assert len(index.load().positions) == 4


def test_an_index_of_somebody_else_is_made_anew(kept, dataset, embedder, monkeypatch, tmp_path):
    monkeypatch.setattr(search_index, "user_cache_path", lambda name: tmp_path / "theirs" / name)
    foreign = "it was made by somebody else or elsewhere (--trust-index takes it as it is)"
    assert kept.outdated() == foreign
    assert kept_index("ivf", dataset, embedder, trusted=True).outdated() is None
    kept.make(clustered(3), np.arange(3))
    assert kept.outdated() is None
    assert (tmp_path / "theirs/hgld/index-key").stat().st_mode & 0o777 == 0o600
    rewritten("dimensions", 7)(kept)
    assert kept.outdated() == foreign


def test_beside_embeddings_it_is_as_good_as_their_file(dataset, embedder, tmp_path):
    file = tmp_path / "e.npy"
    np.save(file, clustered(3))
    index = kept_index("ivf", dataset, embedder, file)
    assert index.folder == tmp_path / "e.ivf"
    index.make(clustered(3), np.arange(3))
    assert kept_index("ivf", dataset, replace(embedder, model=small_model(9)), file).outdated() is None
    np.save(file, clustered(3, seed=1))
    assert kept_index("ivf", dataset, embedder, file).outdated() == "it was made with other embeddings"
    with pytest.raises(InputError, match=r"none\.npy: cannot be read"):
        kept_index("ivf", dataset, embedder, tmp_path / "none.npy")


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewritten(name, value):
    def change(index):
        path = index.folder / RECORD
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


def as_recorded(data):
    """Other bytes with a record that fits them, as who wants to be believed would write them."""

    def change(index):
        (index.folder / INDEX).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        rewritten("bytes", len(data))(index)
        rewritten("sha256", digest)(index)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda index: flipped(index.folder / INDEX), "its SHA-256 is not the one"),
        (lambda index: (index.folder / INDEX).write_bytes(b"IwFl"), "4 bytes; expected "),
        (lambda index: (index.folder / INDEX).unlink(), "cannot be read"),
        (lambda index: (index.folder / RECORD).unlink(), "holds no index.json"),
        (lambda index: (index.folder / RECORD).write_text("{"), "not valid JSON"),
        (rewritten("left_out", ["a"]), "is not what a search writes"),
        (rewritten("left_out", [0]), "expected 2 x 32"),
        (rewritten("sha256", None), "is not what a search writes"),
        (rewritten("bytes", -1), "is not what a search writes"),
        (rewritten("made_with", None), "is not what a search writes"),
        (rewritten("dimensions", 31), "expected 3 x 31"),
        (as_recorded(b"IxF2" + bytes(100)), "begin with b'IxF2'; expected b'IwFl'"),
        (as_recorded(b"IwFl" + b"\xff" * 500), "cannot be read"),
        (as_recorded(b"IwFl" + bytes(2_000_000)), "2,000,004 bytes"),
    ],
)
def test_what_was_damaged_or_is_foreign_is_refused_with_the_way_out(kept, damage, message):
    damage(kept)
    with pytest.raises(InputError, match=message) as refused:
        kept.load()
    assert str(kept.folder) in str(refused.value)
    assert re.search(r"(R|or r)emove", str(refused.value))
    assert kept.folder.is_dir()


@pytest.mark.parametrize("name", ["", INDEX, RECORD])
def test_links_are_not_followed(kept, tmp_path, name):
    place = kept.folder / name if name else kept.folder
    place.rename(tmp_path / "aside")
    place.symlink_to(tmp_path / "aside")
    with pytest.raises(InputError, match="is a link, which is not followed"):
        kept.outdated()


def test_a_linked_folder_of_indexes_is_not_written_to(dataset, embedder, tmp_path):
    (tmp_path / "elsewhere" / "test.ivf").mkdir(parents=True)
    (tmp_path / "data" / "search").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"data/search is a link, which is not followed"):
        kept_index("ivf", dataset, embedder)


def test_of_two_that_make_it_at_the_same_time_one_waits(kept, monkeypatch):
    """The other one begins when this one is about to put its own in place."""
    exchange, others = files._exchange, []

    def overtaken(aside, path, before):
        if not others:
            others.append(threading.Thread(target=kept.make, args=(clustered(3, seed=1), np.arange(3))))
            others[0].start()
        exchange(aside, path, before)

    monkeypatch.setattr(files, "_exchange", overtaken)
    kept.make(clustered(3, seed=2), np.arange(3))
    others[0].join()
    query = clustered(1, seed=3)
    _, scores = kept.load().nearest(torch.from_numpy(query), 3)
    assert sorted(scores[0]) == pytest.approx(sorted(clustered(3, seed=1) @ query[0]), abs=1e-5)
    assert [path.name for path in kept.folder.parent.iterdir()] == ["test.ivf"]


def test_a_disk_that_fails_leaves_nothing_behind(dataset, embedder, kept, monkeypatch):
    before = {path: path.read_bytes() for path in kept.folder.iterdir()}

    def full(self, path):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(FaissIndex, "save", full)
    with pytest.raises(StorageError, match=r"cannot keep the index .*test\.ivf \(No space left on device\)"):
        kept.make(clustered(3, seed=2), np.arange(3))
    assert {path: path.read_bytes() for path in kept.folder.iterdir()} == before
    assert [path.name for path in kept.folder.parent.iterdir()] == ["test.ivf"]


def test_a_dataset_without_most_of_its_items_gets_no_index(tmp_path):
    with pytest.raises(InputError, match="19,999 of 20,000 items cannot be read"):
        KeptIndex(tmp_path / "i", "ivf", 20_000, {}).make(clustered(1), np.arange(1))


def test_where_it_cannot_be(dataset, embedder, monkeypatch):
    monkeypatch.setattr(dataset.storage, "is_local", False)
    with pytest.raises(ConfigError, match="is an address, where no index can be kept"):
        kept_index("ivf", dataset, embedder)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hgld\[faiss\]'"):
        kept_index("ivf", dataset, embedder)
