"""The small networks equal slow reference implementations."""

import pytest
import torch
from torch.nn.functional import avg_pool2d, batch_norm, conv2d

from hgld.training.models.small_net import SmallNet, SmallResNet, StandardizedConv2d


@pytest.mark.parametrize("stride", [1, 2])
def test_standardized_kernels_have_mean_0_and_norm_1(stride):
    torch.manual_seed(0)
    convolution = StandardizedConv2d(5, 7, 3, stride=stride).double()
    images = torch.randn(2, 5, 11, 8, dtype=torch.float64)
    expected = torch.empty_like(convolution.weight)
    for channel, kernel in enumerate(convolution.weight.detach()):
        centred = kernel - sum(kernel.flatten().tolist()) / kernel.numel()
        expected[channel] = centred / sum(value**2 for value in centred.flatten().tolist()) ** 0.5
    torch.testing.assert_close(convolution.kernels(), expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(
        convolution(images), conv2d(images, expected, stride=stride, padding=1), rtol=1e-7, atol=1e-8
    )


def test_small_net_features_do_not_depend_on_the_batch():
    net = SmallNet(8)
    images = torch.randn(5, 3, 33, 17)
    whole = net(images)
    assert whole.shape == (5, net.num_features, 5, 3)
    torch.testing.assert_close(net(images[3:4]), whole[3:4], rtol=1e-4, atol=1e-5)


def test_small_resnet_equals_functional_reference():
    torch.manual_seed(0)
    net = SmallResNet(4).double().train()
    images = torch.randn(6, 3, 37, 45, dtype=torch.float64)
    expected, weights = images, iter(net.state_dict().items())

    def normed(maps, stride):
        kernel, scale, shift = (next(weights)[1] for _ in range(3))
        for _ in range(3):
            next(weights)  # statistics, which training does not read
        maps = conv2d(maps, kernel, None, stride, padding=kernel.shape[-1] // 2)
        return batch_norm(maps, None, None, scale, shift, training=True)

    expected = normed(expected, 2).relu()
    for stage in range(4):
        stride = 2 if stage else 1
        branch = normed(normed(expected, stride).relu(), 1)
        short = normed(avg_pool2d(expected, 2, ceil_mode=True), 1) if stage else expected
        expected = (branch + short).relu()
    assert expected.shape == (6, 32, 3, 3)
    torch.testing.assert_close(net(images), expected)
