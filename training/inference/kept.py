"""Embeddings on disk: in the user's cache for a second search, and in parts while a large dataset is embedded."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from hgld.data.batch import Fault
from hgld.data.dataset import ShardDataset
from hgld.distributed import from_main
from hgld.errors import ConfigError, InputError
from hgld.evaluation.options import Progress
from hgld.files import write_atomic
from hgld.tables import read_csv, read_parquet
from hgld.user_cache import MOST_BYTES, KeptFolder, digest_of

from .embedder import Embedded, Embedder
from .embedding import FAULTS, check_suffix, faults_file, labels_file, write_embeddings, write_together

_VECTORS, _FAULTS = "vectors.npy", "faults.json"
# Fields of an embedder that do not change embeddings; the digest of the weights identifies the model.
_WITHOUT_EFFECT = (
    "model",
    "processes",
    "batch_size",
    "workers",
    "checkpoint",
    "selection",
    "network",
    "spent",
    "classifier",
    "folder",
)
_log = logging.getLogger(__name__)


def embed_once(embedder: Embedder, dataset: ShardDataset, progress: Progress | None = None) -> Embedded:
    """Embed the items that can be read, or return their embeddings from the user's cache.

    Several processes always embed, because their caches may differ. Images that come neither from a dataset nor from a
    folder are always embedded too.

    Args:
        embedder: the model and its view.
        dataset: dataset of N items.
        progress: function called with a task, the number of units done and the total number; not called if the
            embeddings come from the cache.

    Raises:
        InputError: the dataset is empty, or none of its items can be read.
        ServiceError: a server kept failing.
        StorageError: the disk failed.
    """
    facts = dataset_facts(dataset)
    if embedder.processes.count > 1 or not (facts["shards"] or facts["listing"]):
        return embedder.embed_readable(dataset, progress)
    kept = KeptFolder("galleries", facts | embedding_facts(embedder))

    def load(folder: Path) -> Embedded:
        faults = json.loads((folder / _FAULTS).read_text(encoding="utf-8"))
        embedded = Embedded(dataset, torch.from_numpy(np.load(folder / _VECTORS)), tuple(Fault(*one) for one in faults))
        return replace(embedded, dataset=dataset.select(embedded.positions(len(dataset)))) if faults else embedded

    if (found := kept.read(load)) is not None:
        return found
    embedded = embedder.embed_readable(dataset, progress)

    def fill(folder: Path) -> None:
        np.save(folder / _VECTORS, embedded.vectors.numpy())
        faults = [(fault.index, fault.where, fault.reason) for fault in embedded.faults]
        (folder / _FAULTS).write_text(json.dumps(faults), encoding="utf-8")

    if embedded.vectors.nbytes <= MOST_BYTES // 2:
        try:
            kept.write(fill)
        except OSError as error:
            _log.warning("embeddings are not kept for the next search: %s", error)
    return embedded


def dataset_facts(dataset: ShardDataset) -> dict[str, Any]:
    """Return JSON-ready facts that identify the images of a dataset.

    For a dataset, these are its keys and the checksums of its shards; on a disk, also the shards' sizes and
    modification times. For a plain folder, these are the paths, sizes and modification times of its files.
    """
    manifest, folder = dataset.manifest, Path(dataset.storage.where)
    shards = []
    for shard in manifest.shards:
        facts = (folder / shard.name).stat() if dataset.storage.is_local else None
        shards.append((shard.name, shard.sha256, *((facts.st_size, facts.st_mtime_ns) if facts else ())))
    listing = "" if manifest.shards else str(manifest.provenance.get("listing", ""))
    return {
        "keys": digest_of("\n".join(dataset.keys)),
        "shards": digest_of(json.dumps(shards)) if shards else "",
        "listing": listing,
    }


def embedding_facts(embedder: Embedder) -> dict[str, Any]:
    """Return JSON-ready facts that identify a model's embeddings: its weights and its view of images."""
    names = {field.name for field in fields(embedder)} - {*_WITHOUT_EFFECT}
    options = {name: repr(getattr(embedder, name)) for name in sorted(names)}
    digest = hashlib.sha256(repr(embedder.model).encode())
    for name, tensor in embedder.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return {"weights": digest.hexdigest(), "options": options}


