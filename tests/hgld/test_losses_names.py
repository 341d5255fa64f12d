"""Names of pytorch-metric-learning for losses give equal values; its argument names give errors with hgld's name."""

import pytest
import torch

from hgld import losses
from hgld.errors import ConfigError
from tests.rows import each_row, refused

# equal numbers, because Smooth-AP of the library confuses the number of classes with the items per class
CLASSES, ITEMS, DIM = 4, 4, 6
LABELS = torch.arange(CLASSES).repeat_interleave(ITEMS)
EMBEDDINGS = torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(0)) + torch.eye(DIM)[LABELS]

SAME = {  # the library's name of a loss: its arguments there, and the loss of hgld
    "SmoothAPLoss": ({"temperature": 0.05}, lambda: losses.SmoothAP(tau=0.05)),
    "FastAPLoss": ({"num_bins": 5}, lambda: losses.FastAP(bins=5, exclude_self=True)),
    "PNPLoss": ({"b": 3, "alpha": 2, "anneal": 0.05}, lambda variant="O": losses.PNP(variant, b=3, alpha=2, tau=0.05)),
    "NormalizedSoftmaxLoss": (
        {"num_classes": CLASSES, "embedding_size": DIM, "temperature": 0.1},
        lambda: losses.NormSoftmax(CLASSES, DIM, temperature=0.1),
    ),
    "ProxyNCALoss": (
        {"num_classes": CLASSES, "embedding_size": DIM, "softmax_scale": 4},
        lambda: losses.ProxyNCApp(CLASSES, DIM, temperature=0.25),
    ),
}
CASES = [(name, {}) for name in SAME] + [("PNPLoss", {"variant": variant}) for variant in ("Ds", "Dq", "Iu", "Ib")]


@each_row(("name", "more"), CASES)
def test_losses_with_pytorch_metric_learning_names_equal_hgld_losses(name, more):
    """This test also runs without pytorch-metric-learning."""
    loss, own = getattr(losses, name)(**SAME[name][0], **more), SAME[name][1](**more)
    own.load_state_dict(loss.state_dict())
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(2))
    found = loss(EMBEDDINGS[order], LABELS[order])
    assert torch.equal(found, own(EMBEDDINGS[order], LABELS[order]))
    assert found > 0


@each_row(("name", "more"), CASES)
def test_pytorch_metric_learning_names_build_equal_losses(name, more):
    theirs = getattr(pytest.importorskip("pytorch_metric_learning.losses"), name)(**SAME[name][0], **more)
    loss = getattr(losses, name)(**SAME[name][0], **more)
    for weights, own in (("W", lambda: loss.proxies.data.T), ("proxies", lambda: loss.proxies.data)):
        if hasattr(theirs, weights):
            getattr(theirs, weights).data = own().clone()
    torch.testing.assert_close(loss(EMBEDDINGS, LABELS), theirs(EMBEDDINGS, LABELS), rtol=1e-5, atol=1e-6)


test_library_argument_raises_an_error_with_the_hgld_argument = refused(
    lambda name, sizes, argument: getattr(losses, name)(*sizes, **{argument: 8}),
    [
        ("SmoothAP", (), "temperature", "SmoothAP has no argument 'temperature'; use tau."),
        ("FastAP", (), "num_bins", "use bins."),
        ("ProxyNCApp", (3, 4), "softmax_scale", "use temperature=1 / softmax_scale."),
        ("CrossBatchMemory", (torch.nn.Identity(), 4), "memory_size", "use size."),
    ],
    ConfigError,
)


def test_unknown_arguments_and_names_raise_python_errors():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        losses.SmoothAP(colour=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'temperature'"):
        losses.Contrastive(temperature=1)  # Contrastive has no temperature in either library
    with pytest.raises(AttributeError, match=r"Triplet compares squared distances .*losses\.wrap\("):
        losses.TripletMarginLoss  # noqa: B018
    with pytest.raises(AttributeError, match=r"losses\.wrap\(pytorch_metric_learning\.losses\.CircleLoss"):
        losses.CircleLoss  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'SupHPA'$"):
        losses.SupHPA  # noqa: B018
