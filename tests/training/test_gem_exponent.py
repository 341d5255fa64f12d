"""Choice of p*, the GeM exponent with which views of an image retrieve each other at another resolution."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hgld import open_dataset
from hgld.data.dataset import ShardDataset
from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError
from hgld.training.inference import gem_exponent
from hgld.training.inference.embedder import load_run, trained_embedder
from hgld.training.inference.embedding import embed
from hgld.training.inference.gem_exponent import best_gem_p, choose_gem_p, set_gem_p
from hgld.training.models.embedding_model import AveragePool, EmbeddingModel, GeM
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.reference import precision_at_k
from tests.rows import each_row, refused
from tests.training.untrained_run import CONFIG_OF_RUN, write_run

CHANNELS, VIEWS, IMAGES = 8, 4, 12
select = ShardDataset.select


def maps_as_they_are(pooling):
    return EmbeddingModel(nn.Identity(), CHANNELS, pooling, dim=0, layer_norm=False)


def views():
    """Return feature maps whose maxima identify the image; all other values are noise."""
    generator = torch.Generator().manual_seed(0)
    instances = torch.arange(IMAGES).repeat_interleave(VIEWS)
    sign = torch.rand(IMAGES, CHANNELS, generator=generator)[instances] + 0.2
    maps = torch.rand(len(instances), CHANNELS, 1, 1, generator=generator) * 0.15 * torch.ones(1, 1, 6, 6)
    maps[:, :, 0, 0] = sign
    return maps, instances


def slow_score(embeddings, instances):
    """Return the mean precision at R of the images with another view."""
    shares = []
    for query, instance in enumerate(instances.tolist()):
        others = [i for i in range(len(instances)) if i != query]
        positive = [int(instances[i] == instance) for i in others]
        if any(positive):
            shares.append(precision_at_k((embeddings[others] @ embeddings[query]).tolist(), positive, sum(positive)))
    return sum(shares) / len(shares)


def test_best_gem_p_has_the_highest_score_of_a_slow_reference():
    maps, instances = views()
    keep = torch.tensor([0, 1, 2, 3, 4, 5, 8, 12, 13, 20, 21, 22])  # keep 1 to 4 views per image
    maps, instances, model = maps[keep], instances[keep], maps_as_they_are(GeM(3.0)).train()
    chosen, scores = best_gem_p(model, zip(maps.split(7), instances.split(7), strict=True), (10, 1, 4))
    for p, score in scores.items():
        embeddings = nn.functional.normalize(GeM(p)(maps).detach())
        assert score == pytest.approx(slow_score(embeddings, instances))
    assert list(scores) == [1.0, 4.0, 10.0]
    assert scores[chosen] == max(scores.values()) > min(scores.values())
    assert model.training
    assert isinstance(model.pooling, GeM)
    assert float(model.pooling.p.detach()) == 3.0


test_best_gem_p_refuses_invalid_input = refused(
    lambda pooling, *given: best_gem_p(maps_as_they_are(pooling), *given),
    [
        (AveragePool(), [views()], ConfigError, "with pooling gem"),
        (GeM(), [views()], (0, 1), ConfigError, "above 0"),
        (GeM(), [[part[::VIEWS] for part in views()]], InputError, "two views"),
        (GeM(), [], InputError, "no images"),
    ],
)


@pytest.fixture(scope="module")
def places(module_path):
    """A run with GeM, one without, and a dataset."""
    write_dataset(module_path / "data", items_of_classes([5, 4, 4, 4], ["train", "test"]))
    write_dataset(module_path / "tests", items_of_classes([3, 3], ["test"]))
    write_run(module_path / "average")
    config = replace(CONFIG_OF_RUN, model=replace(CONFIG_OF_RUN.model, pooling="gem"))
    write_run(module_path / "run", config=config)
    return module_path


def chosen_of(places, size, **options):
    model, config = load_run(places / "run")
    return choose_gem_p(model, config.images, open_dataset(places / "data", "train"), size, **options)


def test_gem_p_is_chosen_on_two_images_per_class(places, monkeypatch):
    seen = []
    monkeypatch.setattr(gem_exponent, "best_gem_p", lambda model, batches, amp: (seen.extend(batches), {}))
    monkeypatch.setattr(
        ShardDataset, "select", lambda self, rows: seen.append(self.labels[rows, 0]) or select(self, rows)
    )
    dataset = open_dataset(places / "data", "train")
    chosen_of(places, 40, batch_size=8, workers=1)
    labels, *batches = seen
    assert labels.unique(return_counts=True)[1].tolist() == [2] * len(dataset.labels[:, 0].unique())
    assert sum(len(images) for images, _ in batches) >= 5 * len(labels)


@each_row("gem_p", [5.0, "auto"])
def test_embedder_pools_with_the_chosen_gem_p(places, gem_p):
    dataset = open_dataset(places / "data", "test")
    opened: dict[str, Any] = {"device": "cpu", "size": 40, "data": str(places / "data")}
    with trained_embedder(places / "run", gem_p=gem_p, **opened) as embedder:
        found, p = embedder.embed_dataset(dataset), embedder.gem_p
    assert p is not None
    assert p == (5.0 if gem_p == 5.0 else chosen_of(places, 40, batch_size=8, workers=2))
    model, _ = load_run(places / "run")
    set_gem_p(model, p)
    assert f"p={p:.3g}" in repr(model.pooling)
    torch.testing.assert_close(found, embed(model, dataset, view=TestView(40, 47)), atol=1e-5, rtol=0)
    with trained_embedder(places / "run", **opened) as embedder:
        assert embedder.gem_p is None
        assert p == 3.0 or not torch.allclose(embedder.embed_dataset(dataset), found, atol=1e-4)


def test_choosing_gem_p_is_refused_without_gem_pooling_or_training_split(places):
    options: dict[str, Any] = {"device": "cpu", "data": str(places / "data")}
    either: tuple[Any, ...] = (2.0, "auto")
    for gem_p in either:
        with pytest.raises(ConfigError, match="GeM"), trained_embedder(places / "average", gem_p=gem_p, **options):
            pass
    options["data"] = str(places / "tests")
    with pytest.raises(InputError, match="no split 'train'"), trained_embedder(places / "run", gem_p="auto", **options):
        pass
