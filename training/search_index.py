"""An index of a dataset's embeddings, kept beside them or beside the shards for later searches.

It is a folder of its own, written aside and renamed: ``index.faiss``, and ``index.json`` with what it was made with and
its checksum. What it was made with says whether it still serves. A damaged file is refused before faiss sees a byte of
it. That finds accidents; who made an index it cannot know, since whoever writes one writes its checksum too.
"""

import errno
import hashlib
import itertools
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.dataset import ShardDataset
from hgld.dataset_names import SEARCH
from hgld.errors import ConfigError, InputError, StorageError
from training.embedder import Embedder
from training.faiss_index import SETTINGS, FaissIndex, IndexKind, faiss, read_index
from training.json_files import read_json_object

SCHEMA_VERSION = 1
INDEX, RECORD = "index.faiss", "index.json"

_MOST_LEFT_OUT = 10_000  # they stand in index.json
_NOT_SEEN = ("model", "processes", "batch_size", "workers", "checkpoint")  # of an embedder, in its embeddings


@dataclass(frozen=True, eq=False)
class SearchIndex:
    """An opened index of a dataset.

    Attributes:
        index: of the G items that could be read.
        positions: (G,) int64 of these items in the dataset, ascending.
    """

    index: FaissIndex
    positions: np.ndarray

    def nearest(self, query_embeddings: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`training.faiss_index.FaissIndex.nearest`, with positions in the dataset for indices."""
        indices, scores = self.index.nearest(query_embeddings, k)
        return self.positions[indices], scores


class KeptIndex:
    """The folder of an index, whether it is there or not, and what it has to be made with.

    Args:
        folder: of the index.
        kind: ``ivf`` or ``hnsw``.
        count: items of the dataset, those included that cannot be read.
        made_with: JSON-ready facts by which the embeddings are known, by what people call them.
    """

    def __init__(self, folder: Path, kind: IndexKind, count: int, made_with: Mapping[str, Any]) -> None:
        self.folder = folder
        self._kind: IndexKind = kind
        self._count = count
        self._made_with = {**made_with, "settings": {"kind": kind, **SETTINGS[kind]}}

    def outdated(self) -> str | None:
        """Why the index has to be made anew; empty where there is none yet, None where it serves.

        Raises:
            InputError: the folder is not one that a search has written.
        """
        for path in (self.folder, self.folder / INDEX, self.folder / RECORD):
            _refuse_link(path)
        if not self.folder.exists():
            return ""
        record = self._record()
        if record.get("schema_version") != SCHEMA_VERSION:
            return "it was written by another version of hgld"
        made_with = record["made_with"]
        other = [name for name in self._made_with if made_with.get(name) != self._made_with[name]]
        return f"it was made with other {' and '.join(other)}" if other else None

    def load(self) -> SearchIndex:
        """Open the index.

        Raises:
            InputError: it is damaged, or was not written by a search.
        """
        record, path = self._record(), self.folder / INDEX
        positions = np.setdiff1d(np.arange(self._count), np.array(record["left_out"], dtype=np.int64))
        try:
            size = path.stat().st_size
            if size != record["bytes"]:
                raise InputError(f"{path}: {size:,} bytes; expected {record['bytes']:,}, as {RECORD} says.")
            if _digest(path) != record["sha256"]:
                raise InputError(f"{path}: its SHA-256 is not the one that {RECORD} states.")
            return SearchIndex(read_index(path, self._kind, len(positions), record["dimensions"]), positions)
        except (InputError, OSError) as error:
            reason = error if isinstance(error, InputError) else f"{path}: cannot be read ({error.strerror})."
            raise InputError(f"{reason} Remove {self.folder}, and the index is made anew.") from error

    def make(self, embeddings: Tensor | np.ndarray, positions: np.ndarray) -> SearchIndex:
        """Make the index and keep it; one that is there is replaced.

        Args:
            embeddings: (G, D) of the items.
            positions: (G,) int64 of the items in their dataset, ascending.

        Raises:
            InputError: embeddings that cannot be ranked: NaN, zero vectors, none at all; or too many items left out.
            StorageError: the disk is full or not writable; what was there stays.
        """
        left_out = np.setdiff1d(np.arange(self._count), positions).tolist()
        if len(left_out) > _MOST_LEFT_OUT:
            raise InputError(
                f"{len(left_out):,} of {self._count:,} items cannot be read; an index leaves out {_MOST_LEFT_OUT:,} at "
                "most. `hgld verify --decode` names them."
            )
        index = FaissIndex.of(embeddings, self._kind)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            # A folder of its own for every process: two that make the index at the same time do not mix their files,
            # and the last one's stays.
            with TemporaryDirectory(dir=self.folder.parent, prefix=".index-", ignore_cleanup_errors=True) as place:
                aside = Path(place) / self.folder.name
                aside.mkdir()
                self._write(aside, index, left_out)
                _put(aside, self.folder)
        except OSError as error:
            raise StorageError(
                f"cannot keep the index {self.folder} ({error.strerror or error}). Free space; or write embeddings "
                "elsewhere with hgld embed and give them as --embeddings: the index then lies beside them."
            ) from error
        return SearchIndex(index, positions)

    def _write(self, folder: Path, index: FaissIndex, left_out: list[int]) -> None:
        index.save(folder / INDEX)
        record = {
            "schema_version": SCHEMA_VERSION,
            "made_with": self._made_with,
            "left_out": left_out,
            "dimensions": index.shape[1],
            "bytes": (folder / INDEX).stat().st_size,
            "sha256": _digest(folder / INDEX),
        }
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def _record(self) -> dict[str, Any]:
        path = self.folder / RECORD
        if not path.is_file():
            raise InputError(f"{self.folder} holds no {RECORD}: it was not written by a search. Rename or remove it.")
        try:
            record = read_json_object(path)
        except InputError as error:
            raise InputError(f"{error} Remove {self.folder}, and the index is made anew.") from error
        left_out, numbers = record.get("left_out"), [record.get("dimensions"), record.get("bytes")]
        types = {"made_with": dict, "left_out": list, "sha256": str}
        sound = all(isinstance(record.get(name), kind) for name, kind in types.items())
        if not sound or not all(type(number) is int and number >= 0 for number in (*(left_out or ()), *numbers)):
            raise InputError(f"{path} is not what a search writes. Remove {self.folder}, and the index is made anew.")
        return record


def kept_index(kind: IndexKind, dataset: ShardDataset, embedder: Embedder, embeddings: Path | None = None) -> KeptIndex:
    """Where the index of a dataset's embeddings lies, and what it has to be made with.

    Beside the file of embeddings where there is one (``X.npy``: ``X.ivf/``), else in the dataset's directory
    (``search/SPLIT.ivf/``).

    Args:
        kind: ``ivf`` or ``hnsw``.
        dataset: whose items the index finds.
        embedder: that makes their embeddings, if no file holds them.
        embeddings: a file of them.

    Raises:
        ConfigError: the dataset is at a URL, where nothing can be kept, and no file is given.
        MissingResourceError: faiss is not installed.
        InputError: the file cannot be read, or ``search/`` is a link.
    """
    faiss()  # before any work
    shards = json.dumps([(shard.name, shard.sha256) for shard in dataset.manifest.shards])
    items = {"keys": _digest_of("\n".join(dataset.keys)), "shards": _digest_of(shards)}
    if embeddings is not None:
        try:
            made_with = {"items": items, "embeddings": _digest(embeddings)}
        except OSError as error:
            raise InputError(f"{embeddings}: cannot be read ({error.strerror}).") from error
        return KeptIndex(embeddings.with_suffix(f".{kind}"), kind, len(dataset), made_with)
    if not dataset.storage.is_local:
        raise ConfigError(
            f"--index {kind}: {dataset.storage.where} is an address, where no index can be kept. Write the embeddings "
            "with hgld embed and give them as --embeddings: the index then lies beside them."
        )
    options = {field.name: repr(getattr(embedder, field.name)) for field in fields(embedder)}
    options = {name: value for name, value in options.items() if name not in _NOT_SEEN}
    made_with = {"items": items, "weights": _weights_digest(embedder.model), "options": options}
    folder = Path(dataset.storage.where) / SEARCH
    _refuse_link(folder)
    return KeptIndex(folder / f"{dataset.split or 'all'}.{kind}", kind, len(dataset), made_with)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(f"{path} is a link, which is not followed. Remove it, and the index is made anew.")


def _put(made: Path, folder: Path) -> None:
    """Move a folder to its place, and one that is there beside where the new one was made."""
    for turn in itertools.count():
        with suppress(FileNotFoundError):
            folder.rename(made.with_name(f"before-{turn}"))
        try:
            made.replace(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # these: another process was faster
                raise
        else:
            return


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _weights_digest(model: torch.nn.Module) -> str:
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
