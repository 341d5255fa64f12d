"""p*: the exponent by which views of an image find each other, and the one that tells classes best."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgld.errors import ConfigError, DivergenceError, InputError
from hgld.training.inference.classification import Classifier
from hgld.training.inference.resolution import ShapeBatches, best_gem_p, learned_gem_p
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


# -- p learned alone --------------------------------------------------------------------------------------------------


def slow_cross_entropy(p: float, maps: np.ndarray, targets: np.ndarray, classifier: Classifier) -> float:
    weight, bias = classifier.weight.double().numpy(), classifier.bias.double().numpy()
    losses = []
    for image, target in zip(maps, targets, strict=True):
        pooled = [float(np.mean(channel**p)) ** (1 / p) for channel in image]
        scores = [float(row @ pooled + b) for row, b in zip(weight, bias, strict=True)]
        losses.append(math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores) - scores[target])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("start", [1.0, 4.0])
def test_p_learned_alone_is_that_of_slow_steps_in_float64(start):
    maps, _ = views("largest")
    generator = torch.Generator().manual_seed(1)
    maps = maps[:18] + 0.02
    targets = torch.randint(3, (len(maps),), generator=generator)
    classifier = Classifier(
        torch.randn(3, CHANNELS, generator=generator) * 4, torch.zeros(3), None, "fine", ("a", "b", "c")
    )
    model = maps_as_they_are(GeM(start, learned=False)).train()
    batches = list(zip(maps.split(5), targets.split(5), strict=True))
    found = learned_gem_p(model, classifier, batches, len(batches), rate=0.2)

    p, velocity = start, 0.0
    for step, (images, of_class) in enumerate(batches):
        given = (images.double().numpy(), of_class.numpy(), classifier)
        gradient = (slow_cross_entropy(p + 1e-5, *given) - slow_cross_entropy(p - 1e-5, *given)) / 2e-5
        velocity = 0.9 * velocity + gradient
        p -= 0.2 * (1 - step / len(batches)) ** 0.9 * velocity
    assert found == pytest.approx(p, abs=2e-4)
    assert abs(p - start) > 0.01
    assert model.training
    assert isinstance(model.pooling, GeM)
    assert float(model.pooling.p) == start


def test_nothing_but_p_learns_and_a_wild_rate_is_an_error():
    torch.manual_seed(0)
    maps, _ = views("largest")
    model = EmbeddingModel(nn.Conv2d(CHANNELS, 4, 1), 4, GeM(3.0), dim=5)
    classifier = Classifier(torch.randn(2, 5), torch.zeros(2), None, "fine", ("a", "b"))
    targets = torch.arange(len(maps)) % 2
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learned_gem_p(model, classifier, [(maps, targets)], 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(DivergenceError, match="GeM's p became"):
        learned_gem_p(model, classifier, [(maps, targets)] * 9, 9, rate=1e9)
    with pytest.raises(ConfigError, match="take pooling gem"):
        learned_gem_p(maps_as_they_are(AveragePool()), classifier, [(maps, targets)], 1)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_an_exponent_is_learned_from_maps_of_the_runs_precision_in_float32(amp):
    torch.manual_seed(0)
    maps, _ = views("largest")
    model, made = EmbeddingModel(nn.Conv2d(CHANNELS, 4, 1), 4, GeM(3.0), dim=5), set()
    model.backbone.register_forward_hook(lambda module, given, out: made.add(out.dtype))
    model.projection.register_forward_hook(lambda module, given, out: made.add(out.dtype))
    classifier = Classifier(torch.randn(2, 5), torch.zeros(2), None, "fine", ("a", "b"))
    batches = [(maps, torch.arange(len(maps)) % 2)] * 3
    found = learned_gem_p(model, classifier, batches, 3, rate=0.2, amp=amp)
    assert made == {torch.bfloat16 if amp == "bf16" else torch.float16, torch.float32}
    exact = learned_gem_p(model, classifier, batches, 3, rate=0.2)
    assert found == pytest.approx(exact, rel=0.02)
    assert exact != 3.0


@given(st.lists(st.sampled_from([(4, 6), (6, 4), (5, 5)]), min_size=1, max_size=20), st.integers(1, 5), st.booleans())
def test_batches_have_one_shape_and_every_image_once(shapes, batch_size, drawn):
    table = np.array(shapes, dtype=np.int64)
    sampler = ShapeBatches(table, batch_size, seed=3 if drawn else None)
    batches = [sampler.batch(0, step) for step in range(len(sampler))]
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(shapes)))
    assert all(len(batch) <= batch_size for batch in batches)
    assert all(len({shapes[item] for item in batch}) == 1 for batch in batches)
    again = ShapeBatches(table, batch_size, seed=3 if drawn else None)
    assert all(np.array_equal(batch, again.batch(0, step)) for step, batch in enumerate(batches))
