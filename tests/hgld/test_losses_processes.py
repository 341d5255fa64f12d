"""A batch shared by processes: each takes its own queries against everybody's items, and together they are one."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from hgld import Hierarchy
from hgld.losses.compositions import Composition
from hgld.losses.pairs import CalibrationLoss, Margin, Triplet
from tests.hgld.loss_modules import RANK, Make, proxy_losses

DIM, CLASSES = 6, 8
FINE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, -1, 4, 5, 5, 6, 7])
LABELS = torch.stack([FINE, torch.where(FINE >= 0, FINE // 4, 1)], dim=1)  # one item is known at the coarse level alone
TREE = Hierarchy.from_labels(torch.tensor([[i, i // 4] for i in range(CLASSES)]).numpy(), ("fine", "coarse"))
PARTS = (slice(0, 7), slice(7, 16))  # processes need not have equally many items

LOSSES: dict[str, Make] = {
    **RANK,
    **proxy_losses(DIM, TREE),
    **{f"{name}, query left out": partial(RANK[name], exclude_self=True) for name in ("SupAP", "SupHAP")},
}


def batch(seed: int = 0) -> Tensor:
    return torch.randn(len(FINE), DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def query_terms(loss: nn.Module, *args: Tensor) -> list[tuple[float, tuple[Tensor, Tensor]]]:
    """The weighted terms of a loss of ``reduction="none"``, each with its values and valid."""
    if not isinstance(loss, Composition):
        return [(1.0, loss(*args))]
    terms = loss.query_terms(*args)
    return [(1 - loss.lambda_, terms["rank"]), (loss.lambda_, terms["decomposability"])]


def gradients(loss: nn.Module, embeddings: Tensor) -> list[Tensor]:
    leaves = [embeddings, *loss.parameters()]
    found = [leaf.grad for leaf in leaves]
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]


@pytest.mark.parametrize("name", LOSSES)
def test_processes_together_give_the_loss_of_the_whole_batch(name):
    torch.manual_seed(0)
    whole, shared = LOSSES[name]().double(), LOSSES[name](reduction="none").double()
    shared.load_state_dict(whole.state_dict())
    embeddings = batch().requires_grad_()
    expected = whole(embeddings, LABELS)
    expected.backward()
    everybody = batch().requires_grad_()  # as gathered: gradients of all processes add up in it
    counts, sums = None, []
    for part in PARTS:
        index = torch.arange(len(FINE))[part]
        terms = query_terms(shared, everybody[part], LABELS[part], everybody, LABELS, index)
        own = [valid.sum() for _, (_, valid) in terms]
        counts = own if counts is None else [a + b for a, b in zip(counts, own, strict=True)]
        sums.append(terms)
    assert counts is not None
    total = torch.zeros((), dtype=torch.float64)
    for terms in sums:  # what every process has once the counts are summed over all of them
        value = sum(w * v.sum() / n for (w, (v, _)), n in zip(terms, counts, strict=True))
        assert isinstance(value, Tensor)
        value.backward()
        total += value.detach()
    torch.testing.assert_close(total, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(shared, everybody), gradients(whole, embeddings), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["CalibrationLoss, nonzero", "Triplet"])
def test_a_normaliser_of_the_whole_batch_is_not_a_mean_over_queries(name):
    """Why these are taken of the gathered batch by every process: a query's share depends on the other queries."""
    loss = {"CalibrationLoss, nonzero": CalibrationLoss(reduction="nonzero"), "Triplet": Triplet()}[name]
    embeddings = batch()
    each = [loss(embeddings[p], LABELS[p], embeddings, LABELS, torch.arange(len(FINE))[p]) for p in PARTS]
    whole = loss(embeddings, LABELS)
    sizes = [len(FINE[p]) / len(FINE) for p in PARTS]
    assert abs(sum(s * v for s, v in zip(sizes, each, strict=True)) - whole) > 1e-3
    torch.testing.assert_close(loss(embeddings, LABELS, embeddings, LABELS, torch.arange(len(FINE))), whole)


@pytest.mark.parametrize("loss", [Triplet(reduction="none"), Margin(DIM, reduction="none")])
def test_every_anchors_mean_is_its_own(loss):
    """What processes can share of the losses over sampled pairs is the mean over anchors."""
    embeddings = batch().float()
    torch.manual_seed(3)
    values, valid = loss(embeddings, LABELS)
    assert torch.equal(values != 0, (values != 0) & valid)
    if isinstance(loss, Triplet):
        parts = [loss(embeddings[p], LABELS[p], embeddings, LABELS, torch.arange(len(FINE))[p]) for p in PARTS]
        torch.testing.assert_close(torch.cat([v for v, _ in parts]), values)
        assert torch.equal(torch.cat([v for _, v in parts]), valid)
