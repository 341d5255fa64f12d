"""Checks of encoded images: damage, decompression bombs and arbitrary bytes."""

import contextlib
import io

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hgld.data.images import read_header
from hgld.errors import ImageError
from hgld.pipelines.shards.reading import check_decodes, decodes_strictly
from tests.pipelines.tiny_shards import picture


def _grainy(**options) -> bytes:
    """Return a JPEG of smooth patches with noise, similar to a photograph."""
    rng = np.random.default_rng(0)
    patches = cv2.resize(rng.integers(0, 256, (6, 8, 3)).astype(np.float32), (160, 120), interpolation=cv2.INTER_CUBIC)
    pixels = (patches + rng.normal(0, 9, patches.shape)).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(options.pop("mode", "RGB")).save(out, "JPEG", **options)
    return out.getvalue()


def _damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the data with a flipped bit, a changed byte, a missing part, or a truncated end."""
    at = int(rng.integers(2, len(data)))
    kind = int(rng.integers(4))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + bytes([int(rng.integers(256))]) + data[at + 1 :]
    return data[:at] + data[at + int(rng.integers(1, 200)) :] if kind == 2 else data[:at]


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 90},
        {"quality": 92, "subsampling": 0},
        {"quality": 90, "progressive": True},
        {"quality": 85, "restart_marker_blocks": 5},
        {"quality": 90, "mode": "L"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_decoding_at_one_eighth_size_finds_the_same_damage_as_full_decoding(options):
    """Strict decoding of every pixel is the reference for which damaged images to refuse."""
    data, rng = _grainy(**options), np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        damaged = _damaged(data, rng)
        try:
            simplejpeg.decode_jpeg(damaged)
            sound = True
        except ValueError:
            sound = False
        assert decodes_strictly(damaged) == sound
        refused += not sound
    assert 38 < refused < 146


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF", b"II*\0"])
)
def test_arbitrary_bytes_raise_only_image_errors(tail, magic):
    for data in (magic + tail, picture(1)[:300] + tail):
        with contextlib.suppress(ImageError):
            facts = read_header(data)
            check_decodes(data, facts)
