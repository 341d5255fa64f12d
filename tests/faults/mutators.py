"""Mutations of files that keep their outer form valid: what was changed inside is sealed again.

Random bytes stop at the first checksum. These get further: a tar's headers have right checksums, a PNG's chunks right
CRCs, a parquet file a right footer, a zip's members their CRCs, and JSON parses.
"""

import ast
import csv
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath
from random import Random
from typing import Any

import polars as pl
import yaml

HOSTILE: tuple[Any, ...] = (
    *(
        "",
        " ",
        "nan",
        "NaN",
        "inf",
        "-inf",
        "null",
        "None",
        "-1",
        "0",
        "1e400",
        "9" * 30,
        "9" * 5_000,
        "-0",
        "0x10",
        "1_000",
    ),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "a/../b",
        "C:\\x",
        "a\0b",
        "a\nb",
        'a"b',
        "a,b",
        "\u202e",
        "\ud800",
        "é" * 300,
        "x" * 70_000,
    ),
    *("=1+1", "<script>alert(1)</script>", "{{7*7}}", "%s%n", "$(id)", "file:///etc/passwd", "http://127.0.0.1:1/"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.5, float("nan"), float("inf")),
    *([], {}, [[]], [None], {"": None}, "", "x" * 70_000, "../x", "\0", "9" * 5_000),
)
_NUMBERS = (0, 1, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)


def mutate(name: str, data: bytes, rng: Random) -> bytes:
    """Change a file by its suffix; now and then as any bytes."""
    suffix = PurePosixPath(name).suffix.lower()
    by_suffix = BY_SUFFIX.get(suffix, _text if _is_text(data) else raw)
    if rng.random() < 0.2:
        by_suffix = raw
    try:
        changed = by_suffix(data, rng)
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001  # it has no such form any more
        changed = raw(data, rng)
    return changed


def _is_text(data: bytes) -> bool:
    return b"\0" not in data[:4096]


# -- any bytes ---------------------------------------------------------------------------------------------------------


def raw(data: bytes, rng: Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 2, 4, 8, 64, 512))
        match rng.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:]
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[max(0, at - size) : at] * rng.choice((1, 2, 100))
            case 4:
                out[at : at + size] = bytes(rng.randrange(256) for _ in range(size))
            case 5:
                number = rng.choice(_NUMBERS)
                out[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
            case _:
                out[at : at + size] = bytes(size)
    return bytes(out[: 4 << 20])


# -- text --------------------------------------------------------------------------------------------------------------


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes, rng: Random) -> bytes:
    lines = data.decode("utf-8", "replace").splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            words = re.split(r"(\s+|[,;|>]+)", lines[at])
            words[rng.randrange(len(words))] = str(rng.choice(HOSTILE))
            lines[at] = "".join(words)
        case 1:
            del lines[at]
        case 2:
            lines.insert(at, lines[rng.randrange(len(lines))])
        case 3:
            lines[at] = lines[at].rstrip("\n")
        case 4:
            lines.insert(at, str(rng.choice(HOSTILE)) + "\n")
        case _:
            rng.shuffle(lines)
    return _encoded("".join(lines))


def _table(data: bytes, rng: Random) -> bytes:
    rows = list(csv.reader(io.StringIO(data.decode("utf-8", "replace"))))
    at = rng.randrange(len(rows))
    match rng.randrange(7):
        case 0 | 1 | 2:
            rows[at][rng.randrange(len(rows[at]))] = str(rng.choice(HOSTILE))
        case 3:
            column = rng.randrange(len(rows[0]))
            rows = [row[:column] + row[column + 1 :] for row in rows]
        case 4:
            rows.append(list(rows[at]))
        case 5:
            rows[at] = rows[at] * 2
        case _:
            rows[0][rng.randrange(len(rows[0]))] = rng.choice(rows[0])
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return _encoded(out.getvalue())


def _places(value: Any) -> list[tuple[Any, Any]]:
    found = []
    todo = [value]
    while todo:
        one = todo.pop()
        keys = range(len(one)) if isinstance(one, list) else one if isinstance(one, dict) else ()
        found += [(one, key) for key in keys]
        todo += [one[key] for key in keys]
    return found


def changed_value(value: Any, rng: Random) -> Any:
    """Change one place of a JSON value."""
    places = _places(value)
    if not places:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0 | 1:
            holder[key] = rng.choice(VALUES)
        case 2:
            holder[key] = str(rng.choice(HOSTILE))
        case 3:
            del holder[key]
        case 4:
            if isinstance(holder, dict):
                holder[str(rng.choice(HOSTILE))] = holder[key]
            else:
                holder.append(holder[key])
        case _:
            other, where = rng.choice(places)
            if where in (other if isinstance(other, dict) else range(len(other))):
                holder[key] = json.loads(json.dumps(other[where]))
    return value


