"""The structure of an encoded image, read before any decoder sees it: what decoding it will cost, and its orientation.

Decoders have no budget of time and memory, so what they are given has: pixels, passes over them, and the blocks
(segments, chunks, extensions) that Pillow walks through one by one. EXIF is read here for its one tag that counts:
Pillow copies the bytes of every tag, of which 64 KiB can name gigabytes.
"""

import re
import struct
from typing import NamedTuple

from hgld.data.format import MOST_PIXELS
from hgld.errors import ImageError

MOST_PIXELS_WHOLE = 50_000_000  # of PNG, WebP and GIF, which are decoded whole and slowly: 1.5 s; a JPEG may be reduced
MOST_SCANS = 100  # of a progressive JPEG, which has some 10; each costs a pass over the whole image, and may be empty
MOST_PASSES = 1_000_000_000  # scans times pixels: 1.5 s
_MOST_SEGMENTS = 4_096  # of a JPEG before its first scan, of a GIF before its first frame
_MOST_CHUNKS = 100_000  # of a PNG, whose encoders write chunks of 8 KiB and more

_START, _SCAN = b"\xff\xd8", b"\xff\xda\x00"  # markers; a scan's header has fewer than 256 bytes
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of the frame, which tell how it is coded
_ALONE = {0x00, 0x01, *range(0xD0, 0xDA)}  # markers without a length, which libjpeg skips, or ends at, in a head
_SEQUENTIAL = (b"\xc0", b"\xc1", b"\xc9")
_PNG, _GIF = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
_APP1, _EXIF, _XMP_SEGMENT = 0xE1, b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_ORIENTATION = 0x0112  # EXIF's tag
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_NUMBERS = {1: "B", 3: "H", 4: "I"}  # EXIF's types of whole numbers
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


class JpegHead(NamedTuple):
    """The segments of a JPEG before its first scan, empty if they cannot be told; whether there is no other scan."""

    segments: bytes
    one_scan: bool


def is_jpeg(data: bytes) -> bool:
    """Tell whether bytes begin as a JPEG does."""
    return data.startswith(_START)


def jpeg_head(data: bytes) -> JpegHead:
    """Return the head of a JPEG.

    Raises:
        ImageError: ``too-many-blocks``.
    """
    at, frame = len(_START), b""
    for _ in range(_MOST_SEGMENTS if is_jpeg(data) else 0):
        marker = data[at : at + 4]
        if len(marker) < 4 or marker[0] != 0xFF or marker[1] in _ALONE:
            break
        if marker.startswith(_SCAN):
            return JpegHead(data[:at], frame[1:2] in _SEQUENTIAL and frame[9:10] == data[at + 4 : at + 5])
        if marker[1] in _FRAMES:
            frame = data[at : at + 10]
        at += 1 if marker[1] == 0xFF else 2 + int.from_bytes(marker[2:])
    else:
        if is_jpeg(data):
            raise _too_many("segments before the first scan", _MOST_SEGMENTS)
    return JpegHead(b"", one_scan=False)


def jpeg_metadata(segments: bytes) -> tuple[bytes, bytes]:
    """Return the EXIF and the XMP among the segments of :func:`jpeg_head`, each empty if there is none."""
    at, exif, xmp = len(_START), b"", b""
    while at + 4 <= len(segments):
        if segments[at + 1] == 0xFF:  # filling
            at += 1
            continue
        end = at + 2 + int.from_bytes(segments[at + 2 : at + 4])
        content = segments[at + 4 : end] if segments[at + 1] == _APP1 else b""
        if content.startswith(_EXIF):
            exif += content.removeprefix(_EXIF) if exif else content
        elif content.startswith(_XMP_SEGMENT):
            xmp = content
        at = end
    return exif, xmp


def check_blocks(data: bytes) -> None:
    """Refuse an image of so many blocks that reading its header would take long.

    Raises:
        ImageError: ``too-many-blocks``.
    """
    if is_jpeg(data):
        jpeg_head(data)
    elif data.startswith(_PNG):
        _png_exif(data)
    elif data.startswith(_GIF):
        _check_gif(data)


def check_cost(data: bytes, width: int, height: int) -> None:
    """Refuse an image whose decoding would take too much memory or time.

    Raises:
        ImageError: ``too-many-pixels``, ``too-many-scans`` or ``too-many-blocks``.
    """
    pixels, most = width * height, MOST_PIXELS if is_jpeg(data) else MOST_PIXELS_WHOLE
    if pixels > most:
        raise ImageError("too-many-pixels", f"{width} x {height} pixels, more than the {most:,} that are read")
    if not is_jpeg(data):
        return
    head = jpeg_head(data)
    if head.one_scan:
        return
    scans = data.count(_SCAN, len(head.segments))  # entropy-coded data holds no marker
    if scans > MOST_SCANS or scans * pixels > MOST_PASSES:
        raise ImageError(
            "too-many-scans",
            f"a JPEG of {scans:,} scans of {pixels:,} pixels, more than the {MOST_SCANS} scans and the {MOST_PASSES:,} "
            "pixels in all of them that are decoded",
        )


def _png_exif(data: bytes) -> bytes:
    """Return the EXIF of a PNG, which may come after its pixels; empty: it has none."""
    at, exif = len(_PNG), b""
    for _ in range(_MOST_CHUNKS):
        kind = data[at + 4 : at + 8]
        if len(kind) < 4 or kind == b"IEND":
            return exif
        length = int.from_bytes(data[at : at + 4])
        if kind == b"eXIf":
            exif = data[at + 8 : at + 8 + length]
        at += 12 + length
    raise _too_many("chunks", _MOST_CHUNKS)


def _check_gif(data: bytes) -> None:
    """Refuse a GIF of too many extensions, and parts of them, before its first frame."""
    at = 13 + (3 << ((data[10] & 7) + 1) if len(data) > 10 and data[10] & 0x80 else 0)
    inside = False
    for _ in range(_MOST_SEGMENTS):
        kind = data[at : at + 1]
        if not kind or (not inside and kind != b"!"):
            return
        if inside:
            at, inside = at + 1 + kind[0], kind[0] > 0
        else:
            at, inside = at + 2, True
    raise _too_many("extensions before the first image", _MOST_SEGMENTS)


def _too_many(what: str, most: int) -> ImageError:
    return ImageError("too-many-blocks", f"more than {most:,} {what}")


def orientation_of(data: bytes, exif: bytes, xmp: bytes) -> int:
    """Return the EXIF orientation of an image, 1 to 8; 1 if none is stated or it is senseless.

    Args:
        data: the image.
        exif: EXIF data that Pillow found in the head.
        xmp: likewise; asked where EXIF says nothing.
    """
    found = _exif_orientation(exif or (_png_exif(data) if data.startswith(_PNG) else b""))
    if found is None:
        stated = _XMP.search(xmp)
        found = int(stated[1]) if stated else 1
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    exif = exif.removeprefix(_EXIF)
    order = _BYTE_ORDERS.get(exif[:4])
    if order is None or len(exif) < 8:
        return None
    found = None
    try:
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(f"{order}HHI", exif, entry)
            if tag == _ORIENTATION and values == 1 and kind in _NUMBERS:
                (found,) = struct.unpack_from(order + _NUMBERS[kind], exif, entry + 8)
    except struct.error:  # cut off
        pass
    return found
