"""Small convolutional nets that train from scratch on a CPU in minutes."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, relu

from hgld.errors import ConfigError

from .backbone import Backbone, BackboneOptions, load_into, read_weights, weights_file


class SmallNet(nn.Module):
    """A net of four stages of two 3 x 3 convolutions with group norm; every stage but the last halves the map.

    The net has group norm with standardised kernels (Qiao et al., "Micro-Batch Training with Batch-Channel
    Normalization and Weight Standardization", 2019) instead of batch norm. An image's features then do not depend on
    the rest of the batch, so several processes, or micro-batches, compute the same as one process. Without standardised
    kernels the average of the last maps is nearly the same vector for all images when training begins (cosines of 0.975
    on Omniglot, 0.24 with them). Losses with proxies could hardly learn from such vectors. The first convolution
    already has a stride: at full resolution its stage would take two thirds of a step's time.

    Args:
        width: channels of the first stage; the later stages have 2, 4 and 6 times as many.

    Attributes:
        num_features: F, channels of the map.
    """

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 6 * width]
        self.num_features = widths[-1]
        layers: list[nn.Module] = []
        before = 3
        for stage, channels in enumerate(widths):
            layers += [_convolution(before, channels, stride=2 if stage < 3 else 1), _convolution(channels, channels)]
            before = channels
        self.stages = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the feature map: (B, 3, H, W) -> (B, F, about H / 8, about W / 8)."""
        return self.stages(images)


class StandardizedConv2d(nn.Module):
    """A convolution without bias whose kernels have mean 0 and norm 1 (weight standardisation, Qiao et al. 2019).

    Attributes:
        weight: (C_out, C_in, K, K) parameter, initialised as PyTorch initialises the weight of a convolution.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel_size // 2
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, kernel_size, kernel_size))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def kernels(self) -> Tensor:
        """Return the standardised kernels, (C_out, C_in, K, K)."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return centred * torch.rsqrt(centred.square().sum((1, 2, 3), keepdim=True) + 1e-8)

    def forward(self, images: Tensor) -> Tensor:
        """Convolve: (B, C_in, H, W) -> (B, C_out, H / stride, W / stride), rounded up."""
        return conv2d(images, self.kernels(), None, self.stride, self.padding)


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        StandardizedConv2d(channels_in, channels_out, 3, stride=stride),
        nn.GroupNorm(8, channels_out),
        nn.ReLU(inplace=True),
    )


class SmallResNet(nn.Module):
    """A residual net (He et al., CVPR 2016): a stem and four basic blocks; all but the first block halve the map.

    Shortcuts average before their 1 x 1 convolution (ResNet-D; He et al., "Bag of Tricks", CVPR 2019). The net's
    numbers of channels are multiples of 32, which suits the bf16 matrix units of CPUs: with ``--amp bf16`` it is as
    fast as :class:`SmallNet` with 2.6 times the parameters. The net has batch norm, because group norm has no fast
    kernel on CPUs. So its features in training depend on the other images of the batch.

    Args:
        width: channels of the first stage; the later stages have 2, 4 and 8 times as many.

    Attributes:
        num_features: F, channels of the map.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.num_features = 8 * width
        stages: list[nn.Module] = [nn.Sequential(*_normed(3, width, stride=2), nn.ReLU(inplace=True))]
        before = width
        for factor in (1, 2, 4, 8):
            stages.append(_BasicBlock(before, factor * width, stride=1 if factor == 1 else 2))
            before = factor * width
        self.stages = nn.Sequential(*stages)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the feature map: (B, 3, H, W) -> (B, F, about H / 16, about W / 16)."""
        return self.stages(images)


class _BasicBlock(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = _normed(channels_in, channels_out, stride=stride)
        self.second = _normed(channels_out, channels_out)
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Identity() if same else _normed(channels_in, channels_out, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        short = avg_pool2d(images, self.stride, ceil_mode=True) if self.stride > 1 else images
        return relu(self.second(relu(self.first(images), inplace=True)) + self.shortcut(short), inplace=True)


def _normed(channels_in: int, channels_out: int, *, kernel_size: int = 3, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size, stride, kernel_size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))


def _backbone(name: str, make: Callable[[], SmallNet | SmallResNet], options: BackboneOptions) -> Backbone:
    """Build a small net as a backbone, from scratch or with the weights of a file.

    Raises:
        ConfigError: a token is requested, or the weights are not a file.
        MissingResourceError: the file does not exist.
        InputError: the file of weights is damaged or belongs to another model.
    """
    if options.token:
        raise ConfigError(f"backbone {name} has no token of its own; use another pooling.")
    net = make()
    path = weights_file(options.pretrained)
    if path is None and options.pretrained not in ("default", "none"):
        raise ConfigError(
            f"pretrained is {options.pretrained!r}; backbone {name} has no pretrained weights; expected a file or none."
        )
    if options.load_weights and path is not None:
        load_into(net, read_weights(path), str(path))
    return Backbone(net, net.num_features)


small_backbone = partial(_backbone, "small", SmallNet)
small_resnet_backbone = partial(_backbone, "small-resnet", SmallResNet)
