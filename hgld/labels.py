"""Readers of labels: class numbers or names, in lists, arrays, columns, tables or datasets."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import polars as pl
from torch import Tensor

from hgld.errors import ConfigError, HierarchyError, InputError, TableError, excerpt, quoted
from hgld.tables import POLARS_FAULTS

_UNKNOWN = r"^(?:-[0-9]+)?$"  # texts that mean an unknown class: empty, or a number below 0
_DIGITS = r"^[+-]?[0-9]+$"
_MOST_NAME_BYTES = 1 << 16  # parquet can store a name of megabytes once for millions of rows


class Labelled(Protocol):
    """A dataset with labels (N, L) and the names of their levels."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def levels(self) -> tuple[str, ...]: ...


Array = Tensor | np.ndarray
Labels = Any
"""Labels of N items, read by :func:`class_numbers`: integers (N, L) or (N,), finest level first, or class names.

An array or tensor; a list of numbers, names or rows; a column (Series) or a table of pandas, polars or Arrow, or a
mapping of level to column; a dataset.
"""


def class_numbers(
    *sides: Labels,
    levels: Sequence[str] | None = None,
    what: Sequence[str] = ("labels",),
    numbered_for: str | None = None,
) -> tuple[list[np.ndarray], tuple[str, ...] | None]:
    """Read labels of one or several groups of items; a class gets the same number in all groups.

    Args:
        sides: labels of each group, for example of queries and of the gallery; all with the same levels.
        levels: columns to read from tables and datasets, finest first; None: all columns.
        what: name of each group's labels in messages.
        numbered_for: name of a feature that accepts only class numbers, because it stores something per class; None:
            class names are accepted.

    Returns:
        (N, L) integers per group, or (N,) for a plain array with one axis; and the names of the levels (a table's
        columns, a dataset's levels, or None). Class numbers are unchanged. A class name becomes its index in the sorted
        names of its level. Unknown labels (None, NaN, an empty name) become negative.

    Raises:
        InputError: labels are neither numbers nor names, one group has numbers and another group has names, or the
            levels differ.

    >>> numbers, levels = class_numbers({"animal": ["cat", "dog", None], "kind": ["pet", "pet", "pet"]})
    >>> numbers[0].tolist(), levels
    ([[0, 0], [1, 0], [-1, 0]], ('animal', 'kind'))
    """
    arrays = [_as_numbers(labels) for labels in sides]
    if all(array is not None for array in arrays):
        return [array for array in arrays if array is not None], None
    called = [what[min(side, len(what) - 1)] for side in range(len(sides))]
    read = [class_columns(one, levels, name) for one, name in zip(sides, called, strict=True)]
    tables = [table for table, _ in read]
    if numbered_for is not None and any(pl.String in table.dtypes for table in tables):
        raise InputError(
            f"{' and '.join(called)} are class names; {numbered_for} stores data per class and needs the same class "
            "numbers in every batch: hgld.Hierarchy.from_columns numbers the classes of a table."
        )
    if len(widths := {table.width for table in tables}) > 1:
        raise InputError(f"{' and '.join(called)} have {sorted(widths)} levels; both sides need the same levels.")
    named = [names for _, names in read if names is not None]
    if len(set(named)) > 1:
        found = " and ".join(", ".join(one) for one in named)
        raise InputError(
            f"{' and '.join(called)} have the columns {found}; both sides need the same columns in the same order."
        )
    return label_codes(tables, tables[0].columns), named[0] if named else None


def distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values of (N,) integers in ascending order, and the index of every integer among them.

    The result equals ``np.unique``, but integers that are close together, such as class numbers, need no sorting.
    """
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    if high - low > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)
    # computed in 64 bits, because in 8 or 16 bits the difference may not fit
    shifted = np.subtract(numbers, low, dtype=np.int64)
    there = np.zeros(high - low + 1, bool)
    there[shifted] = True
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[shifted]


SIDES = ("query", "gallery")


def read_label_sides(
    sides: Sequence[Labels], counts: Sequence[int], levels: Sequence[str] | None, called: Sequence[str] = SIDES
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Read the labels of queries and gallery, or of one group of items, and check that the classes form a tree.

    Args:
        sides: labels of each group, in any form that :func:`class_numbers` reads.
        counts: expected number of items of each group.
        levels: names of the L levels, or of a table's columns; None: a table's columns, a dataset's levels, or
            ``level0``, ``level1``, ...
        called: name of each group in messages.

    Returns:
        (N, L) int64 class numbers per group, -1 if unknown; and the names of the levels.

    Raises:
        InputError: labels have the wrong shape or dtype, or the groups have different levels.
        ConfigError: level names repeat or are empty, or there is not one name per level.
        HierarchyError: a class has two parents.
    """
    numbers, named = class_numbers(*sides, levels=levels, what=[f"{side} labels" for side in called])
    tables = [_label_table(*one) for one in zip(numbers, counts, called, strict=False)]
    num_levels = tables[0].shape[1]
    if tables[-1].shape[1] != num_levels:
        raise InputError(
            f"query labels have {num_levels} levels and gallery labels {tables[-1].shape[1]}; "
            "both sides need the same levels in the same order."
        )
    levels = levels if named is None else named
    names = tuple(f"level{column}" for column in range(num_levels)) if levels is None else tuple(levels)
    if isinstance(levels, str) or len(names) != num_levels or len(set(names)) != num_levels or not all(names):
        raise ConfigError(
            f"levels are {quoted(levels)} for labels of {num_levels} columns; expected one distinct name per column."
        )
    _check_tree(np.concatenate(tables), names)
    return tables, names


