"""Search finds the query images themselves, and the nearest images of an exhaustive search."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from hgld import open_dataset
from hgld.data.dataset import dataset_of_images
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError
from hgld.training.inference.embedder import Embedder
from hgld.training.inference.embedding import embed, write_embeddings
from hgld.training.inference.search import kept_embeddings, search
from hgld.training.inference.search_index import kept_index
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.training.untrained_run import CONFIG_OF_RUN, small_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def items():
    rng = np.random.default_rng(5)
    turned = Item((2, 1), "test", jpeg(rng, orientation=6), orientation=6)
    return [*items_of_classes([3, 4], ["test"]), turned, Item((-1, -1), "test", jpeg(rng))]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, items):
    folder = tmp_path_factory.mktemp("data") / "small"
    write_dataset(folder, items)
    return open_dataset(folder, "test")


@pytest.fixture(scope="module")
def embedder():
    return Embedder.as_trained(small_model(), CONFIG_OF_RUN, Processes(0, 1, torch.device("cpu")))


def test_every_query_image_finds_itself_first(embedder, dataset, items, tmp_path):
    files = [tmp_path / f"{i}.jpg" for i in range(len(items))]
    for file, item in zip(files, items, strict=True):
        file.write_bytes(item.data)
    answer = search(embedder, files, dataset, k=3)
    found = answer.found
    assert answer.left_out == 0
    assert [one.image for one in found] == [str(file) for file in files]
    for i, one in enumerate(found):
        first = one.matches[0]
        assert (first.rank, first.key, first.index) == (1, dataset.keys[i], i)
        assert first.score == pytest.approx(1, abs=1e-5)
        assert [match.rank for match in one.matches] == [1, 2, 3]
        assert sorted(one.matches, key=lambda match: -match.score) == list(one.matches)
    assert found[0].matches[0].classes == {"fine": "0", "coarse": "0"}
    assert found[-1].matches[0].classes == {"fine": None, "coarse": None}


def test_search_order_equals_sorted_inner_products(embedder, dataset, tmp_path):
    file = tmp_path / "one.png"
    file.write_bytes(png_of(7))
    (found,) = search(embedder, [file], dataset, k=99).found
    scores = (embedder.embed_dataset(dataset) @ embedder.embed_dataset(dataset_of_images([file]))[0]).tolist()
    assert [match.index for match in found.matches] == sorted(range(len(dataset)), key=lambda i: -scores[i])
    assert [match.score for match in found.matches] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)


def png_of(seed):
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_saved_embeddings_of_another_model_are_rejected(embedder, dataset, tmp_path):
    path = tmp_path / "e.npy"
    own = embed(embedder.model, dataset, view=embedder.view)
    for same in (own, own * 3, own.bfloat16().float()):
        write_embeddings(path, same, dataset)
        assert len(kept_embeddings(path, dataset, embedder).positions) == len(dataset)
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


@pytest.mark.parametrize("kind", [None, "ivf", "hnsw"])
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
    assert gallery.positions.tolist() == [0, 2, 3, 5, 6, 7, 8]
    for given, embeddings in ((None, None), (gallery, tmp_path / "e.npy")):
        for _ in range(2):  # an index is made, then opened
            index = None if kind is None else kept_index(kind, dataset, embedder, embeddings)
            answer = search(embedder, [file], dataset, k=99, gallery=given, index=index)
            assert answer.left_out == 2
            (found,) = answer.found
            assert sorted(match.index for match in found.matches) == [0, 2, 3, 5, 6, 7, 8]
            assert found.matches[0].index == 5
            assert all(match.key == dataset.keys[match.index] for match in found.matches)
    (tmp_path / "e.faults.csv").unlink()
    with pytest.raises(InputError, match="Embed that split anew"):
        kept_embeddings(tmp_path / "e.npy", dataset, embedder)


def test_search_names_query_files_that_are_no_images(embedder, dataset, items, tmp_path):
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
