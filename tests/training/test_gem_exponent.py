"""p*: the exponent by which views of an image find each other."""

import pytest
import torch
from torch import nn

from hgld.errors import ConfigError, InputError
from hgld.training.inference.resolution import best_gem_p
from hgld.training.models.embedding_model import AveragePool, EmbeddingModel, GeM

CHANNELS, VIEWS, IMAGES = 8, 4, 12


def maps_as_they_are(pooling: nn.Module) -> EmbeddingModel:
    return EmbeddingModel(nn.Identity(), CHANNELS, pooling, dim=0, layer_norm=False)


def views(telling: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps whose largest values, or whose means, say which image they show; all else is noise."""
    generator = torch.Generator().manual_seed(0)
    instances = torch.arange(IMAGES).repeat_interleave(VIEWS)
    sign = torch.rand(IMAGES, CHANNELS, generator=generator)[instances] + 0.2
    if telling == "largest":
        maps = torch.rand(len(instances), CHANNELS, 1, 1, generator=generator) * 0.15 * torch.ones(1, 1, 6, 6)
        maps[:, :, 0, 0] = sign
    else:
        maps = sign[:, :, None, None].expand(-1, -1, 6, 6).clone()
        maps[:, :, 0, 0] = 3 + 4 * torch.rand(len(instances), CHANNELS, generator=generator)
    return maps, instances


def slow_score(embeddings: torch.Tensor, instances: torch.Tensor) -> float:
    shares = []
    for query in range(len(instances)):
        order = sorted(
            (i for i in range(len(instances)) if i != query), key=lambda i: -float(embeddings[query] @ embeddings[i])
        )
        others = [i for i in order if instances[i] == instances[query]]
        if others:
            shares.append(len(set(order[: len(others)]) & set(others)) / len(others))
    return sum(shares) / len(shares)


@pytest.mark.parametrize(("telling", "best"), [("largest", 10.0), ("mean", 1.0)])
def test_the_exponent_follows_what_tells_images_apart(telling, best):
    maps, instances = views(telling)
    model = maps_as_they_are(GeM(3.0)).train()
    chosen, scores = best_gem_p(model, zip(maps.split(7), instances.split(7), strict=True), (10, 1, 3))
    assert list(scores) == [1.0, 3.0, 10.0]
    assert scores[best] == max(scores.values())
    assert scores[best] > min(scores.values())
    assert chosen == min(p for p, score in scores.items() if score == max(scores.values()))
    assert model.training
    assert isinstance(model.pooling, GeM)
    assert float(model.pooling.p.detach()) == 3.0


def test_scores_are_those_of_a_slow_count():
    maps, instances = views("largest")
    keep = torch.tensor([0, 1, 2, 3, 4, 5, 8, 12, 13, 20, 21, 22])  # 1 to 4 views of an image
    _, scores = best_gem_p(maps_as_they_are(GeM()), [(maps[keep], instances[keep])], (1, 4))
    for p, score in scores.items():
        embeddings = nn.functional.normalize(GeM(p)(maps[keep]).detach())
        assert score == pytest.approx(slow_score(embeddings, instances[keep]))


def test_refusals():
    maps, instances = views("mean")
    with pytest.raises(ConfigError, match="take pooling gem"):
        best_gem_p(maps_as_they_are(AveragePool()), [(maps, instances)])
    with pytest.raises(ConfigError, match="above 0"):
        best_gem_p(maps_as_they_are(GeM()), [(maps, instances)], (0, 1))
    with pytest.raises(ConfigError, match="no candidates"):
        best_gem_p(maps_as_they_are(GeM()), [(maps, instances)], ())
    with pytest.raises(InputError, match="two views"):
        best_gem_p(maps_as_they_are(GeM()), [(maps[::VIEWS], instances[::VIEWS])])
    with pytest.raises(InputError, match="no images"):
        best_gem_p(maps_as_they_are(GeM()), [])
