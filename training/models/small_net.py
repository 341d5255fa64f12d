"""A small convolutional net that trains from scratch on a CPU in a minute."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from hgld.errors import ConfigError
from hgld.training.models.backbone import Backbone, BackboneOptions, recompute_stages
from hgld.training.models.weights import load_into, read_weights, weights_file


class SmallNet(nn.Module):
    """A net of four stages of two 3 x 3 convolutions with group norm; every stage but the last halves the map.

    Group norm with standardised kernels (Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and
    Weight Standardization", 2019), not batch norm: an image's features do not depend on what else is in the batch, so
    that several processes, or chunks, compute the same as one. Without standardised kernels the average of the last
    maps is nearly the same vector for all images when training begins (cosines of 0.975 on Omniglot, 0.24 with them),
    which leaves losses with proxies almost nothing to learn from. The first convolution strides already: at full
    resolution two thirds of a step's time would go into its stage.

    Args:
        width: channels of the first stage; the later ones have 2, 4 and 6 times as many.

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
        weight: (C_out, C_in, K, K) parameter, initialised as PyTorch initialises a convolution's.
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


def small_backbone(options: BackboneOptions) -> Backbone:
    """Build the small net as a backbone, from scratch or with the weights of a file.

    Raises:
        ConfigError: a token is asked for, or weights that are not a file.
        MissingResourceError: no such file.
        InputError: a file of weights that is damaged or of another model.
    """
    if options.token:
        raise ConfigError("backbone small has no token of its own; take pooling avg, gem or max.")
    net = SmallNet()
    path = weights_file(options.pretrained)
    if path is None and options.pretrained not in ("default", "none"):
        raise ConfigError(f"pretrained is {options.pretrained!r}; backbone small has no weights but a file's, or none.")
    if options.load_weights and path is not None:
        load_into(net, read_weights(path), str(path))
    if options.gradient_checkpointing:
        recompute_stages(net.stages.children())
    return Backbone(net, net.num_features)
