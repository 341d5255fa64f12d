"""Views: crop, resize and augmentation of images, with parameters that are drawn before an image is opened.

A view computes the parameters of all images of a batch at once, from their sizes and positions in the epoch. Both
decoding paths (:mod:`hgld.data.decode`) then apply them. Parameters are in coordinates of the upright image after
cropping to its box.
"""

from dataclasses import dataclass, replace
from itertools import permutations
from statistics import NormalDist
from typing import Literal, Protocol, get_args

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hgld.data.format import MOST_PIXELS
from hgld.data.images import Floats, Integers, Pixels
from hgld.errors import ConfigError

# -- random numbers by position ---------------------------------------------------------------------------------------
#
# Philox 4x32-10 encrypts a counter instead of advancing a state. So the numbers of one position in one epoch depend on
# no earlier draw: a resumed run, or a run with a different number of threads or processes, draws the same numbers.
# NumPy's own Philox gives one stream from one counter; here every item of a batch has a counter.
#
# Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Encrypt counters with Philox 4x32-10.

    Args:
        counter: (4, ...) counters of four 32-bit integers each.
        key: two 32-bit integers.

    Returns:
        (4, ...) random 32-bit integers.
    """
    first, second, third, fourth = counter
    for turn in range(_ROUNDS):
        left, right = (np.uint64((word + turn * step) & 0xFFFFFFFF) for word, step in zip(key, _KEY_STEPS, strict=True))
        one, two = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, third = (two >> _WORD) ^ second ^ left, (one >> _WORD) ^ fourth ^ right
        second, fourth = two & _LOW, one & _LOW
    return np.stack([first, second, third, fourth])


def uniforms(seed: int, epoch: int, positions: Integers, count: int) -> Floats:
    """Draw numbers in (0, 1), a pure function of seed, epoch and position.

    Args:
        seed: seed of the run, at least 0, below 2**64.
        epoch: epoch, at least 0, below 2**32.
        positions: (N,) distinct integers for the items of an epoch.
        count: number of random numbers per item; a multiple of 4. A larger count does not change the first numbers.

    Returns:
        (N, count) random numbers.

    Raises:
        ConfigError: seed or epoch is out of bounds.
    """
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed is {seed}; expected 0 <= seed < 2**64.")
    if not 0 <= epoch < 1 << 32:
        raise ConfigError(f"epoch is {epoch}; expected 0 <= epoch < 2**32.")
    blocks = count // 4
    places = positions.astype(np.int64).view(np.uint64)[:, None]
    counter = np.empty((4, len(positions), blocks), dtype=np.uint64)
    counter[0], counter[1] = places & _LOW, places >> _WORD
    counter[2], counter[3] = epoch, np.arange(blocks, dtype=np.uint64)
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return (np.moveaxis(words, 0, -1).reshape(len(positions), 4 * blocks).astype(np.float64) + 0.5) / 2.0**32


# -- colours ----------------------------------------------------------------------------------------------------------
#
# hgld applies colour jitter and lighting noise as one affine map of RGB per image. Brightness, contrast and saturation
# are linear in the pixels and in the image's average colour; lighting adds a colour. So all four together are a 3 x 3
# matrix and an offset that is linear in the average colour. They need one pass over the pixels and round once.
# torchvision rounds and clips after each operation; if nothing is clipped, both results agree up to rounding.
#
# Sources: torchvision's ColorJitter; Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional
# neural networks", NeurIPS 2012, for the lighting; Berman et al., "MultiGrain", 2019, for the use of both.

_GREY = np.array([0.2989, 0.587, 0.114])  # torchvision's weights of red, green and blue
_ORDERS = np.array(list(permutations(range(3))))  # all orders of the three changes brightness, contrast and saturation
# Eigendecomposition of ImageNet's RGB covariance (values in [0, 1]), published with reimplementations of AlexNet.
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


def color_matrices(numbers: Floats, jitter: float, lighting: float) -> Floats:
    """Draw one linear map of colours for each of N images: colour jitter and lighting noise.

    Args:
        numbers: (N, 7) random numbers, uniform in (0, 1).
        jitter: strength s of the colour jitter: brightness, contrast and saturation change by factors in [1 - s, 1 +
            s].
        lighting: standard deviation of the lighting noise along the principal components.

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
        # contrast mixes with the grey of the mean colour after the previous steps
        contrast = (1 - factor) * grey @ (pixel + mean)
        change = np.where(kind == 2, towards_grey, factor * np.eye(3))
        mean = change @ mean + np.where(kind == 1, contrast, 0.0)
        pixel = change @ pixel
    normal = np.vectorize(NormalDist().inv_cdf)(numbers[:, 4:7]) if lighting else np.zeros((len(numbers), 3))
    light = 255 * (lighting * normal * _EIGENVALUES) @ _EIGENVECTORS.T
    return np.concatenate([pixel, mean, light[:, :, None]], axis=2)


