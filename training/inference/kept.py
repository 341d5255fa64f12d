"""Embeddings that the user's cache keeps, by model, dataset and view: a second search embeds only its query."""

import hashlib
import json
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hgld.data.batch import Fault
from hgld.data.dataset import ShardDataset
from hgld.evaluation.options import Progress
from hgld.user_cache import MOST_BYTES, KeptFolder, digest_of

from .embedder import Embedded, Embedder

_VECTORS, _POSITIONS, _FAULTS = "vectors.npy", "positions.npy", "faults.json"
# Fields of an embedder that do not change embeddings, or (the model) are known in another way.
_NOT_SEEN = ("model", "processes", "batch_size", "workers", "checkpoint", "selection", "network", "spent", "classifier")
_log = logging.getLogger(__name__)


def embed_once(embedder: Embedder, dataset: ShardDataset, progress: Progress | None = None) -> Embedded:
    """Embed the items that can be read, or return the embeddings that the user's cache keeps of them.

    Several processes embed anew, because their caches may differ; so are images that are no dataset and no folder.

    Args:
        embedder: the model and its view.
        dataset: N items.
        progress: called with a task, the number of units done and their total; not called for kept embeddings.

    Raises:
        InputError, ServiceError, StorageError: as :meth:`Embedder.embed_readable`.
    """
    facts = dataset_facts(dataset)
    if embedder.processes.count > 1 or not (facts["shards"] or facts["listing"]):
        return embedder.embed_readable(dataset, progress)
    kept = KeptFolder("galleries", facts | embedding_facts(embedder))
    if (found := kept.read(_load)) is not None:
        vectors, positions, faults = found
        return Embedded(dataset if len(positions) == len(dataset) else dataset.select(positions), vectors, faults)
    embedded = embedder.embed_readable(dataset, progress)

    def fill(folder: Path) -> None:
        np.save(folder / _VECTORS, embedded.vectors.numpy())
        np.save(folder / _POSITIONS, embedded.positions(len(dataset)))
        faults = [(fault.index, fault.where, fault.reason) for fault in embedded.faults]
        (folder / _FAULTS).write_text(json.dumps(faults), encoding="utf-8")

    if embedded.vectors.nbytes <= MOST_BYTES // 2:
        try:
            kept.write(fill)
        except OSError as error:
            _log.warning("embeddings are not kept for the next search: %s", error)
    return embedded


def _load(folder: Path) -> tuple[torch.Tensor, np.ndarray, tuple[Fault, ...]]:
    faults = json.loads((folder / _FAULTS).read_text(encoding="utf-8"))
    vectors = torch.from_numpy(np.load(folder / _VECTORS))
    return vectors, np.load(folder / _POSITIONS), tuple(Fault(*fault) for fault in faults)


def dataset_facts(dataset: ShardDataset) -> dict[str, Any]:
    """Return JSON-ready facts by which the images of a dataset are known.

    They are the keys, and checksums of the shards, with sizes and times of change on a disk; of a plain folder paths,
    sizes and times of its files.
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
    """Return JSON-ready facts by which a model's embeddings are known: its weights, and how it sees images."""
    options = {field.name: repr(getattr(embedder, field.name)) for field in fields(embedder)}
    digest = hashlib.sha256(repr(embedder.model).encode())
    for name, tensor in embedder.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    seen = {name: value for name, value in options.items() if name not in _NOT_SEEN}
    return {"weights": digest.hexdigest(), "options": seen}
