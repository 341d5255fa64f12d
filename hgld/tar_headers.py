"""Headers of tar members, as fast as formatting allows.

What is written is what :mod:`tarfile` writes in its PAX format with mode 0644 and no owner or time: plain ustar, with a
pax header before names of more than 100 characters or outside ASCII.
"""

from hgld.errors import InputError

BLOCK = 512
END_OF_ARCHIVE = bytes(2 * BLOCK)

_LARGEST_OCTAL = 8**11
_LONGEST_NAME = 100
_MODE_TO_GROUP = b"0000644\x000000000\x000000000\x00"  # mode, uid, gid
_TIME = b"00000000000\x00"
_REST = b"ustar\x0000" + bytes(247)  # magic, version; no owner's names, no device, no prefix, padding
_AFTER_NAME = _MODE_TO_GROUP + b"%011o\x00" + _TIME + b"%06o\x00 %c" + bytes(100) + _REST
_CONSTANT_SUM = sum(_MODE_TO_GROUP) + sum(_TIME) + 8 * ord(" ") + sum(_REST)


def member_header(name: str, size: int) -> bytes:
    """Header of a regular file, to be followed by its bytes and :func:`padding`.

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
    return _header(stored, size, b"0")


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    digits = b"%011o" % size
    checksum = _CONSTANT_SUM + sum(name) + sum(digits) + kind[0]
    return name.ljust(_LONGEST_NAME, b"\0") + _AFTER_NAME % (size, checksum, kind)


def _with_pax_header(name: str, size: int) -> bytes:
    if not name or name.endswith("/") or "\0" in name or size < 0:
        raise InputError(f"member {name!r} of {size} bytes: expected a file's name, and no negative size.")
    try:
        path = name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"member {name!r}: its name cannot be written as UTF-8 ({error.reason}).") from error
    records = b""
    if len(path) > _LONGEST_NAME or not name.isascii():
        records += _pax_record(b"path", path)
    if size >= _LARGEST_OCTAL:
        records += _pax_record(b"size", b"%d" % size)
    plain = name.encode("ascii", "replace")[:_LONGEST_NAME]
    extended = _header(b"././@PaxHeader", len(records), b"x").replace(b"0000644", b"0000000", 1)
    extended = _with_checksum(extended)
    return extended + records + padding(len(records)) + _header(plain, size if size < _LARGEST_OCTAL else 0, b"0")


def _with_checksum(block: bytes) -> bytes:
    return block[:148] + b"%06o\x00 " % checksum(block) + block[156:]


def checksum(block: bytes) -> int:
    """Sum of a header's bytes, those of the sum itself read as spaces."""
    return sum(block) - sum(block[148:156]) + 8 * ord(" ")


def _pax_record(key: bytes, value: bytes) -> bytes:
    """``"LENGTH KEY=VALUE\\n"``, where the length counts its own digits."""
    body = len(key) + len(value) + 3
    length = body + len(str(body))
    length = body + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def padding(size: int) -> bytes:
    """Zeros that fill the last block of a member of ``size`` bytes.

    >>> len(padding(1000)), len(padding(1024))
    (24, 0)
    """
    return bytes(-size % BLOCK)
