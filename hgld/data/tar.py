"""Tar files: fast writing of members' headers, and a reader of members that trusts no input.

What is written is what :mod:`tarfile` writes in its PAX format with mode 0644 and no owner or time: plain ustar, with a
pax header before names of more than 100 characters or outside ASCII.

What is read is ustar, GNU (long names, base-256 sizes) and pax (path, size). Nothing is ever extracted: a member is a
name, an offset and a size, and one that must not be used (a link, a device, a path that leads elsewhere) says so.
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

_LARGEST_OCTAL = 8**11
_LONGEST_NAME = 100
_MODE_TO_GROUP = b"0000644\x000000000\x000000000\x00"  # mode, uid, gid
_TIME = b"00000000000\x00"
_REST = b"ustar\x0000" + bytes(247)  # magic, version; no owner's names, no device, no prefix, padding
_AFTER_NAME = _MODE_TO_GROUP + b"%011o\x00" + _TIME + b"%06o\x00 0" + bytes(100) + _REST
_CONSTANT_SUM = ord("0") + sum(_MODE_TO_GROUP) + sum(_TIME) + 8 * ord(" ") + sum(_REST)


def member_header(name: str, size: int) -> bytes:
    """Return the header of a regular file, to be followed by its bytes and :func:`padding`.

    Args:
        name: path inside the tar, with ``/``.
        size: bytes of the file.

    Returns:
        one block of 512 bytes, or three and more where the name or the size need a pax header.

    Raises:
        InputError: the name is empty, ends in ``/`` (which means a directory), or cannot be written as UTF-8.
    """
    try:
        stored = name.encode("ascii")
    except UnicodeEncodeError:
        stored = b""
    if (
        not 0 < len(stored) <= _LONGEST_NAME
        or stored.endswith(b"/")
        or b"\0" in stored
        or not 0 <= size < _LARGEST_OCTAL
    ):
        return _with_pax_header(name, size)
    digits = b"%011o" % size
    total = _CONSTANT_SUM + sum(stored) + sum(digits)
    return stored.ljust(_LONGEST_NAME, b"\0") + _AFTER_NAME % (size, total)


def _with_pax_header(name: str, size: int) -> bytes:
    if not name or name.endswith("/") or "\0" in name or size < 0:
        raise InputError(f"member {quoted(name)} of {size} bytes: expected a file's name, and no negative size.")
    member = tarfile.TarInfo(name)
    member.size = size
    try:
        return member.tobuf(tarfile.PAX_FORMAT)
    except UnicodeEncodeError as error:
        raise InputError(f"member {quoted(name)}: its name cannot be written as UTF-8 ({error.reason}).") from error


def checksum(block: bytes) -> int:
    """Sum the bytes of a header, with the bytes of the checksum itself counted as spaces.

    The lower half of Adler's checksum is 1 + the sum, exact for 256 bytes, and a fifth of the time of ``sum``.
    """
    half = BLOCK // 2
    total = (zlib.adler32(block[:half]) & 0xFFFF) + (zlib.adler32(block[half:]) & 0xFFFF) - 2
    return total - sum(block[148:156]) + 8 * ord(" ")


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of a member of ``size`` bytes.

    >>> len(padding(1000)), len(padding(1024))
    (24, 0)
    """
    return bytes(-size % BLOCK)


# -- reading members --------------------------------------------------------------------------------------------------

Kind = Literal["file", "directory", "link", "other", "damage"]

_MOST_HEADER_BYTES = 1 << 16  # of one long name or pax header; 4,096 is the longest path that Linux opens
_CHUNK = 1 << 20
_MOST_DIGITS = 20
_EXTENDED = (b"x", b"g", b"L", b"K")  # pax, pax for all members, GNU long name, GNU long link
_WITHOUT_DATA = b"123456"  # links, devices, directories and pipes, whatever their header says
_KINDS: dict[int, Kind] = {0: "file", 48: "file", 55: "file", 49: "link", 50: "link", 53: "directory"}  # 0 7 1 2 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DAMAGED_COMPRESSION = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class Member(NamedTuple):
    """One member of a tar.

    Attributes:
        name: its path, without a leading ``./``; empty if it cannot be known.
        offset: position at which its bytes begin in the (uncompressed) tar.
        size: number of its bytes.
        kind: type that its header states; ``damage`` where the tar itself is damaged.
        fault: why it must not be used, for people; None for a sound file or directory.
    """

    name: str
    offset: int
    size: int
    kind: Kind
    fault: str | None


