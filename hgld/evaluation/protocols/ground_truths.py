"""Ground truths of benchmarks in their published files: In-Shop, Google Landmarks v2, revisited Oxford and Paris."""

import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.errors import InputError, TableError, excerpt, quoted
from hgld.tables import read_csv

# -- In-Shop ----------------------------------------------------------------------------------------------------------

_MOST_LIST_BYTES = 256 << 20
_IN_SHOP = ["image_name", "item_id", "evaluation_status"]


def read_in_shop(path: str | Path) -> pl.DataFrame:
    """Read ``list_eval_partition.txt`` of DeepFashion In-Shop Clothes Retrieval (Liu et al., CVPR 2016).

    Returns:
        image (text), item (text, ``id_00000001``), label (Int32, the rank of the item's name), split (``train``,
        ``query`` or ``gallery``), in the order of the file.

    Raises:
        TableError: a line that is not an image, an item and a split, or fewer lines than the first one says.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_LIST_BYTES:
            raise TableError(f"{file}: {file.stat().st_size} bytes; a list of images has at most {_MOST_LIST_BYTES}.")
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise TableError(f"{file}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{file}: not a text file ({excerpt(error)}); expected a list of images in UTF-8.") from error
    if len(lines) < 2 or lines[1] != _IN_SHOP:
        raise TableError(f"{file}: expected the number of images, then the header {' '.join(_IN_SHOP)}.")
    rows = [words for words in lines[2:] if words]
    if lines[0] != [str(len(rows))]:
        raise TableError(
            f"{file}: {len(rows)} images; its first line says {quoted(' '.join(lines[0]))}. Is the file whole?"
        )
    for number, row in enumerate(rows, start=3):
        if len(row) != len(_IN_SHOP) or row[2] not in ("train", "query", "gallery"):
            raise TableError(
                f"{file}: row {number} is {quoted(' '.join(row)[:80])}; expected an image, an item and a split."
            )
    table = pl.DataFrame(rows, schema=dict.fromkeys(("image", "item", "split"), pl.String), orient="row")
    label = (pl.col("item").rank("dense") - 1).cast(pl.Int32).alias("label")
    return table.with_columns(label).select("image", "item", "label", "split")


# -- Google Landmarks v2 ----------------------------------------------------------------------------------------------

_USAGES = {"Public": "public", "Private": "private", "Ignored": "ignored"}
_MOST_SOLUTION_BYTES = 2 << 30


@dataclass(frozen=True)
class RetrievalSolution:
    """Ground truth of the retrieval task of Google Landmarks v2.

    Attributes:
        public: relevant index images of every test image of the public half.
        private: the same of the private half.
        ignored: test images that are not scored.
    """

    public: Mapping[str, tuple[str, ...]]
    private: Mapping[str, tuple[str, ...]]
    ignored: frozenset[str]


def read_retrieval_solution(path: str | Path) -> RetrievalSolution:
    """Read ``retrieval_solution_v2.1.csv``: id, images (ids with spaces between, or None), Usage.

    Raises:
        TableError: other columns, an unknown usage, a test image twice, or a scored one without relevant images.
    """
    file = Path(path)
    table = read_csv(file, max_bytes=_MOST_SOLUTION_BYTES)
    if table.columns != ["id", "images", "Usage"]:
        raise TableError(f"{file}: columns are {excerpt(', '.join(table.columns))}; expected id, images, Usage.")
    parts: dict[str, dict[str, tuple[str, ...]]] = {half: {} for half in _USAGES.values()}
    seen: set[str] = set()
    for row, (test_image, images, usage) in enumerate(table.iter_rows(), start=2):
        where = f"{file}: row {row}, image {quoted(test_image)}"
        if usage not in _USAGES:
            raise TableError(f"{where}: Usage is {quoted(usage)}; expected {', '.join(_USAGES)}.")
        if test_image is None or test_image in seen:
            raise TableError(f"{where}: expected every test image once.")
        seen.add(test_image)
        relevant = () if images in (None, "None") else tuple(dict.fromkeys(str(images).split()))
        if usage != "Ignored" and not relevant:
            raise TableError(f"{where}: {usage} without relevant images; expected some, or Usage Ignored.")
        parts[_USAGES[usage]][test_image] = relevant
    return RetrievalSolution(parts["public"], parts["private"], frozenset(parts["ignored"]))


# -- revisited Oxford and Paris ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RevisitedGroundTruth:
    """Ground truth of revisited Oxford or Paris.

    Attributes:
        images: names of the G gallery images, without ``.jpg``, in the order of the indices.
        queries: names of the Q query images.
        boxes: (Q, 4) float64 x and y of the upper left and the lower right corner of the queries' crops, in pixels.
        easy: for every query the gallery indices of its easy images.
        hard: the same of its hard images.
        junk: the same of images that are never ranked.
    """

    images: tuple[str, ...]
    queries: tuple[str, ...]
    boxes: np.ndarray
    easy: tuple[np.ndarray, ...]
    hard: tuple[np.ndarray, ...]
    junk: tuple[np.ndarray, ...]


def read_revisited(path: str | Path) -> RevisitedGroundTruth:
    """Read ``gnd_roxford5k.pkl`` or ``gnd_rparis6k.pkl`` as published, without running any code of it.

    Raises:
        InputError: the file is no whole pickle of at most 64 MiB, holds anything but lists, dicts, text, numbers and
            arrays of numbers, or is not such a ground truth.
    """
    file = Path(path)
    data = _read_pickle(file)
    if not isinstance(data, dict) or not {"imlist", "qimlist", "gnd"} <= data.keys():
        raise InputError(f"{file}: expected a dict with imlist, qimlist and gnd, as gnd_roxford5k.pkl holds it.")
    for key in ("imlist", "qimlist"):
        if not _is_list_of(data[key], str) or not data[key]:
            raise InputError(f"{file}: {key} is not a list of image names.")
    images, queries, entries = tuple(data["imlist"]), tuple(data["qimlist"]), data["gnd"]
    if not _is_list_of(entries, dict) or len(entries) != len(queries):
        raise InputError(f"{file}: gnd has no entry for each of the {len(queries)} queries of qimlist.")
    lists: dict[str, list[np.ndarray]] = {"easy": [], "hard": [], "junk": []}
    for number, entry in enumerate(entries):
        for part, indices in lists.items():
            values = entry.get(part)
            if not _is_list_of(values, int) or not all(0 <= v < len(images) for v in values):
                raise InputError(
                    f"{file}: gnd[{number}][{quoted(part)}] is not a list of indices into the {len(images)} images of "
                    "imlist."
                )
            indices.append(np.array(values, np.int64))
        listed = np.concatenate([indices[number] for indices in lists.values()])
        if len(np.unique(listed)) != len(listed):
            raise InputError(f"{file}: gnd[{number}] lists an image twice; expected it under easy, hard or junk once.")
        if not _is_list_of(entry.get("bbx"), int, float) or len(entry["bbx"]) != 4:
            raise InputError(f"{file}: gnd[{number}]['bbx'] is not a box of four numbers.")
    boxes = np.array([entry["bbx"] for entry in entries], np.float64).reshape(-1, 4)
    return RevisitedGroundTruth(images, queries, boxes, **{part: tuple(indices) for part, indices in lists.items()})


def _is_list_of(values: object, *types: type) -> bool:
    return isinstance(values, list | tuple) and all(type(value) in types for value in values)


# -- plain data of a pickle -------------------------------------------------------------------------------------------
#
# A pickle is a program for a stack machine, two of whose instructions call whatever they name. This reader interprets
# those alone that make containers, text and numbers; of calls only the few by which numpy writes arrays of numbers,
# which become flat lists. Nothing is imported, looked up or called by a name from the file.

_MOST_PICKLE_BYTES = 64 << 20
_NUMBERS = re.compile(r"[<>=|]?(i[1248]|u[1248]|f[248])\Z")
_MARK = object()


class _ForbiddenError(Exception):
    """An instruction or call that is not one of plain data."""


@dataclass
class _Named:
    """Name in the file, or an array's dtype of that name in the making."""

    name: str


