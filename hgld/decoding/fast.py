"""The fast path: simplejpeg, torch's antialiased resize of bytes, and OpenCV for what is left.

libjpeg-turbo decodes at full size as it does for Pillow, and the resize is torchvision's own on the crop alone, so that
both paths give the same bytes. They differ where the crop is at least twice as large as it needs to be: the JPEG is
then decoded at 1/2, 1/4 or 1/8 of its size (only these steps are quicker than the whole).
"""

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from hgld.decoding.colors import change_colors
from hgld.decoding.encoded import EncodedImage
from hgld.decoding.headers import check_size, plain_jpeg_size
from hgld.decoding.orientation import Rectangle, Turn, stored_rectangle, turn_of, turned, upright_size
from hgld.decoding.pillow import decode_with_pillow
from hgld.decoding.views import ViewParameters

_REDUCTIONS = (8, 4, 2)


def decode(image: EncodedImage, parameters: ViewParameters, row: int, out: NDArray[np.uint8]) -> None:
    """One image into its place in the batch.

    Args:
        image: as it lies in the shard.
        parameters: of the batch.
        row: the image's place in the parameters.
        out: (S, S, 3), written.

    Raises:
        InputError: the image cannot be decoded or is not of the size that the parameters were made for.
    """
    turn = turn_of(image.orientation)
    resized = _pair(parameters.resized[row])
    pixels = _resized_crop(image, turn, parameters, row, upright_size(*resized, turn))
    window = (*_pair(parameters.window[row]), parameters.size, parameters.size)
    pixels = turned(_cut(pixels, stored_rectangle(window, *resized, turn)), turn)
    if parameters.colors is not None:
        pixels = change_colors(np.ascontiguousarray(pixels), parameters.colors[row])
    if parameters.flip[row]:
        cv2.flip(pixels, 1, dst=out)
    else:
        out[...] = pixels


def _resized_crop(
    image: EncodedImage, turn: Turn, parameters: ViewParameters, row: int, target: tuple[int, int]
) -> NDArray[np.uint8]:
    """The crop, still turned as stored, at the size ``target``."""
    boxed = _pair(parameters.sizes[row])
    left, top, width, height = (int(value) for value in parameters.crop[row])
    if image.box is not None:
        left, top = left + image.box[0], top + image.box[1]
    header = plain_jpeg_size(image)
    if header is not None:
        check_size(image, header, boxed)
        region = stored_rectangle((left, top, width, height), *upright_size(*header, turn), turn)
        reduction = next((d for d in _REDUCTIONS if region[2] >= d * target[0] and region[3] >= d * target[1]), 1)
        pixels = _decode_jpeg(image.data, header, reduction)
        if pixels is not None:
            return _resize_reduced(pixels, region, reduction, target)
    pixels = decode_with_pillow(image, boxed)
    region = stored_rectangle((left, top, width, height), *upright_size(pixels.shape[1], pixels.shape[0], turn), turn)
    return _resize(_cut(pixels, region), target)


def _decode_jpeg(data: bytes, size: tuple[int, int], reduction: int) -> NDArray[np.uint8] | None:
    """The picture at 1 / ``reduction`` of its size; None where libjpeg-turbo finds fault: Pillow judges how grave."""
    least = [-(-side // reduction) for side in size]
    try:
        return simplejpeg.decode_jpeg(data, min_width=least[0], min_height=least[1], min_factor=reduction)
    except ValueError:
        return None


def _resize_reduced(
    pixels: NDArray[np.uint8], region: Rectangle, reduction: int, target: tuple[int, int]
) -> NDArray[np.uint8]:
    """The region of the full picture, out of the reduced one, its edges where they are between the reduced pixels."""
    left, top, width, height = region
    if not any(side % reduction for side in region):
        return _resize(
            _cut(pixels, (left // reduction, top // reduction, width // reduction, height // reduction)), target
        )
    patch = (width // reduction + 1, height // reduction + 1)
    middle = (left / reduction + (patch[0] - 1) / 2, top / reduction + (patch[1] - 1) / 2)
    shifted = np.asarray(cv2.getRectSubPix(pixels, patch, middle), dtype=np.uint8)
    scale = (target[1] * reduction / height, target[0] * reduction / width)
    resized = interpolate(_tensor(shifted), scale_factor=scale, mode="bilinear", antialias=True)
    return resized[0, :, : target[1], : target[0]].permute(1, 2, 0).numpy()


def _cut(pixels: NDArray[np.uint8], region: Rectangle) -> NDArray[np.uint8]:
    left, top, width, height = region
    return pixels[top : top + height, left : left + width]


def _resize(pixels: NDArray[np.uint8], target: tuple[int, int]) -> NDArray[np.uint8]:
    if (pixels.shape[1], pixels.shape[0]) == target:
        return pixels
    resized = interpolate(_tensor(pixels), (target[1], target[0]), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


def _tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """(1, 3, H, W), its memory channels last, by strides that torch recognises; else the resize takes twice as long."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).unsqueeze(0).permute(0, 3, 1, 2)


def _pair(values: NDArray[np.int64]) -> tuple[int, int]:
    return int(values[0]), int(values[1])