class ByteStream(Protocol):
    """Bytes that can be read from front to end: files, pipes, :class:`gzip.GzipFile`, HTTP responses."""

    def read(self, size: int, /) -> bytes: ...


def stream_members(
    file: ByteStream, *, where: str, max_member_bytes: int, recover: bool = False
) -> Iterator[tuple[Member, bytes]]:
    """Yield the members of a tar with their bytes, read once from front to end, as pipes and HTTP require.

    Args:
        file: file opened at the beginning of the tar; may give fewer bytes than asked for.
        where: name of the tar in messages.
        max_member_bytes: a larger file gets an error and no bytes, so that memory stays bounded.
        recover: do not stop at damage: give it as a member with an error, and resume at the next sound header.

    Yields:
        members in order; the bytes are empty if there is an error or no file.

    Raises:
        InputError: a header or the compression is damaged, or the tar is cut off (unless ``recover``); names tar,
            member and offset. All members before were given.
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
            if not recover:
                name = f"member {quoted(unread.name)}: " if unread else ""
                raise InputError(
                    f"{where}: {name}{damage.what} at offset {damage.offset}. Fetch or write the tar again."
                ) from damage
            unknown = Member("", damage.offset, 0, "damage", None)
            yield (unread or unknown)._replace(kind="damage", fault=damage.what), b""
            if (block := _find_header(cursor)) is None:
                return


class _Damage(Exception):  # noqa: N818  # not an error that leaves this module
    """Damage of a tar, with its offset."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.what, self.offset = what, offset


class _Cursor:
    """A position in a tar that only moves forward."""

    def __init__(self, file: ByteStream, where: str) -> None:
        self.file, self.where, self.position = file, where, 0

    def read(self, count: int) -> bytes:
        """Read exactly ``count`` bytes."""
        data = self._read(count)
        while len(data) < count and (more := self._read(count - len(data))):  # a pipe gives what it has
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
    """Return the next sound header after damage; None if the tar ends before one."""
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
    """Return the next member, with the cursor at its bytes; None at the end mark.

    ``block`` is its header if that was read already.
    """
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
            return _member(block_read, size, cursor.position, extended)


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
                raise _Damage("a global pax header that names or measures all members", start)
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


def _member(block: bytes, size: int, offset: int, extended: _Extended) -> Member:
    code = block[156]
    name = extended.name
    if name is None:
        name = _text(block[:100].split(b"\0", 1)[0])
        prefix = block[345:500].split(b"\0", 1)[0]
        if prefix and block[257:263] == b"ustar\0":  # GNU's own format has other things there
            name = f"{_text(prefix)}/{name}"
    kind = _KINDS.get(code, "other")
    if code == 0 and name.endswith("/"):
        kind = "directory"
    size = 0 if code in _WITHOUT_DATA else size if extended.size is None else extended.size
    name = name.removeprefix("./")
    return Member(name, offset, size, kind, _fault(name, kind, code) or extended.fault)


def _fault(name: str, kind: Kind, code: int) -> str | None:
    if name.startswith("/"):
        return "is an absolute path"
    if ".." in name.split("/"):
        return "leads out of the folder"
    if kind == "link":
        return "is a symbolic link" if code == ord("2") else "is a hard link"
    if kind == "other":
        return f"is neither file nor directory (type {quoted(chr(code))})"
    if kind == "file" and not name:
        return "has no name"
    if _CONTROL.search(name):
        return "has a name with control characters"
    return None


def _text(name: bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 become visible escapes."""
    return name.decode("utf-8", "backslashreplace")


def _number(field: bytes) -> int | None:
    """Read a number field: octal digits, or base 256 with the first bit set; None if it is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    try:
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:  # the digits 8 and 9
        return None
