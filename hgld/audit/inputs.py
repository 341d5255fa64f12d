"""Items to audit: embeddings with labels, keys and splits, of files or of a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from torch import Tensor

from hgld.audit.audit import Audit, AuditOptions, audit
from hgld.audit.picture_copies import PictureCopies
from hgld.errors import InputError, TableError, quoted
from hgld.evaluation.embedding_files import (
    KEY,
    SPLIT,
    check_same_items,
    read_embeddings,
    read_keys,
    read_labels,
)

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset


@dataclass(frozen=True, eq=False)
class Audited:
    """Items to audit.

    Attributes:
        embeddings: (N, D).
        labels: (N, L) int64, finest first, -1 where unknown.
        levels: names of the levels.
        names: class names a level.
        keys: of the items; None: they have none.
        splits: of the items; None: they have none.
        dataset: with the pictures of these items, in the same order; None: there are no pictures.
    """

    embeddings: Tensor | np.ndarray
    labels: np.ndarray
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    keys: list[str] | None
    splits: list[str] | None
    dataset: "ShardDataset | None" = None

    @classmethod
    def of_dataset(cls, embeddings: Tensor | np.ndarray, dataset: "ShardDataset") -> "Audited":
        """Return the items of a dataset with their embeddings, in its order."""
        splits = dataset.frame[SPLIT].cast(pl.String).to_list()
        labels, names = dataset.labels.numpy().astype(np.int64), dataset.hierarchy.names
        return cls(embeddings, labels, dataset.levels, names, dataset.keys.to_list(), splits, dataset)

    @classmethod
    def of_files(cls, embeddings: Path, labels: Path | None, levels: Sequence[str] | None) -> "Audited":
        """Read embeddings and labels of files.

        Args:
            embeddings: see :func:`hgld.evaluation.embedding_files.read_embeddings`.
            labels: parquet or CSV with a column a level, and maybe key and split; None: ``X.labels.parquet`` beside
                ``X.npy``.
            levels: columns, finest first; None: all others than key and split.

        Raises:
            InputError: a file cannot be read, or the files do not belong together.
        """
        read, file = read_embeddings(embeddings), labels or embeddings.with_suffix(".labels.parquet")
        table = read_labels(file, levels)
        wanted = levels or [name for name in table.columns if name not in (KEY, SPLIT)]
        check_same_items(read, table, (embeddings, file))
        coded = [_coded(table[level]) for level in wanted]
        splits = table[SPLIT] if SPLIT in table.columns else None
        keys = table[KEY] if KEY in table.columns else read.keys
        return cls(
            read.values,
            np.stack([codes for codes, _ in coded], axis=1),
            tuple(wanted),
            tuple(names for _, names in coded),
            None if keys is None else keys.cast(pl.String).to_list(),
            None if splits is None else splits.to_list(),
        )

    @classmethod
    def of_embedded_dataset(cls, embeddings: Path, labels: Path | None, dataset: "ShardDataset") -> "Audited":
        """Read embeddings of a dataset's items, which are known by their keys.

        Args:
            embeddings: of some or all items, in any order.
            labels: table with their keys; None: ``X.labels.parquet`` beside ``X.npy``, where the file has no keys.
            dataset: the dataset.

        Raises:
            InputError: a file cannot be read, a key is there twice or is no item of the dataset.
        """
        read, file = read_embeddings(embeddings), labels or embeddings.with_suffix(".labels.parquet")
        keys = (read.keys if read.keys is not None and labels is None else read_keys(file)).cast(pl.String)
        if len(keys) != read.values.shape[0]:
            raise TableError(f"{file} has {len(keys)} rows, {embeddings} {read.values.shape[0]}; expected as many.")
        if len(twice := keys.filter(keys.is_duplicated())):
            raise InputError(f"{file}: key {quoted(twice[0])} has several embeddings; expected one an item.")
        places = pl.DataFrame({KEY: dataset.keys.cast(pl.String), "at": np.arange(len(dataset))})
        at = pl.DataFrame({KEY: keys}).join(places, on=KEY, how="left", maintain_order="left")["at"]
        if at.null_count():
            strange = keys.filter(at.is_null())
            raise InputError(
                f"{file}: {len(strange):,} of its keys are no items of {quoted(dataset)}, the first "
                f"{quoted(strange[0])}. Name the dataset that was embedded, or leave --data out."
            )
        return cls.of_dataset(read.values, dataset.select(at.to_list()))

    def audit(self, options: AuditOptions) -> Audit:
        """Audit the items; copies across splits are looked for in the pictures where there are any."""
        pictures, unreadable = None, []
        if self.dataset is not None and self.splits is not None and len(set(self.splits)) > 1:
            pictures = PictureCopies(self.dataset.image, len(self.dataset), options.progress)
            unreadable = pictures.unreadable
        given: dict[str, Any] = {"keys": self.keys, "splits": self.splits, "pictures": pictures}
        found = audit(self.embeddings, self.labels, levels=self.levels, names=self.names, options=options, **given)
        if not unreadable:
            return found
        return found.noted(
            f"{len(unreadable):,} pictures cannot be read and are compared with none; the first: {unreadable[0]}"
        )


def _coded(column: pl.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return (N,) class numbers, -1 where unknown, and the classes' names: of ids their digits."""
    if column.dtype.is_integer():
        column = column.set(column < 0, None)
    classes = column.drop_nulls().unique().sort()
    if classes.is_empty():
        return np.full(len(column), -1), ()
    codes = column.replace_strict(classes, pl.Series(range(len(classes))), default=-1, return_dtype=pl.Int64)
    return codes.fill_null(-1).to_numpy(), tuple(classes.cast(pl.String).to_list())
