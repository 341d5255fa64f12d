"""The one reader of image headers: it says what Pillow says, and refuses what would take too much to decode."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from hgld.data import images
from hgld.data.decode import decode_batch
from hgld.data.format import IMAGE_FORMATS, MOST_PIXELS
from hgld.data.images import EncodedImage, ImageHeader, open_image, read_header
from hgld.data.views import TestView
from hgld.errors import ImageError, InputError
from tests.fake_releases.pictures import jpeg, png

XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'


def saved(form: str = "JPEG", mode: str = "RGB", size: tuple[int, int] = (50, 30), **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, form, **options)
    return out.getvalue()


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


KINDS = {
    "baseline": saved(),
    "progressive": saved(progressive=True),
    "four inks": saved(mode="CMYK"),
    "grey": saved(mode="L"),
    "exif": saved(exif=exif(6)),
    "exif behind a large profile": saved(exif=exif(3), icc_profile=bytes(200_000)),
    "xmp": saved(xmp=XMP),
    "progressive and exif": saved(progressive=True, exif=exif(5)),
    "several pictures": saved("MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))]),
    "png": saved("PNG", exif=exif(7)),
    "webp": saved("WEBP", exif=exif(4)),
    "gif": saved("GIF", "P"),
}


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_a_header_says_what_pillow_says(data):
    header = read_header(data)
    with Image.open(io.BytesIO(data)) as picture:
        assert (header.width, header.height) == picture.size
        assert header.orientation == picture.getexif().get(0x0112, 1)
        upright = ImageOps.exif_transpose(picture)
        assert header.upright == upright.size
        assert data[:2] == b"\xff\xd8" or header.format == picture.format
    assert header.format in IMAGE_FORMATS


def test_kinds_are_told_apart():
    assert read_header(KINDS["several pictures"]) == ImageHeader("JPEG", 50, 30, 1)
    found = [read_header(data).orientation for data in KINDS.values()]
    assert found == [1, 1, 1, 1, 6, 3, 8, 5, 1, 7, 4, 1]


def test_plain_jpegs_need_no_pillow(monkeypatch):
    monkeypatch.setattr(images, "open_image", lambda data: pytest.fail("asked"))
    assert read_header(KINDS["baseline"]) == ("JPEG", 50, 30, 1)
    assert read_header(KINDS["progressive"]) == ("JPEG", 50, 30, 1)


def test_what_is_no_image():
    for bad in (b"\xff\xd8", b"\xff\xd8\xff\xe1\x00\x10Exif\x00\x00MM", b"GIF89a", b"BM" + bytes(60), bytes(100)):
        with pytest.raises(ImageError) as caught:
            read_header(bad)
        assert caught.value.reason == "undecodable"
    with pytest.raises(ImageError, match="no bytes") as caught:
        read_header(b"")
    assert caught.value.reason == "empty"


def test_damaged_exif_means_upright():
    data = jpeg(np.random.default_rng(0), 50, 30, orientation=6)
    at = data.index(b"Exif\0\0") + 6
    assert read_header(data).orientation == 6
    assert read_header(data[:at] + b"\xff" * 8 + data[at + 8 :]) == ("JPEG", 50, 30, 1)


# -- limits ------------------------------------------------------------------------------------------------------------


def with_size(width: int, height: int, data: bytes, marker: bytes) -> bytes:
    at = data.index(marker) + 5
    return data[:at] + height.to_bytes(2) + width.to_bytes(2) + data[at + 4 :]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # from 89,478,486 pixels on
@pytest.mark.parametrize("sides", [(10_000, 10_001), (65_000, 65_000)])
def test_too_many_pixels(sides: tuple[int, int]):
    for data in (with_size(*sides, KINDS["baseline"], b"\xff\xc0"), with_size(*sides, KINDS["exif"], b"\xff\xc0")):
        with pytest.raises(ImageError, match=f"the {MOST_PIXELS:,} that are read") as caught:
            read_header(data)
        assert caught.value.reason == "too-many-pixels"
    fitting = with_size(10_000, 10_000, KINDS["baseline"], b"\xff\xc0")
    assert read_header(fitting).upright == (10_000, 10_000)


def with_scans(count: int, data: bytes) -> bytes:
    """A JPEG with so many empty scans of one component behind those it has."""
    component = data[data.rindex(b"\xff\xda\x00") + 5 : data.rindex(b"\xff\xda\x00") + 6]
    return data[:-2] + count * (b"\xff\xda\x00\x08\x01" + component + b"\x00\x01\x05\x00") + data[-2:]


@pytest.mark.parametrize("kind", ["progressive", "progressive and exif"])
def test_a_progressive_jpeg_with_empty_scans_without_end(kind):
    assert read_header(with_scans(50, KINDS[kind])) == read_header(KINDS[kind])
    bomb = with_scans(3_000, KINDS[kind])
    with pytest.raises(ImageError, match=r"a JPEG of 3,0\d\d scans of 1,500 pixels, more than the 100 scans") as caught:
        read_header(bomb)
    assert caught.value.reason == "too-many-scans"
    with pytest.raises(ImageError, match="scans"), open_image(bomb):
        pass
    parameters = TestView(32, 32).parameters([50], [30])
    image, out = EncodedImage(bomb, 1, None, "train-000000.tar: item 1"), torch.empty(1, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"train-000000\.tar: item 1: .*scans"):
        decode_batch([image], parameters, out)


def test_bytes_like_scans_in_segments_and_behind_the_one_scan_are_no_scans():
    many = 200 * b"\xff\xda\x00"
    assert read_header(saved(comment=many)).width == 50
    assert read_header(saved(progressive=True, comment=many)).width == 50
    assert read_header(KINDS["baseline"] + many).width == 50
    assert read_header(png(np.random.default_rng(0)) + many).format == "PNG"
