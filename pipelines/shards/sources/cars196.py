"""Cars196 (Stanford Cars): 196 models of cars under nine body types.

Krause, Stark, Deng, Fei-Fei: "3D Object Representations for Fine-Grained Categorization", 3dRR 2013. One of two
layouts::

    cars_annos.mat                      annotations (relative_im_path, class, test, ...), class_names
    car_ims/000001.jpg ...

    devkit/cars_meta.mat                class_names
    devkit/cars_train_annos.mat         annotations (fname, class, ...)
    cars_test_annos_withlabels.mat      the same of the test images; in devkit/ or beside it
    cars_train/00001.jpg ... cars_test/00001.jpg ...
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from hgld.errors import InputError, TableError, quoted

from ..catalog import Catalog, safe_key
from .release import keep_splits, read_bytes, read_mats, refuse_options, relative_path
from .taxonomies import classes_of

if TYPE_CHECKING:
    from ..config import SourceConfig


_HEADER = 128  # bytes, the last two of which state the byte order
_TAG = 8  # bytes of an element's type and size
_COMPRESSED = 15
_PIECE = 1 << 20


def refuse_large_mat(path: Path, obtain: str, *, most: int) -> None:
    """Refuse a MATLAB file (version 5) whose variables are larger than ``most`` bytes together when decompressed.

    The variables are compressed one by one, and the check does not hold them in memory. A file that is not a MATLAB
    file is left to its reader to refuse.

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
                f"{path}: decompresses to more than {most:,} bytes, too many for a list of a release. {obtain}"
            )
        position += _TAG + length


def _decompressed(element: memoryview, most: int) -> int:
    """Return the decompressed size of an element, counted to just above ``most``, or up to a damaged byte."""
    stream, size, rest = zlib.decompressobj(), 0, bytes(element)
    try:
        while size <= most and not stream.eof:
            piece = stream.decompress(rest, _PIECE)
            rest = stream.unconsumed_tail
            size += len(piece)
            if not piece and not rest:
                break
    except zlib.error:
        pass  # the reader reports the damage
    return size


# Cars196 (Stanford Cars): 196 models of cars under nine body types.
#
# Krause, Stark, Deng, Fei-Fei: "3D Object Representations for Fine-Grained Categorization", 3dRR 2013. One of two
# layouts::
#
#     cars_annos.mat                      annotations (relative_im_path, class, test, ...), class_names
#     car_ims/000001.jpg ...
#
#     devkit/cars_meta.mat                class_names
#     devkit/cars_train_annos.mat         annotations (fname, class, ...)
#     cars_test_annos_withlabels.mat      the same of the test images; in devkit/ or beside it
#     cars_train/00001.jpg ... cars_test/00001.jpg ...

