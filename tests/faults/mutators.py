"""Mutations of files that keep their outer form valid, so that readers get past the first checksum.

The headers of a mutated tar have valid checksums. A mutated parquet file has a valid footer, and mutated JSON parses.
Other files, such as images and weights, get random bytes.
"""

import ast
import csv
import io
import json
import re
import struct
from collections.abc import Callable
from pathlib import PurePosixPath
from random import Random
from typing import Any

import polars as pl
import yaml

HOSTILE: tuple[Any, ...] = (
    *("", "nan", "-inf", "null", "-1", "0", "1e400", "9" * 5_000, "0x10", "1_000", "é" * 300, "x" * 70_000),
    *("../../etc/passwd", "/etc/passwd", "C:\\x", "a\0b", "a\nb", 'a"b', "a,b", "\u202e", "\ud800", "=1+1"),
    *("<script>alert(1)</script>", "{{7*7}}", "%s%n", "$(id)", "file:///etc/passwd", "http://127.0.0.1:1/"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.5, float("nan"), float("inf")),
    *([], {}, [[]], [None], {"": None}, *HOSTILE),
)
_NUMBERS = (0, 1, 127, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)


def mutate(name: str, data: bytes, rng: Random) -> bytes:
    """Change a file with the mutator of its suffix; in one case of five, change random bytes instead."""
    by_suffix = BY_SUFFIX.get(PurePosixPath(name).suffix.lower(), raw if b"\0" in data[:4096] else _text)
    if rng.random() < 0.2:
        by_suffix = raw
    try:
        return by_suffix(data, rng)
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001  # an earlier mutation made the file unreadable
        return raw(data, rng)


def raw(data: bytes, rng: Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 8))):
        at, size = rng.randrange(len(out) + 1), rng.choice((1, 2, 4, 8, 64, 512))
        put = (
            b"",
            bytes(size),
            rng.randbytes(size),
            out[max(0, at - size) : at] * rng.choice((2, 100)),
            struct.pack(rng.choice("<>") + "I", rng.choice(_NUMBERS)),
        )
        if rng.random() < 0.1:
            del out[at:]
        elif rng.random() < 0.2 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        else:
            out[at : at + size] = rng.choice(put)
    return bytes(out[: 4 << 20])


# -- text --------------------------------------------------------------------------------------------------------------


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes, rng: Random) -> bytes:
    lines = data.decode("utf-8", "replace").splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0 | 1:
            words = re.split(r"(\s+|[,;|>]+)", lines[at])
            words[rng.randrange(len(words))] = str(rng.choice(HOSTILE))
            lines[at] = "".join(words)
        case 2:
            del lines[at]
        case 3:
            lines.insert(at, rng.choice((rng.choice(lines), str(rng.choice(HOSTILE)) + "\n")))
        case _:
            rng.shuffle(lines)
    return _encoded("".join(lines))


def _table(data: bytes, rng: Random) -> bytes:
    rows = changed_value(list(csv.reader(io.StringIO(data.decode("utf-8", "replace")))), rng)
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(row if isinstance(row, list) else [row] for row in rows)
    return _encoded(out.getvalue())


def changed_value(value: Any, rng: Random) -> Any:
    """Change one part of a JSON value."""
    parts, todo = [], [value]
    while todo:
        one = todo.pop()
        keys = range(len(one)) if isinstance(one, list) else one if isinstance(one, dict) else ()
        parts += [(one, key) for key in keys]
        todo += [one[key] for key in keys]
    if not parts:
        return rng.choice(VALUES)
    holder, key = rng.choice(parts)
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[str(rng.choice(HOSTILE))] = holder[key]
        case 1:
            holder.append(holder[key])
        case 2:
            other, where = rng.choice(parts)
            holder[key] = json.loads(json.dumps(other[where]))
        case _:
            holder[key] = rng.choice(VALUES)
    return value


