"""Micro-batches give the gradient of the loss of the whole batch with bounded memory."""

import numpy as np
import torch
from torch import nn

from hgld import losses
from hgld.distributed import ALONE
from hgld.training.step import Backward, StepInput
from tests.training.two_processes import Criterion


def model(dropout=0.0):
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.Dropout(dropout), nn.Tanh(), nn.Linear(32, 8))


def batch(size, seed=1):
    generator = torch.Generator().manual_seed(seed)
    fine = torch.arange(size) // 4
    labels = torch.stack([fine, fine // 3], dim=1)
    images = torch.randint(0, 256, (size, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return StepInput(images, labels, torch.arange(size), seed=seed)


def backward(net, criterion, chunk, data):
    Backward(net, criterion, ALONE, lambda images: images.float() / 255, micro_batch_size=chunk)(data)


def test_micro_batch_gradient_matches_finite_difference_under_dropout():
    """The gradient over micro-batches equals a central difference of the loss with the same dropout masks."""
    net = model(dropout=0.4).double()
    criterion = Criterion(losses.NormSoftmax(8, 8).double())
    data = batch(29)

    def loss():
        step = Backward(net, criterion, ALONE, lambda images: images.double() / 255, micro_batch_size=7)
        return step(data).loss

    loss()
    weight = net.get_parameter("1.weight")
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)).double()
    assert weight.grad is not None
    slope = float((weight.grad * direction).sum())
    size = 1e-4
    weight.data += size * direction
    above = float(loss())
    weight.data -= 2 * size * direction
    below = float(loss())
    np.testing.assert_allclose((above - below) / (2 * size), slope, rtol=1e-4)


def test_micro_batch_size_bounds_the_activation_memory():
    """A forward pass never keeps more bytes for the backward pass than one micro-batch needs."""
    kept = []

    def pack(tensor):
        kept[-1] += tensor.numel() if tensor.shape[:1] != (48,) else 0
        return tensor

    class Counted(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, images):
            kept.append(0)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return self.inner(images)

    most = {}
    for size in (16, 64):
        kept.clear()
        backward(Counted(model()), Criterion(losses.SupAP()), 8, batch(size))
        assert len(kept) == 2 * size // 8
        most[size] = max(kept)
    assert most[16] == most[64] > 0