def _read_pickle(file: Path) -> Any:
    try:
        size = file.stat().st_size
        if size > _MOST_PICKLE_BYTES:
            raise InputError(f"{file}: {size} bytes; expected a pickle of at most {_MOST_PICKLE_BYTES}.")
        machine = _Machine()
        for opcode, argument, _ in pickletools.genops(file.read_bytes()):
            machine.run(opcode.name, argument)
        (result,) = machine.stack
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}).") from error
    except (_ForbiddenError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{file}: not a whole pickle of plain data ({excerpt(error)}). Only lists, dicts, text, numbers and arrays "
            "are read from pickles, never code; take the file from where the benchmark publishes it."
        ) from error
    return result


class _Machine:
    """The stack machine of the pickle format, without its means to call and to import."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        if name.startswith(_LITERALS):
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name.endswith(("PUT", "MEMOIZE")):
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name.endswith("GET"):
            self.stack.append(self.memo[argument])
        elif name in _INSTRUCTIONS:
            _INSTRUCTIONS[name](self, argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _ForbiddenError(f"instruction {name}")

    def since_mark(self) -> list[Any]:
        start = max(at for at, item in enumerate(self.stack) if item is _MARK)
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def last(self, count: int) -> list[Any]:
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def set_items(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or not all(isinstance(key, str) for key in items[::2]):
            raise _ForbiddenError("a dict whose keys are not text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise _ForbiddenError("items of no list")
        self.stack[-1].extend(items)

    def call(self) -> None:
        function, arguments = self.last(2)
        name = function.name.replace("numpy._core", "numpy.core")
        if name == "numpy dtype" and _NUMBERS.match(arguments[0]):
            self.stack.append(_Named(arguments[0]))
        elif name == "numpy.core.multiarray _reconstruct" and arguments[0].name == "numpy ndarray":
            self.stack.append([])
        elif name == "numpy.core.multiarray scalar":
            self.stack += _numbers(arguments[0], arguments[1])
        elif name == "numpy.core.numeric _frombuffer":
            self.stack.append(_numbers(arguments[1], arguments[0]))
        elif name == "__builtin__ bytes" and not arguments:
            self.stack.append(b"")
        elif name == "_codecs encode":
            self.stack.append(arguments[0].encode("latin-1"))
        else:
            raise _ForbiddenError(f"a call of {function.name}")

    def build(self) -> None:
        target, state = self.stack[-2], self.stack.pop()
        if isinstance(target, _Named):  # a dtype gets its byte order
            target.name = state[1] + target.name.lstrip("<>=|")
        elif isinstance(target, list) and not target:  # in place: the memo and containers hold the array
            target.extend(_numbers(state[2], state[4]))
        else:
            raise _ForbiddenError("a state of no array")


def _numbers(dtype: _Named, data: bytes | bytearray | str) -> list[Any]:
    raw = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 has bytes as text
    if not _NUMBERS.match(dtype.name):
        raise _ForbiddenError(f"numbers of dtype {dtype.name}")
    return np.frombuffer(raw, dtype.name).tolist()


_LITERALS = (
    *("INT", "BININT", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BIN"),
    *("UNICODE", "BINUNICODE", "BINBYTES", "BYTEARRAY8"),
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    "LONG": lambda m, value: m.stack.append(value),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "APPEND": lambda m, _: m.extend(m.last(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.last(3))),
    "DICT": lambda m, _: [items := m.since_mark(), m.stack.append({}), m.set_items(items)],
    "SETITEM": lambda m, _: m.set_items(m.last(2)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, name: m.stack.append(_Named(name)),
    "STACK_GLOBAL": lambda m, _: m.stack.append(_Named(" ".join(m.last(2)))),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.build(),
}
