"""Losses and arguments by pytorch-metric-learning's names: the same values, or an answer that names hgld's own."""

import pytest
import torch

from hgld import losses
from hgld.errors import ConfigError

CLASSES, ITEMS, DIM = 4, 4, 6  # as many classes as items: of other batches the library's Smooth-AP confuses the two
LABELS = torch.arange(CLASSES).repeat_interleave(ITEMS)
EMBEDDINGS = torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(0)) + torch.eye(DIM)[LABELS]

ARGUMENTS = {  # of the library's losses
    "SmoothAPLoss": {"temperature": 0.05},
    "FastAPLoss": {"num_bins": 5},
    "PNPLoss": {"b": 3, "alpha": 2, "anneal": 0.05},
    "NormalizedSoftmaxLoss": {"num_classes": CLASSES, "embedding_size": DIM, "temperature": 0.1},
    "ProxyNCALoss": {"num_classes": CLASSES, "embedding_size": DIM, "softmax_scale": 4},
}
CASES = [(name, {}) for name in ARGUMENTS] + [("PNPLoss", {"variant": variant}) for variant in ("Ds", "Dq", "Iu", "Ib")]


def made(name, more):
    """The loss by the library's name, with proxies that are the same in every test."""
    arguments = ARGUMENTS[name]
    loss = getattr(losses, name)(**arguments, **more)
    if "num_classes" in arguments:
        loss.proxies.data = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(1))
    return loss


@pytest.mark.parametrize(("name", "more"), CASES)
def test_the_value_is_that_of_the_library(name, more):
    theirs = getattr(pytest.importorskip("pytorch_metric_learning.losses"), name)(**ARGUMENTS[name], **more)
    loss = made(name, more)
    for weights, own in (("W", lambda: loss.proxies.data.T), ("proxies", lambda: loss.proxies.data)):
        if hasattr(theirs, weights):
            getattr(theirs, weights).data = own().clone()
    torch.testing.assert_close(loss(EMBEDDINGS, LABELS), theirs(EMBEDDINGS, LABELS), rtol=1e-5, atol=1e-6)


def test_the_defaults_are_those_of_the_library():
    library = pytest.importorskip("pytorch_metric_learning.losses")
    for name, arguments in ARGUMENTS.items():
        sizes = {key: value for key, value in arguments.items() if key in ("num_classes", "embedding_size")}
        theirs, own = getattr(library, name)(**sizes), getattr(losses, name)(**sizes)
        if sizes:
            own.proxies.data = (theirs.W.T if hasattr(theirs, "W") else theirs.proxies).detach().clone()
        torch.testing.assert_close(own(EMBEDDINGS, LABELS), theirs(EMBEDDINGS, LABELS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "sizes", "argument", "answer"),
    [
        ("SmoothAP", (), "temperature", "SmoothAP has no argument 'temperature'; give tau."),
        ("SupAP", (), "temperature", "give tau."),
        ("PNP", (), "anneal", "give tau."),
        ("FastAP", (), "num_bins", "give bins."),
        ("SoftBinAP", (), "num_bins", "give bins."),
        ("NormSoftmax", (3,), "embedding_size", "give dim."),
        ("ProxyNCApp", (3, 4), "softmax_scale", "give temperature=1 / softmax_scale."),
        ("CrossBatchMemory", (torch.nn.Identity(), 4), "memory_size", "give size."),
    ],
)
def test_an_argument_of_the_library_is_answered_with_our_own(name, sizes, argument, answer):
    with pytest.raises(ConfigError) as refused:
        getattr(losses, name)(*sizes, **{argument: 8})
    assert answer in str(refused.value)


def test_other_unknown_arguments_and_names_stay_python_errors():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        losses.SmoothAP(colour=1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="unexpected keyword argument 'temperature'"):
        losses.Contrastive(temperature=1)  # pyright: ignore[reportCallIssue]  # nothing of it is a temperature
    with pytest.raises(AttributeError, match=r"Triplet compares squared distances .*losses\.wrap\("):
        losses.TripletMarginLoss  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"losses\.wrap\(pytorch_metric_learning\.losses\.CircleLoss"):
        losses.CircleLoss  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"has no attribute 'SupHPA'$"):
        losses.SupHPA  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
