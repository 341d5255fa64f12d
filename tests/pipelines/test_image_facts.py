"""What is read of images, and what is refused."""

import contextlib
import io
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from hgld.data.format import IMAGE_FORMATS
from hgld.pipelines.check.near_duplicates import perceptual_hash
from hgld.pipelines.shards.image_facts import UnusableImageError, check_decodes, image_facts, thumbnail
from tests.pipelines.tiny_shards import picture


@pytest.mark.parametrize("orientation", range(1, 9))
def test_thumbnails_are_upright(orientation):
    data = picture(7, size=(96, 64), orientation=orientation)
    plain = picture(7, size=(96, 64))
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image).convert("L").resize((32, 32), Image.Resampling.BOX)
    found = thumbnail(data, image_facts(data), 32)
    assert np.abs(found - np.asarray(upright, np.float32)).mean() < 3
    assert image_facts(plain).orientation == 1


@pytest.mark.parametrize("form", IMAGE_FORMATS)
def test_formats(form):
    data = picture(3, form=form)
    facts = image_facts(data)
    assert (facts.format, facts.width, facts.height) == (form, 48, 40)
    check_decodes(data, facts)
    assert perceptual_hash(data, facts) is not None


@pytest.mark.parametrize("form", ["BMP", "TIFF"])
def test_formats_that_no_reader_decodes_are_refused(form):
    with pytest.raises(UnusableImageError, match="JPEG, PNG, WEBP, GIF, which shards hold: convert") as caught:
        image_facts(picture(3, form=form))
    assert caught.value.reason == "undecodable"


def test_a_truncated_image_is_told_from_one_that_is_none():
    data = picture(4, size=(200, 150))
    for cut in (1, 10, len(data) // 2):
        with pytest.raises(UnusableImageError, match="truncated") as caught:
            check_decodes(data[:-cut], image_facts(data))
        assert caught.value.reason == "truncated"
    for data, reason in ((b"", "empty"), (b"no image", "undecodable")):
        with pytest.raises(UnusableImageError) as caught:
            image_facts(data)
        assert caught.value.reason == reason


def test_a_decompression_bomb_is_refused_by_its_header():
    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = chunk(b"IHDR", (60_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0]))
    with pytest.raises(UnusableImageError) as caught:
        image_facts(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IEND", b""))
    assert caught.value.reason == "too-many-pixels"


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF", b"II*\0"])
)
def test_no_bytes_break_the_reading_of_images(tail, magic):
    for data in (magic + tail, picture(1)[:300] + tail):
        with contextlib.suppress(UnusableImageError):
            facts = image_facts(data)
            check_decodes(data, facts)
            perceptual_hash(data, facts)
