"""A batch shared by processes: each takes its own queries against everybody's items, and together they are one."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from hgld import Hierarchy
from hgld.losses.pairs import Margin, Triplet
from hgld.losses.rank_loss import query_sums
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


def gradients(loss: nn.Module, embeddings: Tensor) -> list[Tensor]:
    leaves = [embeddings, *loss.parameters()]
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


@pytest.mark.parametrize("name", LOSSES)
def test_processes_together_give_the_loss_of_the_whole_batch(name):
    torch.manual_seed(0)
    loss = LOSSES[name]().double()
    embeddings = batch().requires_grad_()
    expected = loss(embeddings, LABELS)
    expected.backward()
    of_whole = gradients(loss, embeddings)
    loss.zero_grad()
    everybody = batch().requires_grad_()  # as gathered: gradients of all processes add up in it
    index = torch.arange(len(FINE))
    parts = [query_sums(loss, everybody[p], LABELS[p], everybody, LABELS, index[p]) for p in PARTS]
    counts = {term: sum(part[term].count for part in parts) for term in parts[0]}
    values = [part[term].weight * part[term].total / counts[term] for part in parts for term in part]
    total = torch.stack(values).sum()
    total.backward()
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(loss, everybody), of_whole, rtol=1e-10, atol=1e-12)


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
