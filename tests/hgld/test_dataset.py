import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import cast

import fsspec
import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import pil_to_tensor

import hgld
from hgld import Hierarchy, open_dataset
from hgld.data.dataset import ShardDataset
from hgld.data.format import HIERARCHY, INDEX, MANIFEST
from hgld.data.index import read_index, write_index
from hgld.data.storage import ShardStorage
from hgld.errors import ConfigError, InputError
from hgld.samplers import EpochSampler, PKSampler
from tests.fake_releases.pictures import jpeg
from tests.hgld.range_server import serve
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset

SIZES = [3, 4, 5, 1, 7, 6]
SPLITS = ("train", "test")
ITEMS = items_of_classes(SIZES, SPLITS)


@pytest.fixture(scope="module")
def kept(module_path):
    write_dataset(module_path, ITEMS)
    return module_path


@pytest.fixture(scope="module")
def dataset(kept):
    """Return a split that no test changes."""
    return open_dataset(kept, "train")


@pytest.fixture
def root(tmp_path, kept):
    """Return a copy of the dataset, which the test may change."""
    return Path(shutil.copytree(kept, tmp_path / "set"))


@pytest.fixture(params=["local", "memory", "http"])
def url(request, root):
    """Yield the path or URL of the same dataset: on disk, in memory, and on a server."""
    if request.param == "local":
        yield str(root)
    elif request.param == "memory":
        memory = fsspec.filesystem("memory")
        memory.put(f"{root}/", "/set", recursive=True)
        yield "memory://set"
        memory.rm("/set", recursive=True)
    else:
        with serve(root.parent) as server:
            yield f"{server.url}/set"


def items_of(split: str) -> list[Item]:
    return [item for item in ITEMS if item.split == split]


# -- attributes of an open dataset ---------------------------------------------------------------------------------


def test_opened_split_has_the_rows_of_its_index_and_the_stored_bytes(url):
    dataset = open_dataset(url, "test")
    expected = items_of("test")
    assert dataset.hierarchy.num_classes == (6, 3)
    assert dataset.labels.dtype == torch.int64
    assert dataset.labels.tolist() == [list(item.labels) for item in expected]
    assert dataset.frame["key"].to_list() == dataset.keys.to_list()
    assert set(dataset.frame.columns) >= {"sha256", "class_run", "duplicate_of", "suffix"}
    assert dataset.sizes.tolist() == [[40, 32]] * 11
    assert repr(dataset) == "ShardDataset(small, test: 11 items, Hierarchy(fine: 6, coarse: 3))"
    order = np.random.default_rng(0).permutation(11)
    for indices in (order, order.tolist(), torch.from_numpy(order)):
        assert dataset.read_many(indices) == [expected[i].data for i in order]
    assert dataset.read(-1) == expected[-1].data
    assert dataset.read_many([]) == []
    for read in (dataset.read, dataset.image, dataset.__getitem__):
        with pytest.raises(IndexError, match="there is no item 11; this dataset has 11 items"):
            read(11)
    with pytest.raises(IndexError, match="items -1 to 3"):
        dataset.read_many([3, -1])


def test_dataset_opened_without_a_split_has_all_items_and_an_unknown_split_is_refused(root):
    dataset = hgld.load_dataset(root)
    assert dataset.split is None
    assert [dataset.read(i) for i in range(len(dataset))] == [i.data for s in ("test", "train") for i in items_of(s)]
    with pytest.raises(InputError, match=r"no split 'trian'; it has test, train. Did you mean 'train'\?"):
        open_dataset(root, "trian")


def test_shard_that_shrinks_while_the_dataset_is_open_raises_an_error(root):
    dataset = open_dataset(root, "train")
    dataset.read(7)
    os.truncate(root / "train-000001.tar", int(dataset.frame["offset"][7]) + 10)
    with pytest.raises(InputError, match=r"item 7, key 'train/\d+': .*train-000001.tar: only 10 bytes .* is truncated"):
        dataset.read_many([5, 6, 7, 8])
    assert len(dataset.read_many([0, 5, 6])) == 3


def test_selected_items_are_a_dataset_with_the_same_content(dataset):
    chosen = dataset.select([7, 2, 9])
    again = chosen.select(torch.tensor([2, 0]))
    for part, positions in ((chosen, [7, 2, 9]), (again, [9, 7])):
        assert part.keys.to_list() == [dataset.keys[i] for i in positions] == part.frame["key"].to_list()
        assert torch.equal(part.labels, dataset.labels[positions])
        assert part.read_many(range(len(part))) == dataset.read_many(positions)
        assert [image.where for image in part.encoded([0])] == [
            image.where.replace(f"item {positions[0]}", "item 0") for image in dataset.encoded(positions[:1])
        ]
        assert pickle.loads(pickle.dumps(part)).frame.equals(part.frame)
    with pytest.raises(IndexError, match="items 3 to 15"):
        dataset.select([3, 15])


