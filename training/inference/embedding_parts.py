"""Embeddings of a large dataset in parts: each is written when it is done and kept, and all are joined to one table."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hgld.data.dataset import ShardDataset
from hgld.distributed import from_main
from hgld.errors import ConfigError, InputError
from hgld.evaluation.options import Progress
from hgld.files import read_json, write_atomic
from hgld.tables import read_csv, read_parquet

from .embedder import Embedder
from .embedding import faults_file, labels_file, write_embeddings, write_together
from .search_index import embedding_facts

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class JoinedEmbeddings:
    """A file of embeddings that parts were joined to.

    Attributes:
        shape: N and D.
        unreadable: items that were left out.
    """

    shape: tuple[int, int]
    unreadable: int


@dataclass(frozen=True)
class EmbeddingParts:
    """The parts of a file of embeddings: consecutive items of a dataset, in files beside it.

    Attributes:
        out: the ``.npy`` file that they are joined to.
        count: how many parts.
    """

    out: Path
    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.out.suffix != ".npy":
            raise ConfigError(f"{self.count} parts of {self.out}; expected at least 1, of a .npy file.")

    def file(self, number: int) -> Path:
        """Return the file of a part, from 1."""
        return self.out.with_suffix(f".part-{number:04d}-of-{self.count:04d}.npy")

    def items(self, number: int, size: int) -> NDArray[np.int64]:
        """Return which of ``size`` items a part holds."""
        return np.arange(size * (number - 1) // self.count, size * number // self.count)

    def embed(self, number: int, embedder: Embedder, dataset: ShardDataset, progress: Progress | None = None) -> bool:
        """Embed a part and write it, unless it is there, made of the same items by the same model; tell if it was not.

        Several processes share the work of a part. A part is whole once its facts are written, which are the last.

        Raises:
            ConfigError: there is no such part.
            InputError: the part that is there was made by another model, with other options, or of other items.
            StorageError: the disk is full or not writable.
        """
        if not 1 <= number <= self.count:
            raise ConfigError(f"part {number} of {self.count}; expected 1 to {self.count}.")
        chosen = self.items(number, len(dataset))
        if not len(chosen):
            raise ConfigError(f"part {number} of {self.count} of {len(dataset)} items is empty. Take fewer parts.")
        part = dataset.select(chosen)
        file, made_of = self.file(number), _made_of(embedder, dataset)
        found = from_main(_facts(file), embedder.processes)
        if found is not None:
            if found["made_of"] != made_of:
                raise InputError(
                    f"{file} was made by another model, with other options or of other items. Remove it and what lies "
                    "beside it, or write elsewhere."
                )
            return False
        embedded = embedder.embed_readable(part, progress)
        if embedder.processes.is_main:
            write_embeddings(file, embedded.vectors, embedded.dataset, embedded.faults)
            facts = {"made_of": made_of, "first": int(chosen[0]), "shape": list(embedded.vectors.shape)}
            write_atomic(_facts_file(file), json.dumps(facts))
        return True

    def join(self) -> JoinedEmbeddings:
        """Join the parts to one file, its labels and faults, and remove them.

        Raises:
            InputError: parts are missing, or are not of one model and one dataset.
            StorageError: the disk is full or not writable.
        """
        files = [self.file(number) for number in range(1, self.count + 1)]
        facts = [_facts(file) for file in files]
        missing = [number for number, one in enumerate(facts, start=1) if one is None]
        if missing:
            named = ", ".join(map(str, missing[:8]))
            raise InputError(f"{self.out}: {len(missing)} of {self.count} parts are not there yet: {named}.")
        known = [one for one in facts if one is not None]
        shapes = [tuple(one["shape"]) for one in known]
        if any(one["made_of"] != known[0]["made_of"] for one in known) or len({shape[1] for shape in shapes}) > 1:
            raise InputError(
                f"{self.out}: its parts were made by different models, with different options or of different items. "
                "Remove those of the wrong one."
            )
        shape = (sum(shape[0] for shape in shapes), shapes[0][1])
        faults = [_faults(file, one["first"]) for file, one in zip(files, known, strict=True)]
        named = pl.concat(faults)
        write_together(
            self.out,
            rows=partial(_join_rows, files, shape=shape),
            items=lambda aside: pl.concat([read_parquet(labels_file(file)) for file in files]).write_parquet(aside),
            faults=named,
        )
        for file in files:
            for part in (_facts_file(file), faults_file(file), labels_file(file), file):
                part.unlink(missing_ok=True)
        return JoinedEmbeddings(shape, len(named))


def _join_rows(files: Sequence[Path], out: Path, *, shape: tuple[int, int]) -> None:
    """Write the rows of files behind one another; not by a memory map, where a full disk would end the process."""
    with open(out, "wb") as joined:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(joined, header)
        for file in files:
            rows = np.load(file, mmap_mode="r")
            starts = range(0, len(rows), _ROWS_AT_ONCE)
            joined.writelines(np.ascontiguousarray(rows[i : i + _ROWS_AT_ONCE], np.float32).data for i in starts)


def _facts_file(file: Path) -> Path:
    return file.with_suffix(".json")


def _facts(file: Path) -> dict[str, Any] | None:
    facts = _facts_file(file)
    return read_json(facts, fix="Remove it; the part is made anew.") if facts.is_file() else None


def _faults(file: Path, first: int) -> pl.DataFrame:
    """Read the items of a part that could not be read, numbered as in the whole dataset."""
    schema = {"item": pl.Int64, "where": pl.String, "reason": pl.String}
    if not faults_file(file).exists():
        return pl.DataFrame(schema=schema)
    return read_csv(faults_file(file), schema=schema).with_columns(pl.col("item") + first)


def _made_of(embedder: Embedder, dataset: ShardDataset) -> dict[str, Any]:
    """Return what a part must have in common with the others: the model with its view of images, and the dataset."""
    keys = hashlib.sha256("\n".join(dataset.keys).encode())
    return {"model": embedding_facts(embedder), "items": keys.hexdigest()}