def _json(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.05:
        return rng.choice((b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"1" * 100_000 + b"]"))
    return _encoded(json.dumps(changed_value(json.loads(data), rng), ensure_ascii=rng.random() < 0.5))


def _yaml(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.1:
        doubled = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
        return b"a0: &a0 [x, x]\n" + doubled.encode() + data
    if rng.random() < 0.3 or b"*a0" in data:  # JSON has no aliases: writing out nested aliases would fill the memory
        return _text(data, rng)
    return _encoded(yaml.safe_dump(changed_value(yaml.safe_load(data), rng)))


# -- containers --------------------------------------------------------------------------------------------------------


def _parquet(data: bytes, rng: Random) -> bytes:
    frame, metadata = pl.read_parquet(io.BytesIO(data)), pl.read_parquet_metadata(io.BytesIO(data))
    metadata = {name: value for name, value in metadata.items() if name != "ARROW:schema"}
    series = frame[column := rng.choice(frame.columns)]
    match rng.randrange(7):
        case 0:
            frame = frame.drop(column)
        case 1:
            frame = frame.rename({column: str(rng.choice(HOSTILE))[:200] or "x"})
        case 2:
            kind = rng.choice((pl.String, pl.Float64, pl.Int64, pl.Boolean, pl.Binary, None))
            frame = frame.with_columns(series.cast(kind, strict=False) if kind else series.implode())
        case 3 | 4:
            values = series.to_list()
            good = HOSTILE if series.dtype == pl.String else (-1, 0, 2**31 - 1, -(2**31), 127, 2**24)
            values[rng.randrange(len(values))] = rng.choice((None, rng.choice(good)))
            frame = frame.with_columns(pl.Series(column, values, dtype=series.dtype, strict=False))
        case 5:
            frame = rng.choice((frame.clear(), frame[::-1], pl.concat([frame, frame[:1]])))
        case _:
            name = rng.choice([*metadata, "new"])
            hostile = str(rng.choice(HOSTILE)).encode("utf-8", "replace").decode()
            metadata[name] = rng.choice((hostile, metadata.get(name, "{}") * 2, "[1", "[]"))
    out = io.BytesIO()
    frame.write_parquet(out, metadata=metadata)
    sealed = bytearray(out.getvalue())
    if rng.random() < 0.3 and len(sealed) > 64:  # damages a data page and leaves the footer intact
        sealed[rng.randrange(4, len(sealed) // 2)] ^= 1 << rng.randrange(8)
    return bytes(sealed)


def _tar(data: bytes, rng: Random) -> bytes:
    out, at, heads = bytearray(data), 0, []
    while at + 512 <= len(data) and data[at : at + 512] != bytes(512):
        size = int(data[at + 124 : at + 135] or b"0", 8)
        heads.append((at, size))
        at += 512 + -(-size // 512) * 512
    at, size = rng.choice(heads)
    size = min(size, len(data) - at - 512)  # an earlier change may claim gigabytes
    end = at + 512 + -(-size // 512) * 512

    def put(first: int, width: int, value: bytes) -> None:
        out[at + first : at + first + width] = value[:width].ljust(width, b"\0")

    match rng.randrange(7):
        case 0 | 1 | 2:
            name = data[at : at + 100].rstrip(b"\0").decode("utf-8", "replace")
            inside = mutate(name, bytes(data[at + 512 : at + 512 + size]), rng)
            if rng.random() < 0.5:  # the header gets the new size of the content
                put(124, 12, b"%011o\0" % len(inside))
                out[at + 512 : end] = inside + bytes(-len(inside) % 512)
            else:
                out[at + 512 : end] = inside[: end - at - 512].ljust(end - at - 512, b"\0")
        case 3:
            put(0, 100, _encoded(str(rng.choice(HOSTILE)))[:99])
        case 4:
            put(156, 1, rng.choice((b"1", b"2", b"3", b"5", b"6", b"L", b"x", b"g", b"S", b"\xff")))
            put(157, 100, b"/etc/passwd")
        case 5:
            claimed = (b"77777777777", b"-0000000001", b"           ", b"00000200000", b"\x80" + rng.randbytes(11))
            put(124, 12, rng.choice(claimed))
        case _:
            out[at + 512 : at + 512] = data[at:end]
    put(148, 8, b" " * 8)
    put(148, 8, b"%06o\0 " % sum(out[at : at + 512]))
    return bytes(out)


def _safetensors(data: bytes, rng: Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    text = _encoded(json.dumps(changed_value(json.loads(data[8 : 8 + length]), rng)))
    stated = rng.choice((len(text), len(text), len(text), 2**63, 0, len(text) + 8))
    return stated.to_bytes(8, "little") + text + data[8 + length :]


def _npy(data: bytes, rng: Random) -> bytes:
    length = int.from_bytes(data[8:10], "little")
    head = ast.literal_eval(data[10 : 10 + length].decode())
    match rng.randrange(5):
        case 0:
            head["shape"] = rng.choice(((2**62, 2), (-1, 2), (0, 0), (), ("a",), (3, 2**33), ((((1,),),),)))
        case 1:
            head["descr"] = rng.choice(("|O", "<f2", "<U5", "<i8", ">f8", "<f16", [("a", "<f4")], "", "x" * 99))
        case 2:
            head[rng.choice(("more", "descr", "fortran_order"))] = rng.choice(VALUES)
        case _:
            pass
    text = repr(head).replace("nan", "0").replace("inf", "0").encode("utf-8", "replace")
    if rng.random() < 0.15:
        text = b"(" * rng.choice((50, 9_000)) + text
    text = text[:65_000].ljust(-(-(len(text) + 10) // 64) * 64 - 11) + b"\n"
    return data[:8] + min(len(text), 65_535).to_bytes(2, "little") + text + data[10 + length :]


BY_SUFFIX: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": _json,
    ".yaml": _yaml,
    ".csv": _table,
    ".tsv": _text,
    ".txt": _text,
    ".parquet": _parquet,
    ".tar": _tar,
    ".safetensors": _safetensors,
    ".npy": _npy,
}
