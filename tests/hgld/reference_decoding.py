"""A slow reference implementation of decoding: Pillow and torchvision.transforms.v2, step by step.

Pillow decodes the images, as in the published results. The decoders of torchvision are deprecated since 0.29.
"""

from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode, functional

import hgld.data.decode
from hgld.data.decode import decode_whole
from hgld.data.images import EncodedImage
from hgld.data.views import ViewParameters, vary


def decode(image: EncodedImage, parameters: ViewParameters, row: int, out: NDArray[np.uint8]) -> None:
    """Decode one image into its row of the batch; arguments and errors as in :func:`hgld.data.decode.decode`."""
    boxed = (int(parameters.sizes[row, 0]), int(parameters.sizes[row, 1]))
    picture = Image.fromarray(decode_whole(image, boxed))
    picture.getexif()[0x0112] = image.orientation
    picture = ImageOps.exif_transpose(picture)
    pixels = functional.pil_to_tensor(picture if image.box is None else picture.crop(image.box))
    left, top, width, height = (int(value) for value in parameters.crop[row])
    across, down = (int(value) for value in parameters.resized[row])
    mode = InterpolationMode(parameters.interpolation)
    pixels = functional.resized_crop(pixels, top, left, height, width, [down, across], mode, antialias=True)
    left, top = (int(value) for value in parameters.window[row])
    pixels = functional.crop(pixels, top, left, *parameters.shape)
    pixels = torch.from_numpy(vary(pixels.permute(1, 2, 0).numpy(), parameters, row)).permute(2, 0, 1)
    if parameters.flip[row]:
        pixels = functional.horizontal_flip(pixels)
    out[...] = pixels.permute(1, 2, 0).numpy()


def decode_by(path: str, images: list[EncodedImage], parameters: ViewParameters, out: Tensor) -> None:
    """Decode a batch with hgld (path ``fast``) or with the reference implementation."""
    used = decode if path == "reference" else hgld.data.decode.decode
    with mock.patch("hgld.data.decode.decode", used):
        hgld.data.decode.decode_batch(images, parameters, out)
