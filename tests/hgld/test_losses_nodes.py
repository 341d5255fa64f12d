"""Losses with a vector for every node of the tree against their slow twins, and what their geometry promises."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld import Hierarchy
from hgld.errors import ConfigError, InputError
from hgld.losses.tree_proxies import EntailmentCones, HierCos, NodeProxyLoss
from tests import reference_losses

SPECIES, FAMILIES, KINGDOMS = ("fox", "wolf", "cat", "lynx", "oak"), ("dog", "feline", "tree"), ("animal", "plant")
TREE = Hierarchy(
    ("species", "family", "kingdom"),
    (SPECIES, FAMILIES, KINGDOMS),
    (np.array([0, 0, 1, -1, 2]), np.array([0, 0, 1])),  # nobody knows what a lynx is
)
DIM = 6
MAKE: dict[str, Callable[..., NodeProxyLoss]] = {
    "HierCos": lambda **options: HierCos(TREE, DIM, 0.2, 0.3, **options),
    "EntailmentCones": lambda **options: EntailmentCones(TREE, DIM, 0.5, 0.7, 1.5, **options),
}


def twin_of(loss: NodeProxyLoss, embedding: torch.Tensor, label: int, nodes: torch.Tensor) -> torch.Tensor:
    rows = [list(part) for part in nodes.split(loss.num_classes)]
    path = loss.classes[label].tolist()
    if isinstance(loss, HierCos):
        scaled = [[row / loss.temperature for row in level] for level in rows]
        return reference_losses.hier_cos_loss(embedding, scaled, path, loss.alpha)
    assert isinstance(loss, EntailmentCones)
    return reference_losses.entailment_loss(embedding, rows, path, loss.temperature, loss.weight, loss.radius)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(
    labels=st.lists(st.integers(-1, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    length=st.sampled_from([0.3, 1.0, 4.0]),
)
@settings(max_examples=8)
def test_values_and_gradients_equal_their_twins(name, dtype, labels, seed, length):
    value_error, slope_error = (1e-7, 1e-6) if dtype == torch.float64 else (1e-5, 1e-3)
    torch.manual_seed(seed)
    loss = MAKE[name](reduction="none").to(dtype)
    for parameter in loss.parameters():
        parameter.data *= length  # nodes within and beyond the images' distance from the centre
    embeddings = torch.randn(len(labels), DIM, dtype=dtype, requires_grad=True)
    values, valid = loss(embeddings, torch.tensor(labels))
    values.sum().backward()
    slow = embeddings.detach().double().requires_grad_()
    nodes = loss.nodes().detach().double().requires_grad_()
    total = 0 * slow.sum() + 0 * nodes.sum()
    for row, label in enumerate(labels):
        assert bool(valid[row]) == (label >= 0)
        expected = twin_of(loss, slow[row], label, nodes) if label >= 0 else torch.zeros(())
        assert abs(values[row].item() - expected.item()) <= value_error * max(1.0, abs(expected.item()))
        total = total + expected
    total.backward()
    assert loss.proxies.grad is not None
    assert loss.ancestors.grad is not None
    found = torch.cat([loss.proxies.grad, loss.ancestors.grad])
    for fast, twin in ((embeddings.grad, slow.grad), (found, nodes.grad)):
        assert fast is not None
        assert twin is not None
        assert (fast.double() - twin).abs().max() <= slope_error * max(1.0, twin.abs().max().item())


@pytest.mark.parametrize("name", MAKE)
def test_the_finest_column_alone_is_read_and_unknown_levels_teach_nothing(name):
    torch.manual_seed(0)
    loss, embeddings = MAKE[name](), torch.randn(5, DIM)
    fine = torch.arange(5)
    assert loss(embeddings, fine) == loss(embeddings, torch.from_numpy(TREE.expand(fine.numpy())))
    loss(embeddings[:1], torch.tensor([3])).backward()  # a lynx
    assert loss.ancestors.grad is not None
    if name == "EntailmentCones":  # Hier-COS keeps an item off all other axes
        assert not loss.ancestors.grad.any()
    with pytest.raises(InputError, match="label 5 has no proxy"):
        loss(torch.randn(1, DIM), torch.tensor([5]))


@pytest.mark.parametrize("name", MAKE)
def test_zeros_and_coinciding_vectors_have_finite_gradients(name):
    loss = MAKE[name]()
    loss.proxies.data[0], loss.proxies.data[1] = torch.eye(DIM)[0] * 1.5, 0.0
    embeddings = torch.stack([torch.eye(DIM)[0], -torch.eye(DIM)[0], torch.zeros(DIM)]).requires_grad_()
    value = loss(embeddings, torch.tensor([0, 0, 1]))
    value.backward()
    assert value.isfinite()
    for leaf in (embeddings, *loss.parameters()):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


# -- Hier-COS ---------------------------------------------------------------------------------------------------------


def test_hier_cos_of_one_level_is_cross_entropy_of_the_sizes_of_the_coordinates():
    torch.manual_seed(0)
    loss, embeddings = HierCos(TREE.restrict(["species"]), DIM, alpha=0.0), torch.randn(4, DIM)
    labels = torch.tensor([0, 2, 3, 4])
    expected = torch.nn.functional.cross_entropy(loss.coordinates(embeddings).abs(), labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)


@given(sizes=st.lists(st.floats(0.5, 9), min_size=3, max_size=3), alpha=st.floats(0, 2))
@settings(max_examples=20)
def test_hier_cos_charges_less_for_a_class_that_shares_axes(sizes, alpha):
    """An item on the subspace of another class: of a sister, of a cousin, of a stranger."""
    tree = Hierarchy.from_columns(
        {"s": ["coyote", "fox", "lynx", "oak"], "f": ["dog", "dog", "feline", "tree"], "k": [*3 * ["animal"], "plant"]}
    )
    loss = HierCos(tree, 9, 1.0, alpha).double()  # as many dimensions as nodes: the embedding is z
    loss.proxies.data, loss.ancestors.data = 10 * torch.eye(9).double()[:4], 10 * torch.eye(9).double()[4:]
    places = torch.zeros(4, 9, dtype=torch.float64)
    for label, path in enumerate(loss.classes + loss.starts):
        places[label, path] = torch.tensor(sizes, dtype=torch.float64)
    coyote = [float(loss(place[None], torch.tensor([0])).detach()) for place in places]
    assert coyote[0] < coyote[1] < coyote[2] < coyote[3]
    assert float(loss(-places[:1], torch.tensor([0])).detach()) == pytest.approx(coyote[0])  # a subspace has no sign


# -- entailment -------------------------------------------------------------------------------------------------------


@given(length=st.floats(0.01, 5), radius=st.floats(0.01, 5))
@settings(max_examples=20)
def test_on_one_ray_distances_are_differences_and_cones_open_outwards(length, radius):
    loss, ends = EntailmentCones(TREE, DIM, radius=radius), torch.tensor([length], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    assert float(loss.distances(one, ends)) == pytest.approx(abs(length - radius), abs=1e-5)
    assert float(loss.distances(-one, ends)) == pytest.approx(length + radius)
    width = math.asin(0.2 / max(math.sinh(length), math.sqrt(0.2**2 + 1e-6)))
    expected = 0.0 if length < radius else math.pi - width
    if abs(length - radius) > 1e-3:
        assert float(loss.outside(one, ends)) == pytest.approx(expected, abs=2e-3)


@given(cosine=st.floats(-0.99, 0.99), near=st.floats(0.3, 3), farther=st.floats(0.01, 1))
@settings(max_examples=20)
def test_a_class_that_moves_outwards_narrows_its_cone(cosine, near, farther):
    loss, scores = EntailmentCones(TREE, DIM), torch.tensor([cosine], dtype=torch.float64)
    gaps = [float(loss.outside(scores, torch.tensor([end]).double())) for end in (near, near + farther)]
    assert gaps[0] <= gaps[1] + 1e-9


def test_wrong_options_are_refused():
    refused: tuple[tuple[Callable[..., object], dict[str, Any]], ...] = (
        (HierCos, {"temperature": 0.0}),
        (HierCos, {"alpha": -0.1}),
        (HierCos, {"alpha": math.inf}),
        (EntailmentCones, {"temperature": 0.0}),
        (EntailmentCones, {"weight": -1.0}),
        (EntailmentCones, {"radius": 11.0}),
    )
    for make, wrong in refused:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            make(TREE, DIM, **wrong)
