"""Embeddings from npy and safetensors files, and their labels from parquet and CSV."""

from collections.abc import Sequence, Sized
from pathlib import Path

import numpy as np
import polars as pl
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hgld.errors import InputError, TableError, excerpt, quoted
from hgld.files import reading_tensors
from hgld.labels import Array, known_classes
from hgld.tables import NUMPY_FAULTS, read_csv, read_parquet

KEY, SPLIT = "key", "split"
_MOST_VALUES = 1 << 36  # maximum number of values in a file: 256 GiB of float32


def read_embeddings(path: str | Path) -> Array:
    """Read the (N, D) embeddings of a file whose suffix names its format.

    - ``.npy``: an (N, D) array, memory-mapped; pickled objects are never loaded
    - ``.safetensors``: the tensor ``embeddings``, or the only tensor, (N, D); float16 and bfloat16 are supported

    Raises:
        InputError: the format is unknown, the file cannot be read, or it has no table of floating-point numbers.
    """
    file = Path(path)
    readers = {".npy": _read_npy, ".safetensors": _read_safetensors}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        hint = " numpy.save writes them." if file.suffix in (".pt", ".pth", ".pkl") else ""
        raise InputError(f"{file}: suffix {quoted(file.suffix)}; expected embeddings as {', '.join(readers)}.{hint}")
    try:
        values = reader(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error}).") from error
    except (*NUMPY_FAULTS, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not a readable {file.suffix} file ({excerpt(error)}).") from error
    if values.ndim != 2 or 0 in values.shape or values.shape[0] * values.shape[1] > _MOST_VALUES:
        raise InputError(f"{file}: the table has shape {tuple(values.shape)}; expected (N, D), one row per item.")
    floating = values.is_floating_point() if isinstance(values, Tensor) else np.issubdtype(values.dtype, np.floating)
    if not floating:
        raise InputError(
            f"{file}: dtype {values.dtype}; expected float16, float32 or float64 (bfloat16 in safetensors)."
        )
    return values


def _read_npy(file: Path) -> np.ndarray:
    return np.lib.format.open_memmap(file, mode="r")


def _read_safetensors(file: Path) -> Tensor:
    with reading_tensors(file), safe_open(str(file), framework="pt") as stored:
        names = list(stored.keys())
        tables = [name for name in names if len(stored.get_slice(name).get_shape()) == 2]
        chosen = ["embeddings"] if "embeddings" in names else tables
        if len(chosen) != 1:
            raise InputError(
                f"{file} holds the tensors {excerpt(', '.join(names)) or '(none)'}; expected one two-dimensional "
                "tensor, or a tensor named 'embeddings'."
            )
        return stored.get_tensor(chosen[0])


def _read_table(file: Path) -> pl.DataFrame:
    if file.suffix.lower() == ".parquet":
        return read_parquet(file)
    if file.suffix.lower() == ".csv":
        return read_csv(file)
    raise TableError(f"{file}: suffix {quoted(file.suffix)}; expected labels as .parquet or .csv.")


def read_labels(path: str | Path, levels: Sequence[str] | None) -> pl.DataFrame:
    """Read the levels' columns of a label table.

    Args:
        path: parquet file, or CSV file with a header.
        levels: names of the columns, finest first; a column holds integer class ids or class names. None: all columns
            except ``key`` and ``split``.

    Returns:
        ``key`` and ``split`` (as text) if the file has them, then the levels' columns, in the order of the file; null
        is unknown. Blanks around names are removed.

    Raises:
        TableError: the suffix is unknown, the file cannot be read, a column is missing, or a column has the wrong type
            (for example numbers with a fraction in a CSV file).
    """
    file = Path(path)
    table = _read_table(file)
    levels = [name for name in table.columns if name not in (KEY, SPLIT)] if levels is None else levels
    missing = [level for level in levels if level not in table.columns]
    if not levels or len(set(levels)) != len(levels):
        raise TableError(
            f"{file}: levels are {', '.join(levels) or 'none'}; expected columns of the file, each once, finest first."
        )
    if missing:
        raise TableError(
            f"{file}: no column {', '.join(map(repr, missing))}; its columns are {excerpt(', '.join(table.columns))}. "
            "Choose the levels among them, finest first."
        )
    is_csv = file.suffix.lower() == ".csv"
    read = [known_classes(table[level], f"{file}: column {quoted(level)}", is_csv=is_csv) for level in levels]
    about = [table[name] for name in (KEY, SPLIT) if name in table.columns and name not in levels]
    about = [column.cast(pl.String).fill_null("") if column.name == SPLIT else column for column in about]
    return pl.DataFrame([*about, *read])


def read_keys(path: Path) -> pl.Series:
    """Read the column ``key`` of a label table.

    Raises:
        TableError: the table cannot be read, or has no column ``key``.
    """
    table = _read_table(path)
    if KEY not in table.columns:
        raise TableError(f"{path}: no column {KEY!r}; its columns are {excerpt(', '.join(table.columns))}.")
    return table[KEY]


def check_row_count(embeddings: Array, labels: Sized, files: tuple[str | Path, str | Path]) -> None:
    """Raise an error if a table of labels or keys does not have one row per embedding.

    Args:
        embeddings: (N, D) array.
        labels: rows of the table.
        files: paths of the embeddings and of the table, for messages.

    Raises:
        TableError: the table does not have one row per embedding.
    """
    if len(labels) != len(embeddings):
        raise TableError(
            f"{files[1]} has {len(labels)} rows, but {files[0]} has {len(embeddings)} embeddings; expected one row per "
            "embedding, in the same order."
        )


def read_labelled(
    embeddings: str | Path, labels: str | Path, levels: Sequence[str] | None
) -> tuple[Array, pl.DataFrame]:
    """Read the embeddings of a file and the table of their labels (:func:`read_embeddings`, :func:`read_labels`).

    Raises:
        InputError: a file cannot be read, or the table does not have one row per embedding.
    """
    values, table = read_embeddings(embeddings), read_labels(labels, levels)
    check_row_count(values, table, (embeddings, labels))
    return values, table


def read_keyed(files: Sequence[str | Path], labels: str | Path | None) -> tuple[list[np.ndarray], pl.Series]:
    """Read the embeddings of a dataset's items, and their keys.

    Args:
        files: files of embeddings.
        labels: table of the keys, if there is one file. None: ``X.labels.parquet`` in the folder of ``X.npy``.

    Returns:
        the (N, D) table of each file, and the keys of all files in one column.

    Raises:
        InputError: a file cannot be read or has no keys, dimensions differ, or a key is repeated.
    """
    vectors, keys = [], []
    for file in map(Path, files):
        read = read_embeddings(file)
        table = Path(labels) if labels is not None else file.with_suffix(".labels.parquet")
        if not table.is_file():
            raise InputError(
                f"{file}: its items have no keys, because there is no {table}. hgld embed writes this file; or pass a "
                "table with a column key as --labels."
            )
        own = read_keys(table)
        check_row_count(read, own, (file, table))
        vectors.append(read if isinstance(read, np.ndarray) else read.float().numpy())
        keys.append(own.cast(pl.String))
    if len({table.shape[1] for table in vectors}) > 1:
        raise InputError(f"{', '.join(map(str, files))}: embeddings differ in dimension; expected files of one model.")
    together = pl.concat(keys)
    if len(twice := together.filter(together.is_duplicated())):
        raise InputError(
            f"{', '.join(map(str, files))}: key {quoted(twice[0])} has several embeddings; expected one per key."
        )
    return vectors, together