# -- embeddings of a large dataset in parts --

_ROWS_AT_ONCE = 1 << 16


def embed_in_parts(
    out: Path,
    count: int,
    embedder: Embedder,
    dataset: ShardDataset,
    progress: Progress | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> tuple[int, int, int] | None:
    """Embed a dataset in parts, which are kept in ``X.parts/`` until they are joined to ``X.npy``.

    The same call resumes after a stop: parts that are done are not made again.

    Args:
        out: path of the ``.npy`` file.
        count: number of parts.
        embedder: the model; its processes share the work of a part.
        dataset: dataset of N items.
        progress: function called with a task, the number of batches done and the total number.
        say: function called with a line about each part, on the main process.

    Returns:
        number and dimension of the embeddings, and number of items that could not be read; None on all processes but
        the main process.

    Raises:
        ConfigError: there are more parts than items, or ``out`` is not a ``.npy`` file.
        InputError: existing parts were made by another model, with other options, or from other items.
        StorageError: the disk is full or not writable.
    """
    check_suffix(out)
    if not 1 <= count <= len(dataset):
        raise ConfigError(f"parts is {count}; expected 1 to {len(dataset)}, the number of items.")
    folder, processes = out.with_suffix(".parts"), embedder.processes
    items = digest_of("\n".join(dataset.keys))
    facts = json.dumps({"parts": count, "items": items, **embedding_facts(embedder)}, sort_keys=True)
    record, made_of = folder / "made-of.json", None
    if processes.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        if not record.exists():
            write_atomic(record, facts)
        made_of = record.read_text(encoding="utf-8", errors="replace")
    if from_main(made_of, processes) != facts:
        raise InputError(
            f"{folder} was made by another model, with other options or from other items. Remove it, or write to "
            "another file."
        )
    bounds = [len(dataset) * number // count for number in range(count + 1)]
    files = [folder / f"{number:04d}.npy" for number in range(1, count + 1)]
    for number, file in enumerate(files):
        done = file.with_suffix(".done")
        kept = from_main(done.exists(), processes)
        if not kept:
            embedded = embedder.embed_readable(dataset.select(range(*bounds[number : number + 2])), progress)
            if processes.is_main:
                write_embeddings(file, embedded.vectors, embedded.dataset, embedded.faults, made=embedded.file)
                done.touch()
        if processes.is_main:
            say(f"{file}: part {number + 1} of {count}{', kept from before' if kept else ''}")
    if not processes.is_main:
        return None
    faults = [pl.DataFrame(schema=FAULTS)]
    for file, first in zip(map(faults_file, files), bounds, strict=False):
        if file.exists():  # items in this file are numbered within the part
            faults.append(read_csv(file, schema=FAULTS).with_columns(pl.col("item") + first))
    tables = [np.load(file, mmap_mode="r") for file in files]
    shape = (sum(map(len, tables)), tables[0].shape[1])
    write_together(
        out,
        rows=partial(_join_rows, tables, shape=shape),
        items=lambda aside: pl.concat([read_parquet(labels_file(file)) for file in files]).write_parquet(aside),
        faults=pl.concat(faults),
    )
    shutil.rmtree(folder)
    return *shape, sum(map(len, faults))


def _join_rows(tables: Sequence[np.ndarray], out: Path, *, shape: tuple[int, int]) -> None:
    """Write the rows of tables one after another, without a memory map, because a full disk would crash the process."""
    with open(out, "wb") as joined:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(joined, header)
        for rows in tables:
            starts = range(0, len(rows), _ROWS_AT_ONCE)
            joined.writelines(np.ascontiguousarray(rows[i : i + _ROWS_AT_ONCE], np.float32).data for i in starts)
