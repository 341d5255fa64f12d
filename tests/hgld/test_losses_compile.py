"""torch.compile makes one graph of every loss; the cross-batch memory is outside the compiled graph."""

from functools import partial

import pytest
import torch
from torch import nn

from hgld import Hierarchy
from hgld.losses import binned, blackbox_ap, pairs
from hgld.losses.binned import FastAP, SoftBinAP
from hgld.losses.compositions import SumOverLevels
from hgld.losses.memory import CrossBatchMemory
from hgld.losses.rank_loss import inner_products
from hgld.losses.surrogate_losses import SupHAP
from hgld.losses.wrappers import ClassWeighted
from tests.hgld.loss_modules import RANK, Make, proxy_losses, sampled_losses
from tests.rows import each_row

DIM = 6
LABELS = torch.stack([torch.arange(16) // 4, torch.arange(16) // 8], dim=1)
TREE = Hierarchy.from_labels(LABELS.numpy(), ("fine", "coarse"))

RANKED = ["SupHAP", "PNP, Ds", "SoftBinAP"]  # one loss per operator
LOSSES: dict[str, Make] = {
    **{name: partial(RANK[name], exclude_self=True) for name in [*RANKED, "BlackboxAP"]},
    "Contrastive, cosine": RANK["Contrastive, cosine"],
    **{name: make for name, make in sampled_losses(DIM).items() if name != "CalibrationLoss, nonzero"},
    **{name: proxy_losses(DIM, TREE)[name] for name in ("NormSoftmax", "CSL", "HAPPIER")},
    "SumOverLevels": lambda: SumOverLevels(FastAP()),
    "ClassWeighted, balanced": lambda: ClassWeighted(SoftBinAP(reduction="none"), "balanced"),
}


def compile_module(loss: nn.Module, *, dynamic: bool | None = None) -> nn.Module:
    return torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)


def step(module, embeddings, labels, **more):
    torch.manual_seed(1)  # every call draws the same random numbers
    leaf = embeddings.clone().requires_grad_()
    value = module(leaf, labels, **more)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_loss_compiles_without_a_graph_break(name):
    torch.compiler.reset()
    torch.manual_seed(0)
    loss, embeddings = LOSSES[name](), torch.randn(16, DIM)
    compiled = compile_module(loss, dynamic=False)
    torch.testing.assert_close(step(compiled, embeddings, LABELS), step(loss, embeddings, LABELS))
    if name in RANKED:
        references = {"ref_embeddings": torch.randn(20, DIM), "ref_labels": LABELS.repeat(2, 1)[:20]}
        references["self_index"] = torch.arange(16)
        found, expected = (step(module, embeddings, LABELS, **references) for module in (compiled, loss))
        torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_loss_compiles_with_inductor():
    torch.compiler.reset()
    loss, embeddings = SupHAP(), torch.randn(16, DIM)
    compiled = torch.compile(loss, fullgraph=True, dynamic=False)
    torch.testing.assert_close(step(compiled, embeddings, LABELS), step(loss, embeddings, LABELS))


@pytest.mark.slow
def test_a_compiled_loss_in_a_growing_memory_has_no_graph_break():
    torch.compiler.reset()
    torch.manual_seed(0)
    loss = SupHAP()
    plain = CrossBatchMemory(loss, 40, DIM, num_levels=2)
    compiled = CrossBatchMemory(compile_module(loss, dynamic=True), 40, DIM, num_levels=2)
    for _ in range(4):  # the memory then has 16, 32, 40 and 40 items
        embeddings = torch.randn(16, DIM)
        torch.testing.assert_close(step(compiled, embeddings, LABELS), step(plain, embeddings, LABELS))
    assert len(compiled) == 40


def operators():
    """Return every operator except ``hgld::rank_metric``, with arguments."""
    torch.manual_seed(0)
    scores, roles = torch.rand(3, 9, requires_grad=True), torch.randint(0, 3, (3, 9), dtype=torch.uint8)
    positive, negative = roles == 2, roles == 1
    contents, seed = torch.rand(3, 2, 5, dtype=torch.float64), torch.tensor(1)
    return {
        "inner_products": (inner_products, (scores, torch.rand(5, 9, requires_grad=True))),
        "triplets": (pairs._triplets, (scores, positive & negative.any(1, keepdim=True), negative, 0.2)),
        "soft_histograms": (binned._histograms, (scores, roles, 5, -1.0)),
        "its backward": (binned._histograms_backward, (contents, scores.detach(), roles, 5, -1.0)),
        "blackbox_ap": (blackbox_ap._blackbox_ap, (scores, roles, 4.0, 0.02)),
        "and its": (blackbox_ap._blackbox_ap_backward, (torch.rand(3), scores.detach(), roles, 4.0, 0.02)),
        "draw_negatives": (pairs.draw_negatives, (scores.detach(), positive.sum(1), negative, seed, 8, 0.5, 1.4)),
    }


@each_row("name", operators())
def test_operators_pass_torch_opcheck(name):
    operator, arguments = operators()[name]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, arguments, test_utils=checks)