def _json(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.05:
        return rng.choice((b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"1" * 100_000 + b"]"))
    return _encoded(json.dumps(changed_value(json.loads(data), rng), ensure_ascii=rng.random() < 0.5))


def _yaml(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.1:
        doubled = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
        return b"a0: &a0 [x, x]\n" + doubled.encode() + data
    if rng.random() < 0.3 or b"*a0" in data:  # what aliases stand for is never written out
        return _text(data, rng)
    return yaml.safe_dump(changed_value(yaml.safe_load(data), rng)).encode("utf-8", "surrogatepass")


# -- containers --------------------------------------------------------------------------------------------------------


def _parquet(data: bytes, rng: Random) -> bytes:
    frame, metadata = pl.read_parquet(io.BytesIO(data)), pl.read_parquet_metadata(io.BytesIO(data))
    metadata = {name: value for name, value in metadata.items() if name != "ARROW:schema"}
    column = rng.choice(frame.columns)
    series = frame[column]
    row = rng.randrange(max(len(frame), 1))
    match rng.randrange(9):
        case 0:
            frame = frame.drop(column)
        case 1:
            frame = frame.rename({column: str(rng.choice(HOSTILE))[:200] or "x"})
        case 2:
            kind = rng.choice((pl.String, pl.Float64, pl.Int64, pl.Boolean, pl.Binary, pl.List(pl.Int8)))
            frame = frame.with_columns(series.cast(kind, strict=False) if kind is not pl.List else series.implode())
        case 3:
            frame = frame.with_columns(pl.lit(None, series.dtype).alias(column))
        case 4 | 5:
            values = series.to_list()
            good = (
                HOSTILE if series.dtype == pl.String else (-1, 0, 2**31 - 1, -(2**31), 127, 2**24) if values else (0,)
            )
            values[row] = rng.choice((None, rng.choice(good)))
            frame = frame.with_columns(pl.Series(column, values, dtype=series.dtype, strict=False))
        case 6:
            frame = pl.concat([frame, frame[row : row + 1]])
        case 7:
            frame = frame.clear() if rng.random() < 0.5 else frame.sample(fraction=1, shuffle=True, seed=row)
        case _:
            name = rng.choice([*metadata, "new"])
            text = metadata.get(name, "{}")
            metadata[name] = rng.choice(
                (str(rng.choice(HOSTILE)).encode("utf-8", "replace").decode(), text * 2, "[1", "[]")
            )
    out = io.BytesIO()
    frame.write_parquet(out, metadata=metadata)
    sealed = bytearray(out.getvalue())
    if rng.random() < 0.3 and len(sealed) > 64:  # pages under a footer that fits them
        sealed[rng.randrange(4, len(sealed) // 2)] ^= 1 << rng.randrange(8)
    return bytes(sealed)


def _tar(data: bytes, rng: Random) -> bytes:
    out, at, heads = bytearray(data), 0, []
    while at + 512 <= len(data) and data[at : at + 512] != bytes(512):
        size = int(data[at + 124 : at + 135] or b"0", 8)
        heads.append((at, size))
        at += 512 + -(-size // 512) * 512
    at, size = rng.choice(heads)
    name = data[at : at + 100].rstrip(b"\0").decode("utf-8", "replace")
    match rng.randrange(8):
        case 0 | 1 | 2:
            inside = mutate(name, bytes(data[at + 512 : at + 512 + size]), rng)
            room = -(-size // 512) * 512
            if rng.random() < 0.5:  # as long as it is, with its size
                out[at + 124 : at + 136] = b"%011o\0" % len(inside)
                out[at + 512 : at + 512 + room] = inside + bytes(-len(inside) % 512)
            else:
                out[at + 512 : at + 512 + room] = inside[:room].ljust(room, b"\0")
        case 3:
            other = _encoded(str(rng.choice(HOSTILE)))[:99]
            out[at : at + 100] = other.ljust(100, b"\0")
        case 4:
            out[at + 156 : at + 157] = rng.choice((b"1", b"2", b"3", b"5", b"6", b"L", b"x", b"g", b"S", b"\xff"))
            out[at + 157 : at + 257] = b"/etc/passwd".ljust(100, b"\0")
        case 5:
            claimed = rng.choice((b"77777777777", b"-0000000001", b"           ", b"00000000000", b"00000200000"))
            out[at + 124 : at + 136] = claimed + b"\0"
        case 6:
            out[at + 124 : at + 136] = b"\x80" + rng.randbytes(11)
        case _:
            out[at + 512 : at + 512] = data[at : at + 512 + -(-size // 512) * 512]
    head = out[at : at + 512]
    head[148:156] = b" " * 8
    out[at + 148 : at + 156] = b"%06o\0 " % sum(head)
    return bytes(out)


def _png(data: bytes, rng: Random) -> bytes:
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4])
        chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + length]])
        at += 12 + length
    one = rng.choice(chunks)
    match rng.randrange(5):
        case 0 if one[0] == b"IDAT":
            one[1] = zlib.compress(raw(zlib.decompress(one[1]), rng))
        case 1:
            chunks.insert(rng.randrange(1, len(chunks)), list(one))
        case 2:
            kind = rng.choice(
                (b"eXIf", b"iCCP", b"zTXt", b"tEXt", b"acTL", b"fcTL", b"fdAT", b"tRNS", b"PLTE", b"iTXt")
            )
            chunks.insert(
                1, [kind, rng.choice((b"", rng.randbytes(30), b"a\0\0" + zlib.compress(bytes(9_000_000), 1)))]
            )
        case _:
            one[1] = raw(one[1], rng)
    return data[:8] + b"".join(
        len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4) for kind, body in chunks
    )


def _jpeg(data: bytes, rng: Random) -> bytes:
    marks = [match.start() for match in re.finditer(rb"\xff[\xc0-\xfe]", data)]
    at = rng.choice(marks)
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
    match rng.randrange(6):
        case 0:
            return data[: at + 1] + bytes([rng.randrange(0xC0, 0xFF)]) + data[at + 2 :]
        case 1:
            return data[: at + 2] + rng.choice(_NUMBERS[:9]).to_bytes(3)[-2:] + data[at + 4 :]
        case 2:
            return data[:at] + data[at:end] * rng.choice((2, 50, 3_000)) + data[end:]
        case 3:
            return data[:at] + data[end:]
        case 4:
            scan = data.rfind(b"\xff\xda")
            return data[:-2] + data[scan:-2] * rng.choice((2, 50)) + data[-2:]
        case _:
            return data[: at + 4] + raw(data[at + 4 : end], rng) + data[end:]


def _safetensors(data: bytes, rng: Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    head = changed_value(json.loads(data[8 : 8 + length]), rng)
    text = _encoded(json.dumps(head))
    stated = rng.choice((len(text), len(text), len(text), 2**63, 0, len(text) + 8))
    return stated.to_bytes(8, "little") + text + data[8 + length :]


def _npy(data: bytes, rng: Random) -> bytes:
    length = int.from_bytes(data[8:10], "little")
    head = ast.literal_eval(data[10 : 10 + length].decode())
    match rng.randrange(6):
        case 0:
            head["shape"] = rng.choice(((2**62, 2), (-1, 2), (0, 0), (), ("a",), (3, 2**33), ((((1,),),),)))
        case 1:
            head["descr"] = rng.choice(
                ("|O", "<f2", "<U5", "<i8", ">f8", "<f16", [("a", "<f4")], "", "x" * 99, "<M8[s]")
            )
        case 2:
            head["fortran_order"] = rng.choice((True, 2, None))
        case 3:
            head[rng.choice(("more", "descr"))] = rng.choice(VALUES)
        case _:
            pass
    text = repr(head).replace("nan", "0").replace("inf", "0").encode("utf-8", "replace")
    if rng.random() < 0.15:
        text = b"(" * rng.choice((50, 9_000)) + text
    text = text[:65_000].ljust(-(-(len(text) + 10) // 64) * 64 - 11) + b"\n"
    return data[:8] + min(len(text), 65_535).to_bytes(2, "little") + text + data[10 + length :]


def _zip(data: bytes, rng: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    match rng.randrange(5):
        case 0:
            members[str(rng.choice(HOSTILE)).replace("\0", "")[:200] or "x"] = members.pop(name)
        case 1:
            del members[name]
        case _:
            members[name] = raw(members[name], rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for each, content in members.items():
            archive.writestr(each.encode("utf-8", "replace").decode(), content)
    return out.getvalue()


def _mat(data: bytes, rng: Random) -> bytes:
    """Change a variable of a MATLAB file: a type, a size, a dimension, a flag or any bytes, under a size that fits."""
    elements, at = [], 128
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<II", data, at)
        elements.append([kind, data[at + 8 : at + 8 + length]])
        at += 8 + length
    one = rng.choice(elements)
    inside = zlib.decompress(one[1]) if one[0] == 15 else one[1]
    if rng.random() < 0.7:
        word = 4 * rng.randrange(len(inside) // 4)
        number = rng.choice((*_NUMBERS, *range(20)))
        inside = inside[:word] + number.to_bytes(4, "little") + inside[word + 4 :]
    else:
        inside = raw(inside, rng)
    if rng.random() < 0.3:
        one[0] = rng.choice((15, 14, rng.randrange(20)))
    one[1] = zlib.compress(inside) if one[0] == 15 else inside
    return data[:128] + b"".join(struct.pack("<II", kind, len(body)) + body for kind, body in elements)


BY_SUFFIX: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": _json,
    ".yaml": _yaml,
    ".csv": _table,
    ".tsv": _text,
    ".txt": _text,
    ".parquet": _parquet,
    ".tar": _tar,
    ".png": _png,
    ".jpg": _jpeg,
    ".safetensors": _safetensors,
    ".npy": _npy,
    ".pt": _zip,
    ".pth": _zip,
    ".mat": _mat,
}
