"""Properties of every loss: finite values, independence of item order, float32 under autocast, right gradients."""

import torch
from torch import Tensor

from hgld import Hierarchy
from hgld.losses.binned import FastAP, SoftBinAP
from hgld.losses.compositions import SumOverLevels
from hgld.losses.memory import CrossBatchMemory
from hgld.losses.pairs import CalibrationLoss, Contrastive, Margin, Triplet
from hgld.losses.rank_loss import similarity
from hgld.losses.surrogate_losses import PNP
from hgld.losses.wrappers import ClassWeighted, SiMix
from tests.hgld.loss_modules import RANK, Make, proxy_losses, sampled_losses
from tests.rows import each_row

DIM = 8
TREE = Hierarchy.from_labels(torch.tensor([[i, i // 4] for i in range(16)]).numpy(), ("fine", "coarse"))

PLAIN = {**RANK, **sampled_losses(DIM)}
EVERY: dict[str, Make] = {
    **PLAIN,
    **proxy_losses(DIM, TREE),
    "SoftBinAP, query left out": lambda: RANK["SoftBinAP"](exclude_self=True),
    "SupHAP, query left out": lambda: RANK["SupHAP"](exclude_self=True),
    "SumOverLevels": lambda: SumOverLevels(FastAP()),
    "ClassWeighted": lambda: ClassWeighted(SoftBinAP(reduction="none"), "balanced"),
    "CrossBatchMemory": lambda: CrossBatchMemory(PNP(), 20, DIM, num_levels=2),
    "SiMix": lambda: SiMix(FastAP(normalize=False)),
}
# these losses sample with torch's generator, so the order of items matters
DRAWING = {"Margin", "Margin, nonzero", "SiMix"}


def tree_labels(fine: list[int]) -> Tensor:
    return torch.tensor([[f, f // 4 if f >= 0 else -1] for f in fine], dtype=torch.int64).reshape(-1, 2)


BATCHES = {
    "one item": [3],
    "one class": [2] * 6,
    "all distinct": list(range(9)),
    "nothing known": [-1] * 5,
    "one known": [-1, 4, -1],
    "unequal sizes": [0, 0, 0, 0, 0, 1, 5, 5, -1, 9],
    "empty": [],
}


def embed(kind, size):
    torch.manual_seed(size)
    embeddings = torch.randn(size, DIM)
    if kind == "zero":
        return torch.zeros(size, DIM)
    if kind == "equal":
        return embeddings[:1].expand(size, DIM).clone()
    if kind == "extreme":
        embeddings[::2] *= 1e30
        embeddings[1::2] *= 1e-30
    return embeddings


CASES = [(batch, "random") for batch in BATCHES] + [("unequal sizes", kind) for kind in ("equal", "zero", "extreme")]


@each_row("name", list(EVERY))
def test_values_and_gradients_are_finite(name):
    for case in CASES:
        labels, loss = tree_labels(BATCHES[case[0]]), EVERY[name]()
        embeddings = embed(case[1], len(labels)).requires_grad_()
        value = loss(embeddings, labels)
        assert value.shape == (), case
        assert value.isfinite(), case
        value.backward()
        gradients = [embeddings.grad, *(parameter.grad for parameter in loss.parameters())]
        assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None), case
        if not (labels >= 0).any() and "nonzero" not in name:
            assert value == 0, case
            assert not embeddings.grad.any(), case


@each_row(
    ("name", "dtype"),
    [(name, (torch.float32, torch.float16, torch.bfloat16)[i % 3]) for i, name in enumerate(EVERY)],
)
def test_a_zero_embedding_has_no_gradient(name, dtype):
    labels = tree_labels([0, 0, 0, 1, 1, 2, 2, 3])
    embeddings = embed("random", len(labels)).to(dtype)
    embeddings[1] = 0.0
    EVERY[name]()(embeddings.requires_grad_(), labels).backward()
    assert embeddings.grad.isfinite().all()
    assert not embeddings.grad[1].any()
    assert embeddings.grad.any()


@each_row("name", [n for n in EVERY if n not in DRAWING])
def test_the_order_of_the_batch_does_not_change_the_loss(name):
    labels = tree_labels(BATCHES["unequal sizes"])
    embeddings = embed("random", len(labels)).double()
    order = torch.randperm(len(labels))
    loss = EVERY[name]().double()
    expected = loss(embeddings, labels)
    if isinstance(loss, CrossBatchMemory):
        loss.written = 0
    torch.testing.assert_close(loss(embeddings[order], labels[order]), expected)


@each_row(("name", "dtype"), [(name, (torch.bfloat16, torch.float16)[i % 2]) for i, name in enumerate(EVERY)])
def test_autocast_does_not_change_the_loss(name, dtype):
    labels = tree_labels(BATCHES["unequal sizes"])
    embeddings = embed("random", len(labels)).to(dtype)
    torch.manual_seed(0)
    loss = EVERY[name]()
    torch.manual_seed(1)
    expected = loss(embeddings.float(), labels)
    if isinstance(loss, CrossBatchMemory):
        loss.written = 0
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=dtype):
        found = loss(embeddings, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# the reference implementations give the gradients of other losses
@each_row("name", ["SupHAP", "Contrastive", "HAPPIER", "SumOverLevels"])
def test_gradients_equal_finite_differences(name):
    torch.manual_seed(0)
    loss, labels = EVERY[name]().double(), tree_labels([0, 0, 1, 1, 1, -1, 5])
    embeddings = torch.randn(7, DIM, dtype=torch.float64, requires_grad=True)
    weights = {key: value.detach().clone().requires_grad_() for key, value in loss.named_parameters()}

    def value(leaf, *given):
        return torch.func.functional_call(loss, dict(zip(weights, given, strict=True)), (leaf, labels))

    assert torch.autograd.gradcheck(value, (embeddings, *weights.values()), fast_mode=True)


@each_row("make", [Triplet, Contrastive, lambda **o: Margin(DIM, **o), CalibrationLoss])
def test_pair_losses_without_normalisation_expect_unit_vectors(make):
    """SiMix needs this check, because its virtual items are shorter than unit vectors."""
    labels = tree_labels(BATCHES["unequal sizes"])
    embeddings = embed("random", len(labels))
    found = []
    for loss, given in ((make(), embeddings), (make(normalize=False), torch.nn.functional.normalize(embeddings))):
        torch.manual_seed(1)
        found.append(loss(given, labels))
    torch.testing.assert_close(found[1], found[0])


@each_row("make", [Triplet, Contrastive, lambda: Contrastive(0.5, variant="cosine"), lambda: Margin(DIM)])
def test_an_item_is_never_its_own_positive(make):
    embeddings = embed("random", 4)
    assert make()(embeddings, torch.arange(4)) == 0
    assert make()(embeddings, torch.arange(4), embeddings, torch.arange(4), torch.arange(4)) == 0


@each_row("name", [n for n in PLAIN if "nonzero" not in n])
def test_an_empty_gallery_gives_zero_loss_and_gradient(name):
    embeddings = embed("random", 3).requires_grad_()
    value = PLAIN[name]()(embeddings, torch.arange(3), torch.zeros(0, DIM), torch.zeros(0, dtype=torch.int64))
    value.backward()
    assert value == 0
    assert not embeddings.grad.any()


@each_row("precision", ["highest", "medium"])
def test_scores_have_full_precision_under_every_matmul_setting(precision):
    torch.manual_seed(0)
    rows, others = torch.randn(3, 70, requires_grad=True), torch.randn(5, 70, requires_grad=True)
    right = rows.double() @ others.double().T
    torch.set_float32_matmul_precision(precision)
    try:
        found = similarity(rows, others, normalize=False)
        gradients = torch.autograd.grad(found.square().sum(), (rows, others))
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        gradients, torch.autograd.grad(right.square().sum().float(), (rows, others)), rtol=1e-4, atol=1e-3
    )