def test_integers_select_items_and_slices_lists_and_masks_select_datasets(dataset):
    whole = dataset.keys.to_list()
    for chosen, expected in (
        (dataset[::-7], whole[::-7]),
        (dataset[torch.tensor([4, 2])], [whole[4], whole[2]]),
        (dataset[np.arange(15) % 2 == 0], whole[::2]),
        (dataset[20:], []),
    ):
        assert isinstance(chosen, ShardDataset)
        assert chosen.keys.to_list() == expected
    item = dataset[np.int64(4)]
    assert (item["index"], item["key"], item["image"].size) == (4, whole[4], (40, 32))
    assert item["labels"].tolist() == list(items_of("train")[4].labels)
    assert sum(1 for _ in dataset) == 15  # pyright: ignore[reportArgumentType]  # Python ends this loop at the first IndexError
    with pytest.raises(IndexError, match=r"the mask has shape \(3,\); expected \(15,\)"):
        dataset[np.array([True, False, True])]


def test_column_by_name_has_the_values_of_all_items(root):
    dataset = open_dataset(root, "train", transform=lambda image: image.size)
    fine, coarse = dataset.hierarchy.names
    assert (dataset.classes, dataset.targets.tolist()) == (fine, [item.labels[0] for item in items_of("train")])
    assert len(dataset["image"]) == 15
    assert list(dataset["image"][:2]) == [dataset["image"][1], dataset[0]["image"]] == [(40, 32)] * 2
    assert (dataset["key"], dataset["index"]) == (dataset.keys.to_list(), list(range(15)))
    assert dataset["labels"] is dataset.labels
    assert dataset["coarse"] == [coarse[label] for label in dataset.labels[:, 1]]
    assert dataset["width"] == [40] * 15
    unknown = dataset.relabelled(torch.full_like(dataset.labels, -1))
    assert unknown[:2]["fine"] == [None, None]
    with pytest.raises(InputError, match=r"no column 'lables'; it has image, labels, .* Did you mean 'labels'\?"):
        dataset["lables"]


def test_to_torch_gives_image_label_pairs_like_torchvision(dataset):
    pairs = dataset.to_torch()
    image, label = pairs[4]
    assert (image.size, label) == ((40, 32), dataset.targets[4])
    assert pairs.class_to_idx == {name: i for i, name in enumerate(pairs.classes)}
    assert pairs.classes == dataset.classes
    coarse = dataset.to_torch(transform=pil_to_tensor, level="coarse")
    assert dataset.transform is None
    images, labels = next(iter(DataLoader(coarse, batch_size=4)))
    assert images.shape == (4, 3, 32, 40)
    assert torch.equal(labels, dataset.labels[:4, 1])
    squares, _ = next(iter(DataLoader(pairs, batch_size=2)))
    assert squares.shape == (2, 3, 224, 224)
    assert len(pairs) == 15


def test_batch_sampler_passed_as_sampler_raises_an_error_with_the_fix(dataset):
    for given in (dataset, list(range(15))):
        loader = DataLoader(given, sampler=PKSampler(dataset, p=2, k=2))  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match=r"DataLoader\(dataset, batch_sampler=sampler\)"):
            next(iter(loader))


def test_dataset_opened_with_levels_has_only_these_levels(kept, dataset):
    coarse = open_dataset(kept, "train", levels=["coarse"])
    assert coarse.levels == ("coarse",)
    assert torch.equal(coarse.labels, dataset.labels[:, 1:])
    assert coarse.hierarchy == dataset.hierarchy.restrict(["coarse"])


# -- images ----------------------------------------------------------------------------------------------------------


def test_images_are_upright_and_cropped(tmp_path):
    data = jpeg(np.random.default_rng(3), orientation=6)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    box = (2, 3, 20, 19)
    write_dataset(tmp_path, [Item((0, 0), "train", data, orientation=6, box=one) for one in (None, box)])
    dataset = open_dataset(tmp_path, "train")
    assert dataset.sizes.tolist() == [list(upright.size), [18, 16]]
    assert np.array_equal(np.asarray(dataset.image(0)), np.asarray(upright))
    assert np.array_equal(np.asarray(dataset.image(1)), np.asarray(upright.crop(box)))
    assert [image.box for image in dataset.encoded([0, 1])] == [None, box]


# -- tables ----------------------------------------------------------------------------------------------------------


def test_dataset_lists_contain_positions_and_judgements_are_read_back(tmp_path):
    listed = pl.DataFrame(
        {
            "list": ["small", "small", "large", "others"],
            "key": ["test/0006", "test/0003", "test/0003", "train/0001"],
        }
    )
    verdicts = pl.DataFrame({"query": ["test/0003"], "item": ["test/0006"], "verdict": ["junk"]})
    write_dataset(tmp_path, ITEMS, lists=listed, judgements=verdicts)
    dataset = open_dataset(tmp_path, "test")
    keys = {name: [dataset.keys[int(i)] for i in positions] for name, positions in dataset.lists.items()}
    assert keys == {"small": ["test/0006", "test/0003"], "large": ["test/0003"]}
    assert verdicts.equals(cast(pl.DataFrame, dataset.judgements))


# -- workers ---------------------------------------------------------------------------------------------------------


