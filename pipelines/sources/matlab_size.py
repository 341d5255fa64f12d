"""How large a MATLAB file becomes in memory, before it is read: its variables are compressed, each on its own."""

import struct
import zlib
from pathlib import Path

from hgld.errors import TableError
from pipelines.sources.release import read_bytes

_HEADER = 128  # bytes, the last two of which state the byte order
_TAG = 8  # bytes of an element's type and size
_COMPRESSED = 15
_PIECE = 1 << 20


def refuse_large_mat(path: Path, obtain: str, *, most: int) -> None:
    """Refuse a MATLAB file (version 5) whose variables are larger than ``most`` bytes together when decompressed.

    A file that is none is left to its reader to refuse.

    Args:
        path: the file.
        obtain: where to get the release.
        most: bytes.

    Raises:
        InputError: the file is missing.
        TableError: it cannot be read, or would be larger.
    """
    data = memoryview(read_bytes(path, obtain, most=most))
    order = {b"IM": "<", b"MI": ">"}.get(bytes(data[_HEADER - 2 : _HEADER]))
    position, size = _HEADER, 0
    while order is not None and position + _TAG <= len(data):
        kind, length = struct.unpack_from(f"{order}II", data, position)
        element = data[position + _TAG : position + _TAG + length]
        size += _decompressed(element, most - size) if kind == _COMPRESSED else len(element)
        if size > most:
            raise TableError(
                f"{path}: decompresses to more than {most:,} bytes; that is no list of a release. {obtain}"
            )
        position += _TAG + length


def _decompressed(element: memoryview, most: int) -> int:
    """The size of a compressed element: just above ``most`` where it is more, of what comes out where it is damaged."""
    stream, size, rest = zlib.decompressobj(), 0, bytes(element)
    try:
        while size <= most and not stream.eof:
            piece = stream.decompress(rest, _PIECE)
            rest = stream.unconsumed_tail
            size += len(piece)
            if not piece and not rest:
                break
    except zlib.error:
        pass  # the reader says what is wrong
    return size
