"""Readers of published ground truth files: In-Shop, Google Landmarks v2, revisited Oxford and Paris."""

import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from hgld.errors import InputError, TableError, excerpt, quoted
from hgld.files import check_pickles
from hgld.tables import read_csv, read_text

# -- In-Shop ----------------------------------------------------------------------------------------------------------

_IN_SHOP = ["image_name", "item_id", "evaluation_status"]


def read_in_shop(path: str | Path) -> pl.DataFrame:
    """Read ``list_eval_partition.txt`` of DeepFashion In-Shop Clothes Retrieval (Liu et al., CVPR 2016).

    Returns:
        a table in the order of the file, with the columns image (text), item (text, ``id_00000001``), label (Int32, the
        rank of the item's name) and split (``train``, ``query`` or ``gallery``).

    Raises:
        TableError: a line does not consist of image, item and split, or the number of lines differs from the number in
            the first line.
    """
    file = Path(path)
    lines = [line.split() for line in read_text(file).splitlines()]
    if len(lines) < 2 or lines[1] != _IN_SHOP:
        raise TableError(f"{file}: expected the number of images, then the header {' '.join(_IN_SHOP)}.")
    rows = [words for words in lines[2:] if words]
    if lines[0] != [str(len(rows))]:
        raise TableError(
            f"{file}: {len(rows)} images; its first line says {quoted(' '.join(lines[0]))}. Is the file complete?"
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
        private: relevant index images of every test image of the private half.
        ignored: test images that are not scored.
    """

    public: Mapping[str, tuple[str, ...]]
    private: Mapping[str, tuple[str, ...]]
    ignored: frozenset[str]


def read_retrieval_solution(path: str | Path) -> RetrievalSolution:
    """Read ``retrieval_solution_v2.1.csv`` with the columns id, images (ids separated by spaces, or None) and Usage.

    Raises:
        TableError: the columns differ, a usage is unknown, a test image occurs twice, or a scored test image has no
            relevant images.
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
            raise TableError(f"{where}: the image is missing or repeated; expected every test image once.")
        seen.add(test_image)
        relevant = () if images in (None, "None") else tuple(dict.fromkeys(str(images).split()))
        if usage != "Ignored" and not relevant:
            raise TableError(
                f"{where}: no relevant images, but Usage is {usage}; expected at least one image id, or Usage Ignored."
            )
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
        hard: for every query the gallery indices of its hard images.
        junk: for every query the gallery indices of images that are never ranked.
    """

    images: tuple[str, ...]
    queries: tuple[str, ...]
    boxes: np.ndarray
    easy: tuple[np.ndarray, ...]
    hard: tuple[np.ndarray, ...]
    junk: tuple[np.ndarray, ...]


def read_revisited(path: str | Path) -> RevisitedGroundTruth:
    """Read ``gnd_roxford5k.pkl`` or ``gnd_rparis6k.pkl`` as published, without running code from the pickle.

    Raises:
        InputError: the file is not a complete pickle of at most 64 MiB, holds types other than lists, dicts, text,
            numbers and arrays of numbers, or lacks a part of the ground truth.
    """
    file = Path(path)
    data = _read_pickle(file)
    if not isinstance(data, dict) or not {"imlist", "qimlist", "gnd"} <= data.keys():
        raise InputError(f"{file}: expected a dict with imlist, qimlist and gnd, as gnd_roxford5k.pkl holds it.")
    for key in ("imlist", "qimlist"):
        if not _is_list_of(data[key], str) or not data[key]:
            raise InputError(f"{file}: {key} is not a list of image names.")
    images, queries, entries = tuple(data["imlist"]), tuple(data["qimlist"]), data["gnd"]
    if not _is_list_of(entries, _Entries):
        raise InputError(f"{file}: gnd is not a list of dicts.")
    if len(entries) != len(queries):
        raise InputError(f"{file}: gnd has {len(entries)} entries; expected {len(queries)}, one per query of qimlist.")
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
            raise InputError(f"{file}: gnd[{number}] lists an image twice; expected it once under easy, hard or junk.")
        if not _is_list_of(entry.get("bbx"), int, float) or len(entry["bbx"]) != 4:
            raise InputError(f"{file}: gnd[{number}]['bbx'] is not a box of four numbers.")
    boxes = np.array([entry["bbx"] for entry in entries], np.float64).reshape(-1, 4)
    return RevisitedGroundTruth(images, queries, boxes, **{part: tuple(indices) for part, indices in lists.items()})


def _is_list_of(values: object, *types: type) -> bool:
    return isinstance(values, list | tuple) and all(type(value) in types for value in values)


# -- safe reading of a pickle ------------------------------------------------------------------------------------------
#
# A pickle can call any function by name. This reader turns names into inert objects; only the few calls with which
# numpy stores arrays of numbers are carried out, and they make flat lists. The reader extends Python's pickle module in
# Python, because the C version allocates as much memory as a file requests.

_MOST_PICKLE_BYTES = 64 << 20
_NUMBERS = re.compile(r"[<>=|]?(i[1248]|u[1248]|f[248])\Z")


class _Entries(dict[str, Any]):
    """A dict from the pickle. Only text keys are allowed, because hashing a deeply nested key overflows the stack."""

    def __setitem__(self, key: object, value: Any) -> None:
        if not isinstance(key, str):
            raise pickle.UnpicklingError("a dict whose keys are not text")
        super().__setitem__(key, value)


class _Numbers(list[Any]):
    """An array of numbers from the pickle, as a flat list."""

    def __setstate__(self, state: Any) -> None:
        self[:] = _numbers(state[2], state[4])


class _Named:
    """A name in the pickle, which can be called only if it is one of numpy's array functions; or an array's dtype."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> Any:
        name = self.name.replace("numpy._core", "numpy.core")
        if name == "numpy dtype" and _NUMBERS.match(arguments[0]):
            return _Named(arguments[0])
        if name == "numpy.core.multiarray _reconstruct" and arguments[0].name == "numpy ndarray":
            return _Numbers()
        if name == "numpy.core.multiarray scalar":
            return _numbers(*arguments)[0]
        if name == "numpy.core.numeric _frombuffer":
            return _numbers(arguments[1], arguments[0])
        if name == "__builtin__ bytes" and not arguments:
            return b""
        if name == "_codecs encode":
            return arguments[0].encode("latin-1")
        raise pickle.UnpicklingError(f"a call of {self.name}")

    def __setstate__(self, state: Any) -> None:
        self.name = state[1] + self.name.lstrip("<>=|")  # the state of a dtype has its byte order at index 1


def _numbers(dtype: _Named, data: bytes | bytearray | str) -> list[Any]:
    raw = data.encode("latin-1") if isinstance(data, str) else data  # pickles of Python 2 store bytes as text
    if not _NUMBERS.match(dtype.name):
        raise pickle.UnpicklingError(f"numbers of dtype {dtype.name}")
    return np.frombuffer(raw, dtype.name).tolist()


# the unpickler written in Python, whose methods can be replaced; Any: typeshed does not list its attributes
_READER: Any = pickle._Unpickler


class _PlainUnpickler(_READER):
    """Unpickler of plain data: lists, dicts with text keys, text, numbers, and arrays of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        return _Named(f"{module} {name}")

    def load_empty_dict(self) -> None:
        self.append(_Entries())

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append(found := _Entries())
        for key, value in zip(items[::2], items[1::2], strict=True):
            found[key] = value

    dispatch: ClassVar[dict[int, Any]] = {
        **_READER.dispatch,
        pickle.EMPTY_DICT[0]: load_empty_dict,
        pickle.DICT[0]: load_dict,
    }
    for _opcode in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET):
        del dispatch[_opcode[0]]


def _read_pickle(file: Path) -> Any:
    try:
        size = file.stat().st_size
        if size > _MOST_PICKLE_BYTES:
            raise InputError(f"{file}: {size} bytes; expected a pickle of at most {_MOST_PICKLE_BYTES}.")
        data = file.read_bytes()
        check_pickles(io.BytesIO(data))
        return _PlainUnpickler(io.BytesIO(data), encoding="latin-1").load()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}).") from error
    except (pickle.UnpicklingError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{file}: not a complete pickle of plain data ({excerpt(error)}). hgld reads only lists, dicts, text, "
            "numbers and arrays from pickles, never code; download the file from the benchmark's website."
        ) from error
