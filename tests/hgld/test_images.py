"""Image headers are read as Pillow reads them; malicious images that would take long fail within two seconds."""

import io
import struct
import time
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from hgld.data import images
from hgld.data.decode import decode_batch
from hgld.data.format import MOST_PIXELS
from hgld.data.images import EncodedImage, decoded_rgb, open_image, read_header, rgb_pixels
from hgld.data.views import TestView
from hgld.errors import ImageError, InputError
from hgld.pipelines.shards.reading import check_decodes
from tests.rows import each_row

MOST_SECONDS = 2.0
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'


def saved(form="JPEG", size=(8, 8), mode="RGB", **options):
    """Return an encoded image of noise."""
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, form, **options)
    return out.getvalue()


larger = partial(saved, size=(50, 30))


def exif(orientation):
    found = Image.Exif()
    found[0x0112] = orientation
    return found


def resized(data, width, height, marker=b"\xff\xc0"):
    """Write another size into the header of a JPEG."""
    at = data.index(marker) + 5
    return data[:at] + height.to_bytes(2) + width.to_bytes(2) + data[at + 4 :]


KINDS = {
    "baseline": larger(),
    "progressive": larger(progressive=True),
    "exif": larger(exif=exif(6)),
    "exif behind a large profile": larger(exif=exif(3), icc_profile=bytes(200_000)),
    "xmp": larger(xmp=XMP),
    "several pictures": larger("MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))]),
    "png": larger("PNG", exif=exif(7)),
    "webp": larger("WEBP", exif=exif(4)),
    "gif": larger("GIF", mode="P"),
}


@each_row("data", KINDS.values())
def test_headers_are_read_as_pillow_reads_them(data):
    header = read_header(data)
    with Image.open(io.BytesIO(data)) as picture:
        assert (header.width, header.height) == picture.size
        assert header.orientation == picture.getexif().get(0x0112, 1)
        upright = ImageOps.exif_transpose(picture)
        assert header.upright == upright.size
        assert header.format == ("JPEG" if data[:2] == b"\xff\xd8" else picture.format)


def test_non_image_bytes_are_refused():
    for bad in (b"\xff\xd8\xff\xe1\x00\x10Exif\x00\x00MM", b"GIF89a", bytes(100)):
        with pytest.raises(ImageError) as caught:
            read_header(bad)
        assert caught.value.reason == "undecodable"
    with pytest.raises(ImageError, match="no bytes") as caught:
        read_header(b"")
    assert caught.value.reason == "empty"


# -- limits ------------------------------------------------------------------------------------------------------------


# Pillow warns of images above 89,478,485 pixels
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_up_to_the_pixel_limit_are_read():
    with pytest.raises(ImageError, match=f"at most {MOST_PIXELS:,}"):
        read_header(resized(KINDS["baseline"], 10_000, 10_001))
    assert read_header(resized(KINDS["baseline"], 10_000, 10_000)).width == 10_000


def test_bytes_that_look_like_scans_are_not_counted_as_scans():
    many = 200 * b"\xff\xda\x00"
    assert read_header(larger(progressive=True, comment=many)).width == 50
    assert read_header(KINDS["baseline"] + many).width == 50
    assert read_header(KINDS["png"] + many).format == "PNG"


# -- images that would take much time or memory --------------------------------------------------------------------


def chunk(kind, data):
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def png_with(*chunks):
    data = saved("PNG")
    return data[:33] + b"".join(chunks) + data[33:]


def segment(marker, data):
    return bytes([0xFF, marker]) + (len(data) + 2).to_bytes(2) + data


def greedy_exif(tags, orientation):
    """Return EXIF in which every tag refers to the same 60,000 bytes."""
    entries = struct.pack("<HHII", 0x0112, 3, 1, orientation)
    entries += b"".join(struct.pack("<HHII", 0x8000 + i % 0x7000, 7, 60_000, 8) for i in range(tags))
    body = b"II*\0" + struct.pack("<IH", 8, tags + 1) + entries
    return body + bytes(max(0, 65_000 - len(body)))


def gif(between, frames=1):
    data = saved("GIF", mode="P")
    at = data.index(b",")
    return data[:at] + between + data[at:-1] * frames + data[-1:]


def jpeg_with(*segments):
    data = saved("JPEG")
    return data[:2] + b"".join(segments) + data[2:]


def with_empty_scans(count: int, size: tuple[int, int]) -> bytes:
    data = saved("JPEG", (16, 16), progressive=True)
    at = data.rindex(b"\xff\xda\x00") + 5
    data = data[:-2] + count * (b"\xff\xda\x00\x08\x01" + data[at : at + 1] + b"\x00\x01\x05\x00") + data[-2:]
    return resized(data, *size, b"\xff\xc2")


EXIF_SEGMENTS = [segment(0xE1, b"Exif\0\0" + greedy_exif(5_000, 6))] + 11 * [segment(0xE1, b"Exif\0\0" + bytes(65_000))]
GREEDY: dict[str, tuple[Callable[[], bytes], str | int]] = {  # functions that make an image: reason, or orientation
    "thousands of scans": (lambda: with_empty_scans(3_000, (640, 480)), "too-many-scans"),
    "some scans of many pixels": (lambda: with_empty_scans(60, (6_000, 5_000)), "too-many-scans"),
    "pixels of a sealed PNG": (
        lambda: (
            saved("PNG")[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 8_000, 8_000, 8, 2, 0, 0, 0)) + saved("PNG")[33:]
        ),
        "too-many-pixels",
    ),
    "pixels of a JPEG": (lambda: resized(saved("JPEG"), 65_000, 65_000), "too-many-pixels"),
    "chunks of a PNG": (lambda: png_with(120_000 * chunk(b"tESt", b"")), "too-many-blocks"),
    "segments of a JPEG": (lambda: jpeg_with(200_000 * segment(0xFE, b"")), "too-many-blocks"),
    "comments of a GIF": (lambda: gif(b"!\xfe" + 1_000_000 * b"\x01x" + b"\0"), "too-many-blocks"),
    "tags that name gigabytes in a JPEG": (lambda: jpeg_with(*EXIF_SEGMENTS), 6),
    "tags that name gigabytes in a PNG": (lambda: png_with(chunk(b"eXIf", greedy_exif(60_000, 8))), 8),
    "EXIF behind the pixels": (lambda: saved("PNG")[:-12] + chunk(b"eXIf", greedy_exif(5, 3)) + saved("PNG")[-12:], 3),
    "30,000 frames": (lambda: gif(b"", frames=30_000), 1),
    "segments that an encoder writes": (lambda: jpeg_with(*(40 * [segment(0xE2, bytes(60_000))])), 1),
}


