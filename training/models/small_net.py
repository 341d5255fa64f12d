"""A small convolutional net that trains from scratch on a CPU in a minute."""

from torch import Tensor, nn


class SmallNet(nn.Module):
    """Four stages of two 3 x 3 convolutions with group norm; each stage halves the map but the last.

    The first convolution strides already: at full resolution two thirds of a step's time would go into its stage.

    Group norm, not batch norm: an image's features do not depend on what else is in the batch, so that several
    processes, or chunks, compute the same as one.

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
        """(B, 3, H, W) -> (B, F, about H / 8, about W / 8)."""
        return self.stages(images)


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(8, channels_out),
        nn.ReLU(inplace=True),
    )
