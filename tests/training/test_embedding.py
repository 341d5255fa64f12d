"""Embeddings equal a reference for single images, with any batch size and number of threads or processes."""

import itertools
import math

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from hgld import open_dataset
from hgld.data.batch import Fault
from hgld.data.views import TestView
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError
from hgld.evaluation.embedding_files import check_row_count, read_embeddings, read_labels
from hgld.training.inference import embedding as module
from hgld.training.inference.embedding import (
    _Plan,
    embed,
    faults_file,
    labels_file,
    write_embeddings,
)
from hgld.training.models.embedding_model import AveragePool, EmbeddingModel
from tests.fake_releases.pictures import jpeg, png
from tests.hgld.small_dataset import LEVELS, Item, items_of_classes, write_dataset
from tests.rows import each_row
from tests.training.untrained_run import small_model

VIEW = TestView(24, 28)
SIZES = [(40, 32), (40, 32), (32, 40), (64, 20), (40, 32), (21, 33), (33, 21), (32, 40), (50, 50), (40, 32)]


@pytest.fixture(scope="module")
def dataset(module_path):
    """Images of many shapes, one of which has an orientation, one a box, and one no finest label."""
    folder = module_path / "small"
    rng = np.random.default_rng(3)
    items = [Item((c % 3 or -1, 0), "test", png(rng, *size), *size, suffix="png") for c, size in enumerate(SIZES)]
    turned = Item((1, 0), "test", jpeg(rng, 44, 30, orientation=6), 44, 30, orientation=6)
    framed = Item((1, 0), "test", png(rng), suffix="png", box=(5, 3, 35, 31))
    write_dataset(folder, [*items, turned, framed])
    return open_dataset(folder, "test")


@pytest.fixture(scope="module")
def model():
    return small_model()


def test_embedding_at_several_scales_is_the_normalized_mean_of_all_scales(model, dataset):
    parts = [embed(model, dataset, view=VIEW.scaled(scale)) for scale in (1.0, 2**0.5, 0.5)]
    expected = torch.nn.functional.normalize(torch.stack(parts).sum(0), dim=1)
    found = embed(model, dataset, view=VIEW, scales=(1.0, 2**0.5, 0.5))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, parts[0], atol=1e-3)


@each_row("wrong", [{"scales": ()}, {"scales": (1, 0)}, {"scales": (math.nan,)}, {"batch_size": 0}])
def test_embed_options_out_of_range_are_refused(model, dataset, wrong):
    with pytest.raises(ConfigError):
        embed(model, dataset, view=VIEW, **wrong)


def test_damaged_images_are_reported_and_all_other_images_embedded(model, tmp_path):
    items = items_of_classes([3, 3], ["test"])
    write_dataset(tmp_path / "whole", items)
    items[4] = Item(items[4].labels, "test", items[4].data[:200] + bytes(300))
    write_dataset(tmp_path / "d", items)
    faults = []
    found = embed(model, open_dataset(tmp_path / "d", "test"), view=VIEW, scales=(1, 0.5), faults=faults)
    expected = embed(model, open_dataset(tmp_path / "whole", "test"), view=VIEW, scales=(1, 0.5))
    assert [(fault.index, "test/0004" in fault.where) for fault in faults] == [(4, True)]
    assert found[4].isnan().all()
    sound = [0, 1, 2, 3, 5]
    torch.testing.assert_close(found[sound], expected[sound])


def test_embedding_fails_if_another_process_fails(model, dataset, monkeypatch):
    monkeypatch.setattr(module, "any_process", lambda flag, processes: True)
    with pytest.raises(InputError, match="another process"):
        embed(model, dataset, view=VIEW)


def test_written_embeddings_are_read_back_unchanged(dataset, tmp_path):
    path = tmp_path / "made" / "e.x.npy"
    rows = torch.nn.functional.normalize(torch.randn(12, 6), dim=1)
    write_embeddings(path, rows, dataset)
    read, labels = read_embeddings(path), read_labels(labels_file(path), LEVELS)
    assert {p.name for p in path.parent.iterdir()} == {path.name, "e.x.labels.parquet"}
    assert np.array_equal(np.asarray(read), rows.numpy())
    check_row_count(read, labels, (path, labels_file(path)))
    table = pl.read_parquet(labels_file(path))
    assert table.schema == {"key": pl.String, "split": pl.String, "fine": pl.Int32, "coarse": pl.Int32}
    assert table.rows() == [(key, "test", *row) for key, row in zip(dataset.keys, dataset.labels.tolist(), strict=True)]


def test_unreadable_items_are_listed_beside_the_embeddings(dataset, tmp_path):
    path = tmp_path / "e.npy"
    write_embeddings(path, torch.ones(12, 6), dataset, [Fault(3, 'test.tar: "a", b', "no image")])
    assert pl.read_csv(faults_file(path)).rows(named=True) == [
        {"item": 3, "where": 'test.tar: "a", b', "reason": "no image"}
    ]
    write_embeddings(path, torch.ones(12, 6), dataset)
    assert not faults_file(path).exists()


