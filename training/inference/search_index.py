"""Indexes of a dataset's embeddings (faiss), kept beside them or beside the shards for later searches.

They find nearly the same nearest neighbours as an exhaustive search, and faster.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from platformdirs import user_cache_path
from torch import Tensor

from hgld.data.dataset import ShardDataset
from hgld.data.format import SEARCH
from hgld.errors import ConfigError, InputError, StorageError, optional_dependency, quoted
from hgld.evaluation.scores import prepare_embeddings
from hgld.files import aside_of, write_folder

from ..config import read_json_object
from .embedder import Embedder

IndexKind = Literal["ivf", "hnsw"]

SETTINGS: dict[str, dict[str, int]] = {
    # About 4 sqrt(G) cells, of which a query looks into one in 8; k-means sees 64 vectors a cell.
    "ivf": {"cells": 4, "items_a_cell": 39, "of_which_one_is_probed": 8, "least_probed": 8, "training": 64, "seed": 0},
    "hnsw": {"neighbors": 32, "candidates_of_build": 80, "candidates": 128},
}
"""Settings with which indexes are made and searched, by kind; benchmarks/README.md has the figures."""

_MAGIC = {"ivf": b"IwFl", "hnsw": b"IHNf"}
_MOST_BYTES_AN_ITEM = 1024  # besides its vector: its id, and its edges in all layers


class FaissIndex:
    """An index of the embeddings of some items.

    Args:
        index: faiss's own, of G items.
        kind: ``ivf`` (k-means cells) or ``hnsw`` (a graph of neighbours).
    """

    def __init__(self, index: Any, kind: IndexKind) -> None:
        self._index, self._kind = index, kind

    @classmethod
    def of(cls, embeddings: Tensor | np.ndarray, kind: IndexKind) -> "FaissIndex":
        """Make the index of (G, D) embeddings.

        Raises:
            InputError: embeddings that cannot be ranked: NaN, zero vectors, none at all.
            MissingExtraError: faiss is not installed.
        """
        vectors = prepare_embeddings(embeddings, "gallery").numpy()
        return cls((_ivf if kind == "ivf" else _hnsw)(faiss(), vectors), kind)

    @property
    def shape(self) -> tuple[int, int]:
        """G and D."""
        return self._index.ntotal, self._index.d

    def save(self, path: Path) -> None:
        """Write the index.

        Raises:
            OSError: it cannot be written.
        """
        refused: list[OSError] = []
        with open(path, "wb") as file:

            def write(data: bytes) -> int:
                try:
                    return file.write(data)
                except OSError as error:  # faiss would not hand it on
                    refused.append(error)
                    raise

            try:  # faiss's own writer of files ends the process where the last bytes find no room
                faiss().write_index(self._index, faiss().PyCallbackIOWriter(write))
            except (RuntimeError, OSError) as error:
                raise (refused or [OSError(str(error).rpartition(": ")[2])])[0] from error

    def nearest(self, query_embeddings: Tensor | np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the k items of the highest cosine similarity, as far as the index reaches them.

        A query that reaches fewer than k items is compared with all.

        Args:
            query_embeddings: (Q, D).
            k: at most G.

        Returns:
            indices: (Q, k) int64, best first, equal scores by ascending index.
            scores: (Q, k) float32.

        Raises:
            InputError: embeddings of another size, or that cannot be ranked.
            ConfigError: k below 1 or beyond G.
        """
        count, dimensions = self.shape
        if not 1 <= k <= count:
            raise ConfigError(f"k is {k}; expected 1 to {count}, the items of the index.")
        query = prepare_embeddings(query_embeddings, "query").numpy()
        if query.shape[1] != dimensions:
            raise InputError(f"query embeddings have {query.shape[1]} dimensions, gallery embeddings {dimensions}.")
        scores, indices = self._search(query, k)
        few = np.flatnonzero((indices < 0).any(axis=1))  # -1: the query reached no further item
        if len(few):
            scores[few], indices[few] = self._search_all(query[few], k)
        order = np.lexsort((indices, -scores), axis=1)
        return np.take_along_axis(indices, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def _search(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        settings = SETTINGS[self._kind]
        if self._kind == "ivf":
            probed = max(settings["least_probed"], self._index.nlist // settings["of_which_one_is_probed"])
            self._index.nprobe = min(probed, self._index.nlist)
        else:
            self._index.hnsw.efSearch = max(settings["candidates"], 2 * k)
        return self._index.search(query, k)

    def _search_all(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if self._kind == "hnsw":
            return self._index.storage.search(query, k)
        self._index.nprobe = self._index.nlist
        return self._index.search(query, k)


def read_index(path: Path, kind: IndexKind, items: int, dimensions: int) -> FaissIndex:
    """Read an index.

    faiss trusts the files that it reads. Kind and size are checked first, but only a file whose checksum is known
    should be read here.

    Args:
        path: file that :meth:`FaissIndex.save` has written.
        kind: the kind that it must have.
        items: the number of items that it must have.
        dimensions: the number of dimensions that it must have.

    Raises:
        InputError: it cannot be read, or is another index.
        MissingExtraError: faiss is not installed.
    """
    # Allows for as many centroids as items, which is more than any index has.
    most = items * (8 * dimensions + _MOST_BYTES_AN_ITEM) + (1 << 20)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        size = path.stat().st_size
        if magic != _MAGIC[kind] or size > most:
            raise InputError(
                f"{path}: {size:,} bytes that begin with {quoted(magic)}; expected {quoted(_MAGIC[kind])}, at "
                f"most {most:,}."
            )
        index = FaissIndex(faiss().read_index(str(path)), kind)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
        raise InputError(f"{path}: cannot be read ({reason}).") from error
    if index.shape != (items, dimensions):
        found = " x ".join(map(str, index.shape))
        raise InputError(f"{path}: items x dimensions are {found}; expected {items} x {dimensions}.")
    return index


def faiss() -> Any:
    """Import the package faiss.

    Raises:
        MissingExtraError: it is not installed.
    """
    with optional_dependency("faiss", "an index", "Without an index the search is exact."):
        return import_module("faiss")


def _ivf(faiss: Any, vectors: np.ndarray) -> Any:
    settings, (count, dimensions) = SETTINGS["ivf"], vectors.shape
    cells = int(max(1, min(settings["cells"] * sqrt(count), count / settings["items_a_cell"])))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimensions), dimensions, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.max_points_per_centroid = settings["seed"], settings["training"]
    index.cp.min_points_per_centroid = 1  # else faiss warns of small sets on stderr
    index.train(vectors)
    index.add(vectors)
    return index


def _hnsw(faiss: Any, vectors: np.ndarray) -> Any:
    settings = SETTINGS["hnsw"]
    index = faiss.IndexHNSWFlat(vectors.shape[1], settings["neighbors"], faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = settings["candidates_of_build"]
    index.add(vectors)
    return index


# -- The folder of an index --
#
# It is written aside and renamed: ``index.faiss``, and ``index.json`` with its checksum and the facts that it was made
# with, by which an outdated index is known. A damaged file is refused before faiss sees a byte of it. That finds
# accidents, not forgeries: whoever writes an index writes its checksum too.

SCHEMA_VERSION = 1
INDEX, RECORD = "index.faiss", "index.json"

_MOST_LEFT_OUT = 10_000  # index.json lists them
# Fields of an embedder that do not change embeddings, or (the model) are known in another way.
_NOT_SEEN = ("model", "processes", "batch_size", "workers", "checkpoint", "selection", "network", "spent")


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
        """Find the k nearest items as :meth:`FaissIndex.nearest` does, with positions in the dataset for indices."""
        indices, scores = self.index.nearest(query_embeddings, k)
        return self.positions[indices], scores


class KeptIndex:
    """The folder of an index, which may not exist yet, and the facts that the index has to be made with.

    Args:
        folder: of the index.
        kind: ``ivf`` or ``hnsw``.
        count: items of the dataset, including those that cannot be read.
        made_with: JSON-ready facts by which the embeddings are known, under the names that messages give them.
        trusted: an index that this user did not make is opened too. faiss parses it natively, with no defence against
            one that was made to harm.
    """

    def __init__(
        self, folder: Path, kind: IndexKind, count: int, made_with: Mapping[str, Any], *, trusted: bool = False
    ) -> None:
        self.folder = folder
        self._trusted = trusted
        self._kind: IndexKind = kind
        self._count = count
        self._made_with = {**made_with, "settings": {"kind": kind, **SETTINGS[kind]}}

    def outdated(self) -> str | None:
        """Return the reason to make the index anew; empty if there is none yet, None if it is up to date.

        Raises:
            InputError: the folder was not written by a search.
        """
        for path in (self.folder, self.folder / INDEX, self.folder / RECORD):
            _refuse_link(path)
        if not self.folder.exists():
            return ""
        record = self._record()
        if record.get("schema_version") != SCHEMA_VERSION:
            return "it was written by another version of hgld"
        made_with = record["made_with"]
        if not self._trusted and not hmac.compare_digest(str(record.get("seal")), _seal(record)):
            return "it was made by somebody else or elsewhere (--trust-index takes it as it is)"
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
            write_folder(self.folder, lambda folder: self._write(folder, index, left_out))
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
        record["seal"] = _seal(record)
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


def kept_index(
    kind: IndexKind,
    dataset: ShardDataset,
    embedder: Embedder,
    embeddings: Path | None = None,
    *,
    trusted: bool = False,
) -> KeptIndex:
    """Return the folder of the index of a dataset's embeddings, with the facts that it has to be made with.

    It lies beside the file of embeddings if there is one (``X.npy``: ``X.ivf/``), else in the dataset's directory
    (``search/SPLIT.ivf/``).

    Args:
        kind: ``ivf`` or ``hnsw``.
        dataset: the items that the index finds.
        embedder: makes their embeddings, if no file holds them.
        embeddings: a file of them.
        trusted: see :class:`KeptIndex`.

    Raises:
        ConfigError: the dataset is at a URL, where nothing can be kept, and no file is given.
        MissingExtraError: faiss is not installed.
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
        return KeptIndex(embeddings.with_suffix(f".{kind}"), kind, len(dataset), made_with, trusted=trusted)
    if not dataset.storage.is_local:
        raise ConfigError(
            f"--index {kind}: {dataset.storage.where} is an address, where no index can be kept. Write the embeddings "
            "with hgld embed and give them as --embeddings: the index then lies beside them."
        )
    made_with = {"items": items, **embedding_facts(embedder)}
    folder = Path(dataset.storage.where) / SEARCH
    _refuse_link(folder)
    return KeptIndex(folder / f"{dataset.split or 'all'}.{kind}", kind, len(dataset), made_with, trusted=trusted)


def _seal(record: Mapping[str, Any]) -> str:
    """Return what only this user can write below a record: whoever else makes an index cannot pass it off as ours."""
    path = user_cache_path("hgld") / "index-key"
    try:
        if not path.is_file():
            _make_key(path)
        key = path.read_bytes()
    except OSError:  # no place of one's own: every index is then somebody else's
        key = secrets.token_bytes(32)
    content = json.dumps({name: value for name, value in record.items() if name != "seal"}, sort_keys=True)
    return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()


def _make_key(path: Path) -> None:
    """Make the file of a random key that its owner alone can read; of several processes the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(path, racing=True)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    with suppress(FileExistsError):
        path.hardlink_to(aside)
    aside.unlink()


def embedding_facts(embedder: Embedder) -> dict[str, Any]:
    """Return the JSON-ready facts by which a model's embeddings are known: its weights, and how it sees images."""
    options = {field.name: repr(getattr(embedder, field.name)) for field in fields(embedder)}
    options = {name: value for name, value in options.items() if name not in _NOT_SEEN}
    return {"weights": _weights_digest(embedder.model), "options": options}


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(f"{path} is a link, which is not followed. Remove it, and the index is made anew.")


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