def _label_table(table: np.ndarray, count: int, side: str) -> np.ndarray:
    """Return labels as (N, L) int64, -1 if unknown."""
    if not np.issubdtype(table.dtype, np.integer):
        raise InputError(
            f"{side} labels have dtype {table.dtype}; expected integer class ids (-1 for unknown). "
            "Convert them if they are whole numbers; hgld.labels.class_numbers numbers the names of classes."
        )
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != count or table.shape[1] == 0:
        raise InputError(
            f"{side} labels have shape {table.shape} for {count} embeddings; expected ({count}, L), finest "
            f"level first, or ({count},) for one level."
        )
    if table.dtype == np.uint64 and int(table.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{side} labels reach {int(table.max())}; expected class ids below 2^63.")
    return np.maximum(table.astype(np.int64), -1)


def _check_tree(labels: np.ndarray, levels: Sequence[str]) -> None:
    """Raise an error if a class has two parents at a coarser level; pairs with an unknown label are ignored."""
    for fine, coarse in itertools.combinations(range(len(levels)), 2):
        known = (labels[:, fine] >= 0) & (labels[:, coarse] >= 0)
        classes, member = distinct(labels[:, fine])
        parent = np.full(len(classes), -1)
        parent[member[known]] = labels[known, coarse]
        wrong = known & (parent[member] != labels[:, coarse])
        if wrong.any():
            torn = np.unique(labels[wrong, fine])
            parents = np.unique(labels[known & (labels[:, fine] == torn[0]), coarse])
            raise HierarchyError(
                f"{len(torn)} classes of level {levels[fine]!r} are in more than one class of level "
                f"{levels[coarse]!r}: {torn[0]} under {', '.join(map(str, parents))}. Labels go from fine to coarse, "
                "and every class has one parent."
            )


def class_columns(
    labels: Labels, levels: Sequence[str] | None = None, what: str = "labels"
) -> tuple[pl.DataFrame, tuple[str, ...] | None]:
    """Return a table of ids or names with one column per level, null if unknown, and the names of the levels.

    Args:
        labels: labels in any form that :func:`class_numbers` reads.
        levels: columns to read from tables and datasets, finest first; None: all columns.
        what: name of the labels in messages.

    Raises:
        InputError: the labels are neither numbers nor names, or a level is missing.
    """
    columns = _columns(labels, what)
    if levels is not None and isinstance(columns, dict):
        if missing := [level for level in levels if level not in columns]:
            there = excerpt(", ".join(columns))
            raise InputError(f"{what} have no column {', '.join(map(repr, missing))}; their columns are {there}.")
        columns = {level: columns[level] for level in levels}
    return _frame(columns, what), tuple(columns) if isinstance(columns, dict) else None


def class_names(
    labels: Labels, levels: Sequence[str] | None = None, what: str = "labels"
) -> tuple[tuple[str, ...] | None, ...]:
    """Return per level the class names that the numbers of :func:`class_numbers` index; None if the labels are ids.

    Args:
        labels: labels of one group of items.
        levels: columns to read from tables and datasets, finest first; None: all columns.
        what: name of the labels in messages.

    Raises:
        InputError: the labels are neither numbers nor names.

    >>> class_names({"animal": ["dog", "cat", None], "kind": [7, 7, 7]})
    (('cat', 'dog'), None)
    """
    if (numbers := _as_numbers(labels)) is not None:
        return (None,) * (1 if numbers.ndim == 1 else numbers.shape[1])
    table, _ = class_columns(labels, levels, what)
    return tuple(None if _holds_ids(column) else tuple(_names([column])) for column in table)


# -- numeric labels ---------------------------------------------------------------------------------------------------


_NUMBERS = "biufc"  # numpy's kinds of numeric dtypes; callers check whether floats are acceptable


def _as_numbers(labels: Labels) -> np.ndarray | None:
    """Return the array of a tensor or numeric array; None for other labels, which are read column by column."""
    if isinstance(labels, Tensor):
        return labels.detach().cpu().numpy()
    return labels if isinstance(labels, np.ndarray) and labels.dtype.kind in _NUMBERS else None


# -- columns of tables, lists and datasets ----------------------------------------------------------------------------


def _columns(labels: Labels, called: str) -> dict[str, Any] | list[Any]:
    """Return the columns of a table by name; for labels without names, a list of columns."""
    if (numbers := _as_numbers(labels)) is not None:
        return list(numbers.reshape(len(numbers), -1).T)
    if hasattr(labels, "labels") and hasattr(labels, "levels"):  # a dataset
        return dict(zip(labels.levels, _columns(labels.labels, called), strict=True))
    if isinstance(labels, Mapping):
        return {str(name): column for name, column in labels.items()}
    if hasattr(labels, "column_names"):  # a table of Arrow
        return {str(name): labels.column(name) for name in labels.column_names}
    if hasattr(labels, "columns") and hasattr(labels, "__getitem__"):  # a data frame of pandas or polars
        return {str(name): labels[name] for name in labels.columns}
    if isinstance(labels, np.ndarray):
        return list(labels.reshape(len(labels), -1).T)
    if hasattr(labels, "dtype") or hasattr(labels, "type"):  # a column
        return [labels]
    return _columns_of_rows(labels, called)


def _columns_of_rows(labels: object, called: str) -> list[Any]:
    if isinstance(labels, str | bytes) or not isinstance(labels, Sequence):
        raise InputError(
            f"{called} are {type(labels).__name__}; expected integers or class names: a tensor, an array, a list, a "
            "column or a table of pandas, polars or Arrow, or a dataset (hgld.open_dataset opens a folder)."
        )
    rows = [cell.tolist() if isinstance(cell, Tensor | np.ndarray) else cell for cell in labels]
    if not any(isinstance(row, Sequence) and not isinstance(row, str) for row in rows):
        return [rows]
    widths = {len(row) if isinstance(row, Sequence) and not isinstance(row, str) else 1 for row in rows}
    if len(widths) > 1:
        raise InputError(f"{called} have rows of {sorted(widths)} levels; expected the same number in every row.")
    return [list(column) for column in zip(*rows, strict=True)]


def _frame(columns: dict[str, Any] | list[Any], called: str) -> pl.DataFrame:
    pairs = columns.items() if isinstance(columns, dict) else enumerate(columns)
    names = [f"column {quoted(name)} of {called}" if isinstance(columns, dict) else called for name, _ in pairs]
    values = list(columns.values() if isinstance(columns, dict) else columns)
    series = [known_classes(_series(one, name), name) for one, name in zip(values, names, strict=True)]
    sizes = {len(one) for one in series}
    if len(sizes) != 1:
        raise InputError(f"{called} have columns of {sorted(sizes) or 'no'} items; expected columns of equal length.")
    return pl.DataFrame([one.alias(f"level{column}") for column, one in enumerate(series)])


def _series(column: Any, called: str) -> pl.Series:
    """Convert a column to a polars Series; missing cells become null."""
    if isinstance(column, pl.Series):
        return column
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        return pl.Series(column)
    to_list = next((getattr(column, name) for name in ("to_pylist", "tolist") if hasattr(column, name)), None)
    cells = [None if _is_missing(cell) else cell for cell in (to_list() if to_list else list(column))]
    if any(cell is None for cell in cells):  # pandas turns integers into floats if one is missing
        cells = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells]
    cells = [cell.item() if isinstance(cell, np.generic | Tensor) else cell for cell in cells]
    kinds = {type(cell) for cell in cells if cell is not None}
    if not (kinds <= {int} or kinds <= {str}):
        found = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{called}: found {found}; expected integer class ids, or class names.")
    try:
        return pl.Series(cells, dtype=pl.String if str in kinds else pl.Int64 if kinds else pl.Null)
    except (OverflowError, TypeError, *POLARS_FAULTS) as error:
        raise InputError(f"{called} have class ids beyond 64 bits.") from error