def test_refused_write_of_embeddings_leaves_no_files(dataset, tmp_path):
    rows = torch.ones(12, 6)
    with pytest.raises(ConfigError, match=r"\.pt"):
        write_embeddings(tmp_path / "e.pt", rows, dataset)
    with pytest.raises(InputError, match="11 embeddings"):
        write_embeddings(tmp_path / "e.npy", rows[1:], dataset)
    assert not list(tmp_path.iterdir())


# -- whole images of many shapes --

VIEWS = [TestView(28, 30, resize_mode) for resize_mode in ("crop", "squash", "longest", "original")]


def shape_of(view, width, height):
    """Return width and height of a resized image, as the documentation of views defines them."""
    if view.resize_mode == "squash":
        return view.size, view.size
    if view.resize_mode == "original":
        return width, height
    factor = view.resize / min(width, height) if view.resize_mode == "crop" else view.size / max(width, height)
    return tuple(max(view.resize if view.resize_mode == "crop" else 1, int(side * factor)) for side in (width, height))


@each_row("view", VIEWS)
def test_embeddings_equal_one_by_one_reference(model, dataset, view):
    """The reference implementation is Pillow's own resize and crop, one image at a time, normalised by hand."""
    found = embed(model, dataset, view=view, batch_size=4)
    assert (found.dtype, found.shape) == (torch.float32, (12, 6))
    mean, std = (np.array(values)[:, None, None] for values in (model.image_mean, model.image_std))
    for i in range(len(dataset)):
        picture = dataset.image(i)
        shown = picture.resize(shape_of(view, *picture.size), Image.Resampling.BILINEAR)
        if view.resize_mode == "crop":
            left, top = (round((side - view.size) / 2) for side in shown.size)
            shown = shown.crop((left, top, left + view.size, top + view.size))
        pixels = np.asarray(shown, dtype=np.float64).transpose(2, 0, 1) / 255
        with torch.no_grad():
            row = model.eval()(torch.from_numpy((pixels - mean) / std).float()[None])
        row = torch.nn.functional.normalize(row, dim=1)[0]
        torch.testing.assert_close(found[i], row, atol=0.02, rtol=0)  # torchvision and Pillow round pixels differently


@each_row("view", VIEWS[2:])
def test_embedding_does_not_depend_on_batch_size(model, dataset, view):
    alone = torch.cat([embed(model, dataset.select([i]), view=view, workers=1) for i in range(len(dataset))])
    for batch_size, workers in ((3, 1), (100, 3)):
        found = embed(model, dataset, view=view, batch_size=batch_size, workers=workers)
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


@each_row(("view", "tries"), [(VIEWS[1], True), (VIEWS[2], False)])
def test_cudnn_tries_algorithms_only_if_images_have_one_shape(model, dataset, view, tries, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = set()
    hook = model.register_forward_pre_hook(lambda *_: seen.add(torch.backends.cudnn.benchmark))
    embed(model, dataset, view=view, batch_size=4)
    hook.remove()
    assert seen == {tries}
    assert torch.backends.cudnn.benchmark


def test_embedding_batches_hold_a_limited_number_of_pixels(model, dataset):
    passed = []
    handle = model.register_forward_hook(lambda _, images, __: passed.append(tuple(images[0].shape)))
    embed(model, dataset, view=TestView(28, resize_mode="original", max_pixels=1500), batch_size=3)
    handle.remove()
    assert sum(shape[0] for shape in passed) == len(dataset)
    areas = [shape[2] * shape[3] for shape in passed]
    assert areas == sorted(areas, reverse=True), (
        "the largest images come first, so that memory runs out at once or never"
    )
    assert max(areas) <= 1500
    assert max(count * area for (count, *_), area in zip(passed, areas, strict=True)) <= 3 * 28 * 28


def test_processes_share_the_batches_of_one_process():
    sizes = np.random.default_rng(0).integers(10, 14, (57, 2))

    def batches(index, count):
        return _Plan(sizes, [TestView(12, resize_mode="original")], 6, Processes(index, count, torch.device("cpu"))).own

    alone = [items.tolist() for items in batches(0, 1)]
    assert sorted(itertools.chain(*alone)) == list(range(57))
    for count in (2, 5, 80):
        shares = [batches(index, count) for index in range(count)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert sorted(items.tolist() for share in shares for items in share) == sorted(alone)


def test_image_size_that_the_network_cannot_process_is_in_the_error(dataset):
    # the kernel needs at least 30 x 30 pixels
    model = EmbeddingModel(torch.nn.Conv2d(3, 4, 30), 4, AveragePool(), dim=0)
    with pytest.raises(
        ConfigError, match=r"cannot embed images of 64 x 20 pixels \(.*\)\. Use another --size, or --re"
    ):
        embed(model, dataset.select([3]), view=VIEWS[3])
