"""Whole images of many shapes: each embedded as it would be alone, in batches whose memory is bounded."""

import numpy as np
import pytest
import torch
from PIL import Image

from hgld import open_dataset
from hgld.data.views import TestView
from hgld.distributed import Processes
from hgld.errors import ConfigError
from hgld.training.inference.embedding import _Plan, embed
from hgld.training.models.embedding_model import AveragePool, EmbeddingModel
from tests.fake_releases.pictures import jpeg, png
from tests.hgld.small_dataset import Item, write_dataset
from tests.training.untrained_run import small_model

SIZES = [(40, 32), (40, 32), (32, 40), (64, 20), (40, 32), (21, 33), (33, 21), (32, 40), (50, 50), (40, 32)]
VIEWS = [TestView(28, resize_mode=resize_mode) for resize_mode in ("squash", "longest", "original")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "small"
    rng = np.random.default_rng(3)
    items = [Item((c % 3, 0), "test", png(rng, *size), *size, suffix="png") for c, size in enumerate(SIZES)]
    turned = Item((1, 0), "test", jpeg(rng, 44, 30, orientation=6), 44, 30, orientation=6)
    framed = Item((1, 0), "test", png(rng), suffix="png", box=(5, 3, 35, 31))
    write_dataset(folder, [*items, turned, framed])
    return open_dataset(folder, "test")


@pytest.fixture(scope="module")
def model():
    return small_model()


def shape_of(view, width, height):
    """Return width and height of a view, as its documentation defines them."""
    if view.resize_mode == "squash":
        return view.size, view.size
    if view.resize_mode == "longest":
        return tuple(max(1, int(view.size * side / max(width, height))) for side in (width, height))
    return width, height


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.resize_mode)
def test_whole_image_embeddings_equal_one_by_one_reference(model, dataset, view):
    """The reference implementation is Pillow's own resize, one image at a time."""
    found = embed(model, dataset, view=view, batch_size=4)
    mean, std = (np.array(values)[:, None, None] for values in (model.image_mean, model.image_std))
    for i in range(len(dataset)):
        picture = dataset.image(i)
        pixels = np.asarray(picture.resize(shape_of(view, *picture.size), Image.Resampling.BILINEAR), dtype=np.float64)
        values = torch.from_numpy((pixels.transpose(2, 0, 1) / 255 - mean) / std).float()
        with torch.no_grad():
            row = torch.nn.functional.normalize(model.eval()(values[None]), dim=1)[0]
        torch.testing.assert_close(found[i], row, atol=0.02, rtol=0)  # the two libraries round pixels differently


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.resize_mode)
def test_embedding_does_not_depend_on_batch_size(model, dataset, view):
    alone = torch.cat([embed(model, dataset.select([i]), view=view, workers=1) for i in range(len(dataset))])
    for batch_size, workers in ((3, 1), (100, 3)):
        found = embed(model, dataset, view=view, batch_size=batch_size, workers=workers)
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


def test_embedding_batches_are_bounded_by_pixels(model, dataset):
    passed = []
    handle = model.register_forward_hook(lambda _, images, __: passed.append(tuple(images[0].shape)))
    embed(model, dataset, view=TestView(28, resize_mode="original", max_pixels=1500), batch_size=3)
    handle.remove()
    assert sum(shape[0] for shape in passed) == len(dataset)
    areas = [shape[2] * shape[3] for shape in passed]
    assert areas == sorted(areas, reverse=True), "memory runs out at the beginning or never"
    assert max(areas) <= 1500
    assert max(count * area for (count, *_), area in zip(passed, areas, strict=True)) <= 3 * 28 * 28
    passed.clear()
    handle = model.register_forward_hook(lambda _, images, __: passed.append(tuple(images[0].shape)))
    embed(
        model, dataset, view=TestView(8, resize_mode="original"), batch_size=3
    )  # the largest alone is beyond 3 x 8 x 8
    handle.remove()
    assert {shape[0] for shape in passed} == {1}
    assert max(shape[2] * shape[3] for shape in passed) == 2500


def test_processes_make_equal_passes_and_embed_every_item():
    rng = np.random.default_rng(0)
    sizes = rng.integers(10, 14, (57, 2))
    for count in (1, 2, 5, 80):
        views = [TestView(12, resize_mode="original")]
        plans = [_Plan(sizes, views, 6, Processes(i, count, torch.device("cpu"))) for i in range(count)]
        assert len({len(plan) for plan in plans}) == 1
        rows = [torch.cat([torch.from_numpy(plan.batch(0, s)) for s in range(len(plan))])[:, None] for plan in plans]
        tables = [plan.empty(one) for plan, one in zip(plans, rows, strict=True)]
        for table, one in zip(tables, rows, strict=True):
            table[: len(one)] = one
        assert plans[-1].in_order(torch.cat(tables))[:, 0].tolist() == list(range(57))


def test_embed_names_the_image_size_that_a_network_rejects(dataset):
    model = EmbeddingModel(torch.nn.Conv2d(3, 4, 30), 4, AveragePool(), dim=0)  # wants 30 pixels either way
    with pytest.raises(
        ConfigError, match=r"cannot embed images of 64 x 20 pixels \(.*\)\. Take another --size, or --re"
    ):
        embed(model, dataset.select([3]), view=VIEWS[2])
