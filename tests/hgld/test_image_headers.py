"""The one reader of image headers: it says what Pillow says, and refuses what would take too much to decode."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from hgld.data import images
from hgld.data.format import IMAGE_FORMATS, MOST_PIXELS
from hgld.data.images import ImageHeader, read_header
from hgld.errors import ImageError
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


def test_a_jpeg_with_further_pictures_is_a_jpeg():
    assert read_header(KINDS["several pictures"]) == ImageHeader("JPEG", 50, 30, 1)


def test_plain_jpegs_need_no_pillow(monkeypatch):
    monkeypatch.setattr(images, "open_image", lambda data: pytest.fail("asked"))
    assert read_header(KINDS["baseline"]) == ("JPEG", 50, 30, 1)
    assert read_header(KINDS["progressive"]) == ("JPEG", 50, 30, 1)


def test_bytes_that_are_no_image_are_refused():
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
def test_the_limit_of_pixels_is_the_last_size_that_is_read():
    with pytest.raises(ImageError, match=f"the {MOST_PIXELS:,} that are read") as caught:
        read_header(with_size(10_000, 10_001, KINDS["baseline"], b"\xff\xc0"))
    assert caught.value.reason == "too-many-pixels"
    fitting = with_size(10_000, 10_000, KINDS["baseline"], b"\xff\xc0")
    assert read_header(fitting).upright == (10_000, 10_000)


def test_bytes_that_look_like_scans_are_not_counted():
    many = 200 * b"\xff\xda\x00"
    assert read_header(saved(comment=many)).width == 50
    assert read_header(saved(progressive=True, comment=many)).width == 50
    assert read_header(KINDS["baseline"] + many).width == 50
    assert read_header(png(np.random.default_rng(0)) + many).format == "PNG"
