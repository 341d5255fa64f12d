"""Tar files: fast writing of member headers, and a member reader for untrusted input.

hgld writes what :mod:`tarfile` writes in its PAX format with mode 0644 and no owner or time: plain ustar, with a pax
header before names of more than 100 characters or outside ASCII.

hgld reads ustar, GNU (long names, base-256 sizes) and pax (path, size). It extracts nothing: a member is a name, an
offset and a size. If a member is unsafe (a link, a device, a path out of the folder), its ``fault`` says so.
"""

import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from hgld.errors import InputError, excerpt, quoted

BLOCK = 512
END_OF_ARCHIVE = bytes(2 * BLOCK)

_TEMPLATE = tarfile.TarInfo("").tobuf(tarfile.PAX_FORMAT)  # header of an empty file without a name


def member_header(name: str, size: int) -> bytes:
    """Return the header of a regular file. In the tar, the file's bytes and :func:`padding` follow it.

    Args:
        name: path inside the tar, with ``/``.
        size: size of the file in bytes.

    Returns:
        one block of 512 bytes; three blocks or more if the name or the size need a pax header.

    Raises:
        InputError: the name is empty, ends in ``/`` (which means a directory), or cannot be written as UTF-8.
    """
    if not name or name.endswith("/") or "\0" in name:
        raise InputError(f"member {quoted(name)}: expected a file name without NUL and without a final slash.")
    if size < 0:
        raise InputError(f"member {quoted(name)}: its size is {size} bytes; expected at least 0.")
    if name.isascii() and len(name) <= 100 and size < 8**11:  # building the header here is ten times as fast as tarfile
        block = bytearray(_TEMPLATE)
        block[: len(name)] = name.encode()
        block[124:135] = b"%011o" % size
        block[148:154] = b"%06o" % checksum(bytes(block))
        return bytes(block)
    member = tarfile.TarInfo(name)
    member.size = size
    try:
        return member.tobuf(tarfile.PAX_FORMAT)
    except UnicodeEncodeError as error:
        raise InputError(f"member {quoted(name)}: its name cannot be written as UTF-8 ({error.reason}).") from error


def checksum(block: bytes) -> int:
    """Return the sum of a header's bytes, in which the bytes of the checksum field count as spaces."""
    return sum(block) - sum(block[148:156]) + 8 * ord(" ")


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a member of ``size`` bytes.

    >>> len(padding(1000)), len(padding(1024))
    (24, 0)
    """
    return bytes(-size % BLOCK)


# -- reading members --------------------------------------------------------------------------------------------------

Kind = Literal["file", "directory", "link", "other", "damage"]

_MOST_HEADER_BYTES = 1 << 16  # maximum size of a long name or pax header; Linux opens paths of at most 4,096 bytes
_CHUNK = 1 << 20
_MOST_DIGITS = 20
# types of headers that extend the next one: pax, pax for all members, GNU long name, GNU long link
_EXTENDED = (b"x", b"g", b"L", b"K")
_WITHOUT_DATA = b"123456"  # links, devices, directories and pipes have no bytes, even if their header states a size
_KINDS: dict[int, Kind] = {0: "file", 48: "file", 55: "file", 49: "link", 50: "link", 53: "directory"}  # 0 7 1 2 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OCTAL = re.compile(rb"[0-7]+")
_DAMAGED_COMPRESSION = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class Member(NamedTuple):
    """One member of a tar.

    Attributes:
        name: path of the member, without a leading ``./``; empty if unknown.
        offset: position of the member's first byte in the (uncompressed) tar.
        size: size of the member in bytes.
        kind: type in the member's header; ``damage`` if the tar itself is damaged.
        fault: reason not to use the member, for messages; None for a usable file or directory.
    """

    name: str
    offset: int
    size: int
    kind: Kind
    fault: str | None


class ByteStream(Protocol):
    """Protocol for byte streams: files, pipes, :class:`gzip.GzipFile`, HTTP responses."""

    def read(self, size: int, /) -> bytes: ...


def stream_members(
    file: ByteStream, *, where: str, max_member_bytes: int, recover: bool = False
) -> Iterator[tuple[Member, bytes]]:
    """Read a tar once from front to end, as pipes and HTTP require, and yield its members with their bytes.

    Args:
        file: file opened at the beginning of the tar; may return fewer bytes than requested.
        where: name of the tar in messages.
        max_member_bytes: limit of memory; a larger file has a ``fault`` and no bytes.
        recover: whether to yield damage as a member with a ``fault``, and to resume at the next valid header.

    Yields:
        members in order; the bytes are empty if the member has a ``fault`` or is not a file.

    Raises:
        InputError: a header or the compression is damaged, or the tar is cut off (unless ``recover``). The message
            states tar, member and offset. All members before the damage are yielded first.
    """
    cursor = _Cursor(file, where)
    block: bytes | None = None
    while True:
        unread: Member | None = None
        try:
            member = _next_member(cursor, block)
            if member is None:
                return
            block, data = None, b""
            if member.kind == "file" and member.fault is None:
                if member.size > max_member_bytes:
                    fault = f"has {member.size} bytes, more than the {max_member_bytes} allowed"
                    member = member._replace(fault=fault)
                else:
                    unread = member
                    data, unread = cursor.read(member.size), None
            yield member, data
            cursor.skip_to(member.offset + member.size + -member.size % BLOCK)
        except _Damage as damage:
            what, offset = damage.args
            if not recover:
                name = f"member {quoted(unread.name)}: " if unread else ""
                raise InputError(f"{where}: {name}{what} at offset {offset}. Fetch or write the tar again.") from damage
            unknown = Member("", offset, 0, "damage", None)
            yield (unread or unknown)._replace(kind="damage", fault=what), b""
            if (block := _find_header(cursor)) is None:
                return


class _Damage(Exception):  # noqa: N818  # never raised out of this module
    """Description and offset of damage in a tar."""


class _Cursor:
    """A position in a tar that only moves forward."""

    def __init__(self, file: ByteStream, where: str) -> None:
        self.file, self.where, self.position = file, where, 0

    def read(self, count: int) -> bytes:
        """Read exactly ``count`` bytes."""
        data = self._read(count)
        # a pipe may return fewer bytes than requested
        while len(data) < count and (more := self._read(count - len(data))):
            data += more
        self.position += len(data)
        if len(data) < count:
            raise _Damage("the tar is cut off", self.position)
        return data

    def _read(self, count: int) -> bytes:
        try:
            return self.file.read(count)
        except _DAMAGED_COMPRESSION as error:
            raise InputError(
                f"{self.where}: its compression is damaged after {self.position} bytes ({excerpt(error)}). "
                "Fetch it again."
            ) from error

    def skip_to(self, position: int) -> None:
        while self.position < position:
            self.read(min(_CHUNK, position - self.position))


def _find_header(cursor: _Cursor) -> bytes | None:
    """Return the next valid header after damage; None if no valid header follows."""
    try:
        while True:
            block = cursor.read(BLOCK)
            if block[257:262] == b"ustar" and checksum(block) == _number(block[148:156]):
                return block
    except _Damage:
        return None


@dataclass(slots=True)
class _Extended:
    """Facts about the next member of a tar, read from its extended headers."""

    name: str | None = None
    size: int | None = None
    fault: str | None = None


def _next_member(cursor: _Cursor, block: bytes | None) -> Member | None:
    """Move to the next member's bytes and return the member; None at the end mark. ``block``: its header, if known."""
    extended = _Extended()
    while True:
        if block is None:
            block = cursor.read(BLOCK)
        if not any(block):
            return None
        size = _number(block[124:136])
        if _number(block[148:156]) != checksum(block) or size is None:
            raise _Damage("damaged header", cursor.position - BLOCK)
        kind, block_read, block = block[156:157], block, None
        if kind in _EXTENDED:
            _read_extended(cursor, kind, size, extended)
        else:
            return _make_member(block_read, size, cursor.position, extended)