def seconds(bomb):
    """Return the CPU seconds of reading and decoding an image, and the reason if it is refused."""
    began, reason = time.process_time(), ""
    try:
        check_decodes(bomb, read_header(bomb))
    except ImageError as error:
        reason = error.reason
    out, parameters = torch.empty(1, 3, 16, 16, dtype=torch.uint8), TestView(16, 16).parameters([8], [8])
    faults: list[tuple[int, InputError]] = []
    decode_batch([EncodedImage(bomb, 1, None, "a.tar: item 1")], parameters, out, faults=faults)
    assert all(str(error).startswith("a.tar: item 1: ") and len(str(error)) < 400 for _, error in faults)
    return time.process_time() - began, reason


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns if a tag is larger than the file
@pytest.mark.parametrize("name", GREEDY)
def test_images_of_excessive_decoding_time_are_refused_and_large_parts_are_skipped(name):
    make, expected = GREEDY[name]
    bomb = make()
    spent, reason = seconds(bomb)
    assert (reason or read_header(bomb).orientation) == expected
    assert spent < MOST_SECONDS


def test_image_with_huge_compressed_metadata_is_refused_or_not_decompressed():
    spent, reason = seconds(png_with(chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(60 << 20), 1))))
    assert reason in ("", "undecodable")
    assert spent < MOST_SECONDS


def test_damaged_exif_gives_an_orientation_of_1_to_8():
    rng = np.random.default_rng(0)
    whole = greedy_exif(3, 6)[:100]
    for _ in range(300):
        damaged = bytearray(whole[: rng.integers(0, 101)])
        for at in rng.integers(0, max(len(damaged), 1), 3) if damaged else ():
            damaged[at] = rng.integers(256)
        assert 1 <= images.orientation_of(b"", bytes(damaged), b"") <= 8


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    mode=st.sampled_from(["RGB", "RGBA"]),
    frames=st.integers(1, 3),
    options=st.sampled_from([{"lossless": True, "exact": True}, {"quality": 90, "exif": exif(6)}]),
)
def test_webp_has_the_pixels_that_pillow_decodes(size, mode, frames, options):
    shape = (frames, *size, len(mode))
    pictures = [Image.fromarray(p) for p in np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)]
    file = io.BytesIO()
    more = {"save_all": True, "append_images": pictures[1:]} if frames > 1 else {}
    pictures[0].save(file, "WEBP", **options, **more)
    with Image.open(io.BytesIO(file.getvalue())) as expected, open_image(file.getvalue()) as picture:
        np.testing.assert_array_equal(decoded_rgb(file.getvalue(), picture), np.array(expected.convert("RGB")))


@each_row("rows", [512, 1025])
def test_rows_are_converted_to_rgb_in_bands_without_a_seam(rows):
    pixels = np.random.default_rng(rows).integers(0, 256, (rows, 3, 4), dtype=np.uint8)
    np.testing.assert_array_equal(rgb_pixels(Image.fromarray(pixels)), pixels[:, :, :3])