def change_colors(pixels: Pixels, matrix: Floats) -> Pixels:
    """Apply an affine transform of RGB values to an image; round and clip the result.

    Args:
        pixels: (H, W, 3) RGB.
        matrix: (3, 7), one transform from :func:`color_matrices`.

    Returns:
        a new (H, W, 3) array.
    """
    mean = np.array(cv2.mean(pixels)[:3])
    offset = matrix[:, 3:6] @ mean + matrix[:, 6]
    return np.asarray(cv2.transform(pixels, np.column_stack([matrix[:, :3], offset])), dtype=np.uint8)


# -- erasing ----------------------------------------------------------------------------------------------------------
#
# Source: Zhong, Zheng, Kang, Li and Yang, "Random Erasing Data Augmentation", AAAI 2020, with the mean colour of
# ImageNet (RE-M in that paper). Area shares and ratios are as in torchvision's RandomErasing.

_ERASED_AREA, _ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)
_ERASED_COLOR = np.array([124, 116, 104], dtype=np.uint8)  # ImageNet's mean colour: normalisation makes it about 0


def random_rectangles(numbers: Floats, share: float, size: int) -> Integers:
    """Draw rectangles in a square, clipped at its sides.

    Args:
        numbers: (N, 5) random numbers, uniform in (0, 1).
        share: share of the squares that get a rectangle.
        size: side of the square, pixels.

    Returns:
        (N, 4) left, top, width, height; the width of a square without a rectangle is 0.
    """
    least, most = _ERASED_AREA
    area = least + (most - least) * numbers[:, 1]
    low, high = np.log(_ERASED_RATIO)
    ratio = np.exp(low + (high - low) * numbers[:, 2])
    sides = np.round(size * np.sqrt(np.stack([area * ratio, area / ratio], axis=1))).clip(1, size)
    places = np.floor(numbers[:, 3:5] * (size - sides + 1))
    rectangles = np.concatenate([places, sides], axis=1).astype(np.int64)
    rectangles[numbers[:, 0] >= share, 2] = 0
    return rectangles


def erase(pixels: Pixels, rectangle: Integers) -> Pixels:
    """Paint a rectangle (left, top, width, height) on a copy of an (H, W, 3) image, unless its width is 0."""
    left, top, width, height = (int(value) for value in rectangle)
    if width:
        pixels = pixels.copy()
        pixels[top : top + height, left : left + width] = _ERASED_COLOR
    return pixels


# -- policies ---------------------------------------------------------------------------------------------------------
#
# Source: Cubuk, Zoph, Mané, Vasudevan and Le, "AutoAugment: learning augmentation strategies from data", CVPR 2019;
# Berman et al., "MultiGrain", 2019, uses them instead of colour jitter and lighting.