def _read_extended(cursor: _Cursor, kind: bytes, size: int, extended: _Extended) -> None:
    start = cursor.position
    if size > _MOST_HEADER_BYTES:
        raise _Damage(f"an extended header of {size} bytes, more than {_MOST_HEADER_BYTES},", start)
    data = cursor.read(size)
    cursor.skip_to(start + size + -size % BLOCK)
    if kind == b"L":
        extended.name = _text(data.split(b"\0", 1)[0])
    elif kind in b"xg":
        records = _pax_records(data, start)
        if kind == b"g":
            if records.keys() & {b"path", b"size"}:
                raise _Damage("a global pax header that sets the path or size of all members", start)
            return
        if b"path" in records:
            extended.name = _text(records[b"path"])
        if b"size" in records:
            if not records[b"size"].isdigit() or len(records[b"size"]) > _MOST_DIGITS:
                raise _Damage(f"a pax header with the size {quoted(records[b'size'][:_MOST_DIGITS])}", start)
            extended.size = int(records[b"size"])
        if any(key.startswith(b"GNU.sparse.") for key in records):
            extended.fault = "is sparse, which hgld does not read"


def _pax_records(data: bytes, start: int) -> dict[bytes, bytes]:
    records = {}
    position = 0
    while position < len(data) and data[position]:
        length, space, _ = data[position : position + _MOST_DIGITS].partition(b" ")
        end = position + int(length) if space and length.isdigit() else 0
        key, equals, value = data[position + len(length) + 1 : end].partition(b"=")
        if not position < end <= len(data) or not equals or not value.endswith(b"\n"):
            raise _Damage("a malformed pax header", start)
        records[key] = value[:-1]
        position = end
    return records


def _make_member(block: bytes, size: int, offset: int, extended: _Extended) -> Member:
    code = block[156]
    name = extended.name
    if name is None:
        name = _text(block[:100].split(b"\0", 1)[0])
        prefix = block[345:500].split(b"\0", 1)[0]
        if prefix and block[257:263] == b"ustar\0":  # in GNU's format, this field does not hold a prefix
            name = f"{_text(prefix)}/{name}"
    kind = "directory" if code == 0 and name.endswith("/") else _KINDS.get(code, "other")
    size = 0 if code in _WITHOUT_DATA else size if extended.size is None else extended.size
    name = name.removeprefix("./")
    faults = {
        "is an absolute path": name.startswith("/"),
        "leads out of the folder": ".." in name.split("/"),
        f"is a {'symbolic' if code == ord('2') else 'hard'} link": kind == "link",
        f"is neither file nor directory (type {quoted(chr(code))})": kind == "other",
        "has no name": kind == "file" and not name,
        "has a name with control characters": _CONTROL.search(name),
    }
    return Member(name, offset, size, kind, next((text for text, is_true in faults.items() if is_true), extended.fault))


def _text(name: bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 become visible escapes."""
    return name.decode("utf-8", "backslashreplace")


def _number(field: bytes) -> int | None:
    """Read a number field: octal digits, or base 256 with the first bit set; None if the field is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip() or b"0"
    return int(digits, 8) if _OCTAL.fullmatch(digits) else None