LEVELS = ("model", "type")
OBTAIN = "Get the files as `hgld datasets cars196` says."
TAXONOMY = "cars196_taxonomy.csv"
WITH_LABELS = "cars_test_annos_withlabels.mat"
LISTS = ("classification-train", "classification-test")  # the release's own split
_MOST_BYTES = 128 << 20  # limit of a decompressed MATLAB file; the release's are far smaller


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of Cars196: the first half of the classes is train, the second half test.

    Args:
        source: the folder that holds ``cars_annos.mat``, or the one that holds ``devkit``.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that Cars196 does not take.
        InputError: a file of either layout is missing.
        TableError: a MATLAB file cannot be read, or its classes are not those of Cars196.
    """
    refuse_options(options, (), "cars196")
    release = _read_release(source)
    tree = classes_of(TAXONOMY, dict(enumerate(release.classes, start=1)), str(release.sources[0]))
    rows, listed = [], []
    for where, file, number, name in release.images:
        if number not in tree:
            raise TableError(f"{where}: class {number}; expected 1 to {len(tree)}.")
        key = safe_key(file.rpartition(".")[0])
        rows.append((key, "train" if number <= len(tree) // 2 else "test", file, *tree[number]))
        listed.append((name, key))
    schema = ["key", "split", "file", *LEVELS]
    items = pl.DataFrame(rows, schema=dict.fromkeys(schema, pl.String), orient="row")
    items = keep_splits(items, options.splits, "cars196")
    lists = pl.DataFrame(listed, schema={"list": pl.String, "key": pl.String}, orient="row")
    return Catalog(
        name="cars196",
        levels=LEVELS,
        items=items,
        root=source,
        lists=lists.filter(pl.col("key").is_in(items["key"].implode())),
        sources=release.sources,
        protocol="cars196",
    )


class _Release(NamedTuple):
    """Classes and images as a layout states them.

    Attributes:
        classes: their names, in the order of their numbers.
        images: where it is stated (for messages), file, number of its class, list.
        sources: files that were read, the one with the classes first.
    """

    classes: list[str]
    images: list[tuple[str, str, int, str]]
    sources: tuple[Path, ...]


def _read_release(source: Path) -> _Release:
    if (source / "cars_annos.mat").is_file():
        return _read_whole(source / "cars_annos.mat")
    if (source / "devkit").is_dir():
        return _read_parts(source)
    raise InputError(f"{source} holds neither cars_annos.mat nor devkit/; expected one of them. {OBTAIN}")


def _read_whole(path: Path) -> _Release:
    (found,) = _read_mats({path: ("annotations", "class_names")})
    images = [
        (where, file, number, LISTS[flag != 0])
        for where, file, number, flag in _annotated(path, found["annotations"], "relative_im_path", "class", "test")
    ]
    return _Release(_texts(path, found["class_names"]), images, (path,))


def _read_parts(source: Path) -> _Release:
    devkit = source / "devkit"
    meta, train = devkit / "cars_meta.mat", devkit / "cars_train_annos.mat"
    test = next((f for f in (source / WITH_LABELS, devkit / WITH_LABELS) if f.is_file()), source / WITH_LABELS)
    found = _read_mats({meta: ("class_names",), train: ("annotations",), test: ("annotations",)})
    classes = _texts(meta, found[0]["class_names"])
    images = []
    for path, folder, name, read in (
        (train, "cars_train", LISTS[0], found[1]),
        (test, "cars_test", LISTS[1], found[2]),
    ):
        for where, file, number in _annotated(path, read["annotations"], "fname", "class"):
            images.append((where, f"{folder}/{file}", number, name))
    return _Release(classes, images, (meta, train, test))


def _read_mats(wanted: Mapping[Path, Sequence[str]]) -> list[dict[str, Any]]:
    for path in wanted:
        refuse_large_mat(path, OBTAIN, most=_MOST_BYTES)
    return read_mats(wanted, OBTAIN)


def _annotated(path: Path, annotations: np.ndarray, name: str, *numbers: str) -> Iterator[tuple[Any, ...]]:
    """Yield every image: where it is stated (for messages), its file, and its numeric fields."""
    fields = annotations.dtype.names or ()
    missing = [field for field in (name, *numbers) if field not in fields]
    if missing:
        raise TableError(
            f"{path}: its annotations lack {quoted(missing[0])}; found {', '.join(fields) or 'no fields'}."
        )
    for index, entry in enumerate(annotations.ravel(), start=1):
        where = f"{path}, annotation {index}"
        file = relative_path(_text(where, entry[name]), where)
        yield where, file, *(_number(where, field, entry[field]) for field in numbers)


def _texts(path: Path, names: np.ndarray) -> list[str]:
    return [_text(f"{path}, class {number}", name) for number, name in enumerate(names.ravel(), start=1)]


def _text(where: str, value: Any) -> str:
    found = np.asarray(value).ravel()
    if found.size != 1 or not isinstance(found[0], str):
        raise TableError(f"{where}: {found.size} values of {found.dtype}; expected one text.")
    return str(found[0])


def _number(where: str, field: str, value: Any) -> int:
    found = np.asarray(value).ravel()
    if found.size != 1 or found.dtype.kind not in "iub":
        raise TableError(f"{where}: {field} has {found.size} values of {found.dtype}; expected one whole number.")
    return int(found[0])
