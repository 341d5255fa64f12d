"""Colour jitter and lighting noise as one affine map of RGB an image.

Brightness, contrast and saturation are linear in the pixels and in the image's mean, and lighting adds a colour, so
that all four together are a 3 x 3 matrix and an offset that is itself linear in the mean colour: one pass over the
pixels, rounded once. Step by step, as in torchvision, each operation rounds and clips; where nothing is clipped both
agree to the rounding.

Sources: torchvision's ColorJitter; Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional
neural networks", NeurIPS 2012, for the lighting; Berman et al., "MultiGrain", 2019, for the use of both.
"""

from itertools import permutations
from statistics import NormalDist

import cv2
import numpy as np
from numpy.typing import NDArray

_GREY = np.array([0.2989, 0.587, 0.114])  # torchvision's weights
_ORDERS = np.array(list(permutations(range(3))))  # of brightness, contrast, saturation
# Of the covariance of ImageNet's RGB values in [0, 1], as published with reimplementations of AlexNet.
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


def color_matrices(numbers: NDArray[np.float64], jitter: float, lighting: float) -> NDArray[np.float64]:
    """Maps of colours for N images.

    Args:
        numbers: (N, 7) uniform in (0, 1).
        jitter: s; brightness, contrast and saturation change by factors in [1 - s, 1 + s].
        lighting: standard deviation of the noise along the principal components.

    Returns:
        (N, 3, 7): with x a pixel and m the mean pixel, both RGB in 0..255, the new pixel is
        ``map[:, :3] @ x + map[:, 3:6] @ m + map[:, 6]``.
    """
    factors = 1 + jitter * (2 * numbers[:, :3] - 1)
    order = _ORDERS[(numbers[:, 3] * len(_ORDERS)).astype(np.int64)]
    pixel, mean = np.tile(np.eye(3), (len(numbers), 1, 1)), np.zeros((len(numbers), 3, 3))
    grey = np.outer(np.ones(3), _GREY)
    for turn in range(3):
        kind = order[:, turn, None, None]
        factor = np.take_along_axis(factors, order[:, turn, None], axis=1)[:, :, None]
        towards_grey = factor * np.eye(3) + (1 - factor) * grey
        contrast = (1 - factor) * grey @ (pixel + mean)  # the mean of what the steps so far made
        change = np.where(kind == 2, towards_grey, factor * np.eye(3))
        mean = change @ mean + np.where(kind == 1, contrast, 0.0)
        pixel = change @ pixel
    normal = np.vectorize(NormalDist().inv_cdf)(numbers[:, 4:7]) if lighting else np.zeros((len(numbers), 3))
    light = 255 * (lighting * normal * _EIGENVALUES) @ _EIGENVECTORS.T
    return np.concatenate([pixel, mean, light[:, :, None]], axis=2)


def change_colors(pixels: NDArray[np.uint8], matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    """A picture with its colours mapped, rounded and clipped.

    Args:
        pixels: (H, W, 3) RGB.
        matrix: (3, 7), of :func:`color_matrices`.

    Returns:
        (H, W, 3), new memory.
    """
    mean = np.array(cv2.mean(pixels)[:3])
    offset = matrix[:, 3:6] @ mean + matrix[:, 6]
    return np.asarray(cv2.transform(pixels, np.column_stack([matrix[:, :3], offset])), dtype=np.uint8)