def apply_policy(pixels: Pixels, numbers: Floats) -> Pixels:
    """Apply one of torchvision's 25 policies of AutoAugment for ImageNet to an image.

    Args:
        pixels: (H, W, 3) RGB.
        numbers: (5,) random numbers, uniform in (0, 1). They choose the policy, its steps to apply, and their signs.

    Returns:
        a new (H, W, 3) array.
    """
    import torch
    from PIL import Image
    from torchvision.transforms import AutoAugment  # imported here, because the import takes a second

    def drawn(count: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return int(numbers[0] * count), torch.from_numpy(numbers[1:3]), torch.from_numpy(numbers[3:5] < 0.5).long()

    policy = AutoAugment()
    vars(policy)["get_params"] = drawn  # use these numbers, because all decoding threads share torch's one generator
    return np.array(policy(Image.fromarray(np.ascontiguousarray(pixels))))


# -- crops ------------------------------------------------------------------------------------------------------------

ResizeMode = Literal["crop", "squash", "longest", "original"]
Interpolation = Literal["bilinear", "bicubic"]

_TRIES = 10  # attempts to draw a crop, as in torchvision's RandomResizedCrop, which then takes a central crop
_LONGEST_SIDE = 1 << 14  # maximum side: an image with such sides takes 0.8 GB, more than any network needs
_WIDEST = 4  # maximum ratio of an image's sides; test views cut longer strips, so that the resized image stays small


@dataclass(frozen=True)
class ViewParameters:
    """Parameters of a view of N images.

    The steps, in order: cut out ``crop``, resize it, cut out ``window``, apply a policy, change the colours, erase,
    mirror.

    Attributes:
        shape: height H and width W of every resulting image, in pixels.
        sizes: (N, 2) int64 width and height of the images.
        crop: (N, 4) int64 left, top, width, height.
        resized: (N, 2) int64 width and height that the crop is resized to.
        window: (N, 2) int64 left and top of the H x W pixels to cut out of the resized crop.
        flip: (N,) bool, True to mirror left to right.
        policies: (N, 5) float64 in (0, 1), the random numbers of :func:`apply_policy`; None: no policy.
        colors: (N, 3, 7) float64 from :func:`hgld.data.views.color_matrices`; None: unchanged colours.
        erased: (N, 4) int64 left, top, width, height of the rectangle to paint over; the width is 0 if an image has no
            rectangle. None: no rectangles.
        interpolation: interpolation of the resize.
    """

    shape: tuple[int, int]
    sizes: Integers
    crop: Integers
    resized: Integers
    window: Integers
    flip: NDArray[np.bool_]
    policies: Floats | None = None
    colors: Floats | None = None
    erased: Integers | None = None
    interpolation: Interpolation = "bilinear"

    def __len__(self) -> int:
        return len(self.sizes)


def vary(pixels: Pixels, parameters: ViewParameters, row: int) -> Pixels:
    """Apply the policy, colour transform and erasing in an image's parameters to its pixels.

    Args:
        pixels: (H, W, 3) RGB.
        parameters: view parameters of the batch.
        row: index of the image in the parameters.

    Returns:
        (H, W, 3).
    """
    if parameters.policies is not None:
        pixels = apply_policy(pixels, parameters.policies[row])
    if parameters.colors is not None:
        pixels = change_colors(np.ascontiguousarray(pixels), parameters.colors[row])
    if parameters.erased is not None:
        pixels = erase(pixels, parameters.erased[row])
    return pixels


class View(Protocol):
    """Protocol for choosing parameters from image sizes: :class:`TrainView`, :class:`TestView` or your own."""

    def shape(self, widths: ArrayLike, heights: ArrayLike) -> tuple[int, int]:
        """Return height and width of the views of a batch; a view of whole images fails if their shapes differ."""
        ...

    def parameters(
        self, widths: ArrayLike, heights: ArrayLike, *, seed: int, epoch: int, positions: ArrayLike
    ) -> ViewParameters: ...


@dataclass(frozen=True)
class TrainView:
    """View for training: a random crop, resized to a square and mirrored at random, with optional augmentation.

    Attributes:
        size: side of the square, pixels.
        resize: 0: crop a random rectangle and resize it to the square. A number: resize the whole image to a square of
            this side, whatever its shape, and cut out the square of ``size`` at a random position (Smooth-AP, PNP);
            ``scale`` and ``ratio`` are then not used.
        scale: smallest and largest share of the image's area that the crop covers.
        ratio: smallest and largest width / height of the crop.
        flip: probability of mirroring.
        jitter: strength s of the colour jitter: brightness, contrast and saturation change by factors in [1 - s, 1 +
            s], in random order (torchvision's ColorJitter). MultiGrain uses 0.3.
        lighting: standard deviation of AlexNet's lighting noise along the principal components of ImageNet's colours.
            MultiGrain uses 0.1.
        autoaugment: whether a policy of AutoAugment for ImageNet changes the square
            (:func:`apply_policy`), before the jitter.
        erasing: probability that ImageNet's mean colour replaces a rectangle of 2 to 33% of the square.
    """

    size: int = 224
    resize: int = 0
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.0
    lighting: float = 0.0
    autoaugment: bool = False
    erasing: float = 0.0

    def __post_init__(self) -> None:
        scale, ratio = 0 < self.scale[0] <= self.scale[1] <= 1, 0 < self.ratio[0] <= self.ratio[1] < np.inf
        _check(
            self,
            size=(1 <= self.size <= _LONGEST_SIDE, f"1 to {_LONGEST_SIDE} pixels"),
            resize=(
                self.resize == 0 or self.size <= self.resize <= _LONGEST_SIDE,
                f"0 or at least {self.size}, the size",
            ),
            scale=(scale, "a smallest and a largest share of the area, above 0 and up to 1"),
            ratio=(ratio, "a smallest and a largest width / height, above 0"),
            flip=(0 <= self.flip <= 1, "a probability"),
            jitter=(0 <= self.jitter <= 1, "0 to 1"),
            lighting=(0 <= self.lighting < np.inf, "a deviation, 0 or more"),
            erasing=(0 <= self.erasing <= 1, "a probability"),
        )

    def shape(self, widths: ArrayLike, heights: ArrayLike) -> tuple[int, int]:
        """Return (size, size)."""
        return self.size, self.size

    def parameters(
        self, widths: ArrayLike, heights: ArrayLike, *, seed: int, epoch: int, positions: ArrayLike
    ) -> ViewParameters:
        """Draw crops, as a pure function of (seed, epoch, position).

        Without ``resize`` the crops are like torchvision's RandomResizedCrop, with ``resize`` like torchvision's
        RandomCrop.

        Args:
            widths: (N,) widths of the upright images, or of their boxes if they have one, in pixels.
            heights: (N,) heights of the same images.
            seed: seed of the run.
            epoch: number of the epoch, from 0.
            positions: (N,) distinct integers for the items of an epoch, so that two views of one image differ;
                :func:`places` returns the positions of a batch.

        Raises:
            ConfigError: a size is below one pixel, or the arrays have different lengths.
        """
        sizes, places = _checked(widths, heights, positions)
        is_colored = self.jitter > 0 or self.lighting > 0
        count = 44 if self.erasing else 36 if self.autoaugment else 32 if is_colored else 24
        numbers = uniforms(seed, epoch, places, count)
        side = self.resize or self.size
        whole = np.hstack([np.zeros_like(sizes), sizes])
        return ViewParameters(
            shape=(self.size, self.size),
            sizes=sizes,
            crop=whole if self.resize else _random_crops(sizes, numbers[:, :22], self.scale, self.ratio),
            resized=np.full_like(sizes, side),
            window=np.floor(numbers[:, :2] * (side - self.size + 1)).astype(np.int64),
            flip=numbers[:, 22] < self.flip,
            policies=numbers[:, 31:36] if self.autoaugment else None,
            colors=color_matrices(numbers[:, 23:30], self.jitter, self.lighting) if is_colored else None,
            erased=random_rectangles(numbers[:, 36:41], self.erasing, self.size) if self.erasing else None,
        )


MOST_VIEWED = 1 << 22  # default maximum pixels of a whole image at its own size: 2,048 x 2,048


@dataclass(frozen=True)
class TestView:
    """View for tests: a central square, or the whole image.

    A view of whole images keeps their shapes, so all images of a batch must have one shape (see :meth:`shapes`).

    Attributes:
        size: side of the square in pixels; with ``longest``, the length of the longest side. ``original`` ignores it.
        resize: length of the short side in pixels before the square is cut out; at least ``size``. Only ``crop`` uses
            it.
        resize_mode: ``crop``: resize the short side to ``resize``, and cut out the central square. ``squash``: resize
            the whole image to a square, whatever its shape. ``longest``: resize the whole image so that its longest
            side is ``size`` (MultiGrain, section 4.3; smaller images are enlarged). ``original``: keep the whole image
            at its own size (listwise AP, section 4.1).
        scale: factor by which ``original`` resizes the image; the other modes ignore it.
        max_pixels: maximum number of pixels with ``original``, at scale 1; larger images are reduced.
        interpolation: interpolation of the resize, which is always antialiased.
    """

    size: int = 224
    resize: int = 256
    resize_mode: ResizeMode = "crop"
    scale: float = 1.0
    max_pixels: int = MOST_VIEWED
    interpolation: Interpolation = "bilinear"

    __test__ = False  # pytest must not collect this class as a test

    def __post_init__(self) -> None:
        fits = self.resize_mode != "crop" or self.size <= self.resize <= _LONGEST_SIDE
        largest = self.max_pixels * self.scale**2 if self.scale > 0 else np.inf
        _check(
            self,
            size=(1 <= self.size <= _LONGEST_SIDE, f"1 to {_LONGEST_SIDE} pixels"),
            resize=(fits, f"{self.size} (the size) to {_LONGEST_SIDE} pixels"),
            resize_mode=(self.resize_mode in get_args(ResizeMode), f"one of {', '.join(get_args(ResizeMode))}"),
            max_pixels=(1 <= self.max_pixels <= MOST_PIXELS, f"1 to {MOST_PIXELS}"),
            scale=(largest <= MOST_PIXELS, f"more than 0, and images of at most {MOST_PIXELS} pixels"),
        )

    @property
    def is_square(self) -> bool:
        """True if the view of every image is a square of ``size``."""
        return self.resize_mode in ("crop", "squash")

    def changed(
        self,
        size: int | None = None,
        resize: int | None = None,
        resize_mode: ResizeMode | None = None,
        max_pixels: int | None = None,
    ) -> "TestView":
        """Return the view with another size or resize mode.

        An argument of None leaves its field unchanged, but if ``size`` changes, ``resize`` changes in proportion.

        Raises:
            ConfigError: ``resize`` is below the size, or images would have too many pixels.
        """
        side = size or self.size
        short = resize or max(side, round(side * max(self.resize, self.size) / self.size))
        resize_mode, max_pixels = resize_mode or self.resize_mode, max_pixels or self.max_pixels
        return replace(self, size=side, resize=short, resize_mode=resize_mode, max_pixels=max_pixels)

    def scaled(self, scale: float) -> "TestView":
        """Return the view that makes images ``scale`` times as large.

        Raises:
            ConfigError: images would be too large.
        """
        if self.resize_mode == "original":
            return replace(self, scale=self.scale * scale)
        size = max(1, round(self.size * scale))
        return replace(self, size=size, resize=max(size, round(self.resize * scale)))

    def shapes(self, widths: ArrayLike, heights: ArrayLike) -> Integers:
        """Return (N, 2) height and width of the view of each image.

        Args:
            widths: (N,) widths of the upright images, or of their boxes if they have one, in pixels.
            heights: (N,) heights of the same images.
        """
        sizes = np.stack([np.asarray(heights, dtype=np.int64), np.asarray(widths, dtype=np.int64)], axis=1)
        if self.is_square:
            return np.full_like(sizes, self.size)
        if self.resize_mode == "longest":
            longest = sizes.max(axis=1, keepdims=True, initial=1)
            return np.maximum(self.size * sizes // longest, 1)
        area = sizes.prod(axis=1, keepdims=True).astype(np.float64)
        factor = self.scale * np.minimum(1.0, np.sqrt(self.max_pixels / np.maximum(area, 1)))
        # 1e-6: a product may be rounded to just below a whole number
        return np.maximum(np.floor(factor * sizes + 1e-6), 1).astype(np.int64)

    def shape(self, widths: ArrayLike, heights: ArrayLike) -> tuple[int, int]:
        """Return height and width of the views of a batch of images.

        Raises:
            ConfigError: the views have several shapes.
        """
        if self.is_square:
            return self.size, self.size
        found = np.unique(self.shapes(widths, heights), axis=0)
        if len(found) != 1:
            raise ConfigError(
                f"whole images of {len(found)} shapes in a batch (resize mode {self.resize_mode}); expected one shape. "
                "Batch images by TestView.shapes, or use the resize mode crop or squash."
            )
        return int(found[0, 0]), int(found[0, 1])

    def count_reduced(self, widths: ArrayLike, heights: ArrayLike) -> int:
        """Count the images that exceed ``max_pixels``; 0 if the resize mode has no such limit."""
        area = np.asarray(widths, dtype=np.int64) * np.asarray(heights, dtype=np.int64)
        return int((area > self.max_pixels).sum()) if self.resize_mode == "original" else 0

    def parameters(
        self,
        widths: ArrayLike,
        heights: ArrayLike,
        *,
        seed: int = 0,
        epoch: int = 0,
        positions: ArrayLike | None = None,
    ) -> ViewParameters:
        """Return parameters that depend only on the sizes; these are rounded as in torchvision's CenterCrop.

        With ``crop``, an image with a long side of more than four short sides is first cropped to its middle.

        Args:
            widths: (N,) widths of the upright images, or of their boxes if they have one, in pixels.
            heights: (N,) heights of the same images.
            seed: ignored; every :class:`View` accepts it.
            epoch: ignored.
            positions: ignored.

        Raises:
            ConfigError: a size is below one pixel, the arrays have different lengths, or views of whole images have
                different shapes.
        """
        sizes, _ = _checked(widths, heights, np.zeros_like(np.asarray(widths)) if positions is None else positions)
        height, width = self.shape(*sizes.T)
        if self.resize_mode == "crop":
            short = sizes.min(axis=1, keepdims=True)
            kept = np.minimum(sizes, _WIDEST * short)
            kept += (sizes - kept) % 2 * (kept < sizes)  # remove the same number of pixels at both ends
            resized = np.where(kept == short, self.resize, self.resize * kept // short)
        else:
            kept, resized = sizes, np.broadcast_to(np.array([width, height]), sizes.shape)
        window = np.rint((resized - (width, height)) / 2).astype(np.int64)
        crop, flip = np.hstack([(sizes - kept) // 2, kept]), np.zeros(len(sizes), dtype=np.bool_)
        return ViewParameters((height, width), sizes, crop, resized, window, flip, interpolation=self.interpolation)


def places(step: int, count: int, first: int = 0) -> Integers:
    """Return positions for a part of a batch, each computed from the step in the epoch and the slot in the whole batch.

    Args:
        step: number of the batch in its epoch, from 0.
        count: number of items of the part.
        first: slot of the part's first item in the whole batch, from 0.

    Returns:
        (count,) positions.
    """
    return (np.int64(step) << 32) + first + np.arange(count, dtype=np.int64)


def _check(view: object, **fields: tuple[bool, str]) -> None:
    """Raise an error if a field of a view is invalid; ``fields``: whether each is valid, and the expected value."""
    for name, (is_fine, expected) in fields.items():
        if not is_fine:
            raise ConfigError(f"{name} of a view is {getattr(view, name)}; expected {expected}.")


def _checked(widths: ArrayLike, heights: ArrayLike, positions: ArrayLike) -> tuple[Integers, Integers]:
    columns = [np.asarray(values, dtype=np.int64) for values in (widths, heights, positions)]
    if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
        raise ConfigError(
            f"widths, heights and positions have the shapes {[c.shape for c in columns]}; expected (N,) for all three."
        )
    sizes = np.stack(columns[:2], axis=1)
    empty = np.flatnonzero((sizes[:, 0] < 1) | (sizes[:, 1] < 1))
    if empty.size:
        raise ConfigError(f"image {empty[0]} of {sizes[empty[0]].tolist()} pixels: expected at least 1 x 1.")
    return sizes, columns[2]


def _random_crops(sizes: Integers, numbers: Floats, scale: tuple[float, float], ratio: tuple[float, float]) -> Integers:
    """Return (N, 4) rectangles: the first of ten random rectangles that fits, else the largest central one."""
    share = scale[0] + numbers[:, :_TRIES] * (scale[1] - scale[0])
    low, high = np.log(ratio)
    shape = np.exp(low + numbers[:, _TRIES : 2 * _TRIES] * (high - low))
    area = sizes.prod(axis=1, keepdims=True) * share
    tried = np.rint(np.stack([np.sqrt(area * shape), np.sqrt(area / shape)], axis=-1)).astype(np.int64)
    fits: NDArray[np.bool_] = np.all((tried > 0) & (tried <= sizes[:, None]), axis=-1)
    fitting = np.any(fits, axis=1)[:, None]
    width, height = sizes.T
    central_width = np.where(width / height > ratio[1], np.rint(height * ratio[1]), width)
    central_height = np.where(width / height < ratio[0], np.rint(width / ratio[0]), height)
    central = np.maximum(np.stack([central_width, central_height], axis=1).astype(np.int64), 1)
    size = np.where(fitting, tried[np.arange(len(sizes)), fits.argmax(axis=1)], central)
    anywhere = np.floor(numbers[:, 2 * _TRIES :] * (sizes - size + 1)).astype(np.int64)
    corner = np.where(fitting, np.minimum(anywhere, sizes - size), (sizes - size) // 2)
    return np.hstack([corner, size])