def _is_missing(cell: object) -> bool:
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)


# -- class names and class numbers ------------------------------------------------------------------------------------


def known_classes(column: pl.Series, where: str, *, is_csv: bool = False) -> pl.Series:
    """Return class ids or names. A CSV column holds ids if every cell is a canonical number (01 is a name).

    Raises:
        TableError: the column has another type, or holds numbers with a fraction or very long names.
    """
    dtype = column.dtype
    if dtype.is_integer() or dtype == pl.Null:
        return column
    if not (dtype == pl.String or isinstance(dtype, pl.Categorical | pl.Enum)):
        raise TableError(f"{where} holds {dtype}; expected integer class ids or class names.")
    names = column if dtype == pl.String else column.unique().cast(pl.String)
    if (names.str.len_bytes() > _MOST_NAME_BYTES).any():
        raise TableError(f"{where} holds a name of more than {_MOST_NAME_BYTES:,} bytes; expected shorter names.")
    texts = column.cast(pl.String).str.strip_chars()
    names = texts.set(texts.str.contains(_UNKNOWN), None)
    known = names.drop_nulls()
    if known.is_empty():
        return names.cast(pl.Null)
    if not is_csv:
        return names
    others = known.filter(~known.str.contains(_DIGITS))
    if len(others) and known.cast(pl.Float64, strict=False).null_count() == 0:
        raise TableError(f"{where} holds numbers such as {others[0]}; expected integer class ids or class names.")
    ids = names.cast(pl.Int64, strict=False)
    return ids if ids.cast(pl.String).equals(names, null_equal=True) else names


def label_codes(tables: Sequence[pl.DataFrame], levels: Sequence[str]) -> list[np.ndarray]:
    """Encode labels of one or several tables as integers, with the same meaning in all tables.

    Args:
        tables: tables with one column per level, made by :func:`known_classes`, for example of queries and gallery.
        levels: the columns, finest first.

    Returns:
        for every table (N, L) int64, -1 if unknown. Class ids are unchanged; a name becomes its index in the sorted
        list of all names of its level.

    Raises:
        TableError: a level has ids in one table and names in another table, or ids beyond 64 bits.
    """
    coded = [np.empty((len(table), len(levels)), np.int64) for table in tables]
    for column, level in enumerate(levels):
        parts = [table[level] for table in tables]
        of_ids = {_holds_ids(part) for part in parts if part.dtype != pl.Null}
        if len(of_ids) > 1:
            raise TableError(
                f"level {quoted(level)} has integer ids in one table and names in the other; expected the same in both."
            )
        try:
            if of_ids != {False}:
                codes = [part.cast(pl.Int64).fill_null(-1) for part in parts]
            else:
                names, texts = _names(parts), [part.cast(pl.String) for part in parts]
                numbers = pl.Series(range(len(names)), dtype=pl.Int64)
                codes = [text.replace_strict(names, numbers, default=-1, return_dtype=pl.Int64) for text in texts]
        except pl.exceptions.InvalidOperationError as error:
            raise TableError(f"level {quoted(level)} has class ids beyond 64 bits.") from error
        for table, part in zip(coded, codes, strict=True):
            table[:, column] = part.to_numpy()
    return coded


def _holds_ids(column: pl.Series) -> bool:
    return column.dtype.is_integer() or column.dtype == pl.Null


def _names(parts: Sequence[pl.Series]) -> pl.Series:
    """Return the sorted names of a level in all tables."""
    return pl.concat([part.cast(pl.String) for part in parts]).unique().drop_nulls().sort()