def plain(items):
    """Return the items without tensors, which torch would send through Unix sockets that the tests block."""
    return [(item["index"], item["key"], item["labels"].tolist(), item["image"].numpy()) for item in items]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
# Torch warns if the machine has one core.
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes:UserWarning")
@pytest.mark.parametrize("url", ["local", "http"], indirect=True)
def test_forked_torch_workers_read_the_same_images_as_the_main_process(url):
    dataset = open_dataset(url, "train", transform=pil_to_tensor)
    # Files and connections are already open when the workers start.
    expected = {i: dataset[i]["image"] for i in range(len(dataset))}
    sampler = PKSampler(dataset, 3, 2, level="fine", seed=1)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=plain, num_workers=2, multiprocessing_context="fork")
    batches = list(loader)
    assert len(batches) == len(sampler)
    for step, batch in enumerate(batches):
        assert [index for index, *_ in batch] == sampler.batch(0, step).tolist()
        for index, key, labels, image in batch:
            assert key == dataset.keys[index]
            assert labels == dataset.labels[index].tolist()
            assert np.array_equal(image, expected[index])


def test_data_loader_reads_a_batch_in_one_call(root, monkeypatch):
    dataset = open_dataset(root, "train", transform=pil_to_tensor)
    asked = []
    read_many = dataset.storage.read_many
    monkeypatch.setattr(
        dataset.storage, "read_many", lambda requests: asked.append(len(requests)) or read_many(requests)
    )
    list(DataLoader(dataset, batch_sampler=EpochSampler(15, 6)))
    assert asked == [6, 6, 3]


def test_reads_work_on_systems_without_fadvise(root, monkeypatch):
    expected = open_dataset(root, "train").read_many([0, 7, 3])
    monkeypatch.delattr(os, "posix_fadvise")  # macOS lacks this function
    dataset = open_dataset(root, "train")
    assert dataset.read_many([0, 7, 3]) == expected
    with ShardStorage(root).open_stream("train-000000.tar") as stream:
        assert stream.read(1 << 10) == (root / "train-000000.tar").read_bytes()[: 1 << 10]


# -- errors ----------------------------------------------------------------------------------------------------------


def with_index(change):
    """Return a function that changes the index of a dataset directory."""

    def write(root):
        frame, levels = read_index(root / INDEX)
        write_index(change(frame), root / INDEX, levels)

    return write


def with_odd_checksums(index):
    texts = index["sha256"].to_list()
    texts[:2] = [texts[0][:-2], texts[1] + "00"]  # one is too short and one too long, so the total length is right
    return index.with_columns(sha256=pl.Series(texts))


def with_tree(labels, levels=("fine", "coarse")):
    return lambda root: Hierarchy.from_labels(np.array(labels), levels).to_parquet(root / HIERARCHY)


OUTSIDE = r"index.parquet: key 'test/\d+' has \d+ bytes at offset \d+ of .* An image may have at most \d+"
REFUSED = [  # (change of a dataset directory, expected words of the error)
    (shutil.rmtree, "found no dataset.json"),
    (lambda root: os.truncate(root / INDEX, 900), "index.parquet: not a readable parquet file"),
    (with_index(lambda index: index.head(4)), "has 4 items of test; dataset.json says 11 items of test, 15 items"),
    (with_index(lambda index: index.with_columns(size=2**62)), OUTSIDE),
    (with_index(lambda index: index.with_columns(shard=pl.lit("train-000000.tar"))), OUTSIDE),
    (with_index(with_odd_checksums), r"index\.parquet: sha256 is not 64 hex digits in every row"),
    (with_tree([[0, 0], [1, 0]]), r"index.parquet: .*label \d is not a class of level 'fine'|classes 0..1"),
    (
        with_tree([[0, 0]], ("kind", "coarse")),
        "hierarchy.parquet: levels kind, coarse; dataset.json says fine, coarse",
    ),
    (with_tree([[c, 2 - c // 2] for c in range(6)]), "labels contradict the hierarchy"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_directories_with_inconsistent_files_are_refused(root, change, words):
    change(root)
    with pytest.raises(InputError, match=words) as caught:
        open_dataset(root, verify_reads=True)
    assert str(root) in str(caught.value)


def test_image_larger_than_the_limit_is_refused_before_it_is_read(root, monkeypatch):
    monkeypatch.setattr("hgld.data.dataset.MAX_IMAGE_BYTES", 10)
    with pytest.raises(InputError, match=r"index.parquet: key '.*' has .* An image may have at most 10 bytes"):
        open_dataset(root)


def test_errors_of_damaged_remote_files_contain_the_url(root):
    (root / HIERARCHY).write_bytes(b"PAR1" + bytes(40) + b"PAR1")
    message = f"/{HIERARCHY}: the SHA-256 of its 48 bytes is not the one in {MANIFEST}"
    with serve(root) as server, pytest.raises(InputError, match=f"{server.url}{message}"):
        open_dataset(server.url)
    manifest = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps({**manifest, "files": {}}))
    with serve(root) as server, pytest.raises(InputError, match=f"{server.url}/{HIERARCHY}: not a readable"):
        open_dataset(server.url)
