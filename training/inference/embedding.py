"""Embeddings of datasets, and the files that they are written to."""

import ctypes
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize as unit_rows

from hgld.data.batch import Fault, normalize
from hgld.data.dataset import ShardDataset
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.distributed import Processes, any_process, from_all
from hgld.errors import ConfigError, HgldError, InputError, storage_errors
from hgld.evaluation.embedding_files import KEY
from hgld.evaluation.options import Progress
from hgld.evaluation.postprocess import pool_scales
from hgld.evaluation.row_table import RowTable
from hgld.files import aside_of, file_lock, lock_of, put_in_place
from hgld.samplers import BatchSampler
from hgld.tables import POLARS_FAULTS

from ..models.embedding_model import EmbeddingModel

Amp = Literal["off", "bf16", "fp16"]
_MALLOC = {-4: 0, -1: -1, -2: 2**26}  # options of malloc.h: do not use mmap, never trim memory, grow by 64 MiB
FAULTS = {"item": pl.Int64, "where": pl.String, "reason": pl.String}  # columns of the items that could not be read


def embed(
    model: EmbeddingModel,
    dataset: ShardDataset,
    *,
    view: TestView,
    batch_size: int = 256,
    scales: Sequence[float] = (1.0,),
    scale_p: float = 1.0,
    workers: int = 2,
    amp: Amp = "off",
    processes: Processes | None = None,
    faults: list[Fault] | None = None,
    progress: Progress | None = None,
    unit: bool = True,
    out: RowTable | None = None,
) -> Tensor:
    """Embed all items of a dataset, in its order, as unit vectors.

    Several processes share the work. With several scales the images are read at each
    scale. An embedding is then the mean direction of its embeddings at all scales, or their generalised mean
    (Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019, section 3.4).

    Images of one shape pass through the model together, so that nothing is padded, and an embedding does not depend on
    the other images of its batch. A batch has at most ``batch_size`` images, and as many pixels as ``batch_size``
    squares of the view's size, or one image.

    Args:
        model: model on the device where it computes; it is in evaluation mode during the call.
        dataset: dataset of N items.
        view: view that resizes and crops images, at scale 1.
        batch_size: number of images at a time, per process.
        scales: factors of the view's sizes; papers take 1, 1/sqrt(2), 1/2.
        scale_p: exponent p of the mean over scales (:func:`hgld.evaluation.postprocess.pool_scales`).
        workers: number of threads per process that read and decode; 0: one per core of the process, at most 16.
        amp: precision of the model's arithmetic.
        processes: processes of the run; None: only this process.
        faults: list that receives the items that cannot be read or decoded, on every process; their rows are NaN. None:
            the first such item is an error.
        progress: function called with a task, the number of this process's images done and the total number.
        unit: whether to L2-normalise the rows. A classifier needs False, the model's raw features. False allows only
            one scale.
        out: table of N rows to fill, with the same processes; None: a new table in memory, for one process.

    Returns:
        (N, D) float32 on the CPU, rows of norm 1 unless ``unit`` is False; with several processes mapped from a file.

    Raises:
        InputError: the dataset is empty; or, without ``faults``, an item cannot be read or decoded (on any process).
        ServiceError: a server kept failing.
        StorageError: the disk failed.
        ConfigError: scales, batch size or workers are out of range, or several scales are given without ``unit``.
    """
    if not unit and len(scales) > 1:
        raise ConfigError(f"scales are {', '.join(map(str, scales))}; with unit=False, expected one scale.")
    group = processes or Processes(0, 1, next(model.parameters()).device)
    if not scales or not all(0 < scale < math.inf for scale in scales):
        raise ConfigError(f"scales are {', '.join(map(str, scales)) or 'none'}; expected numbers above 0.")
    if not 1 <= scale_p < math.inf:
        raise ConfigError(f"scale_p is {scale_p}; expected a number of at least 1.")
    keep_freed_memory(group.device)
    if len(dataset) == 0:
        raise InputError(f"{dataset!r} has no items to embed.")
    views = [view.scaled(scale) for scale in scales]
    plan, pinned = _Plan(dataset.sizes, views, batch_size, group), group.device.type == "cuda"
    how: dict[str, Any] = {"workers": workers, "pin_memory": pinned}
    how["on_fault"] = "raise" if faults is None else "leave"
    loaders = [Loader(dataset, plan, one, **how) for one in views]
    table = out or RowTable((len(dataset), model.dim), group, None)
    tables = [table, *(RowTable(table.shape, group, table.folder) for _ in scales[1:])]
    found, failure = dict[int, Fault](), None
    with evaluating(model, shapes=plan.shapes):
        try:
            found = _embed_own(model, loaders, plan, scale_p, tables, group, amp, progress, unit)
        except HgldError as error:
            failure = error
    if any_process(failure is not None, group):  # other processes must not wait for rows that never come
        raise failure or InputError("another process could not read an item of its share; its message names the item.")
    rows = table.read()
    if faults is not None:
        told = json.dumps([(fault.index, fault.where, fault.reason) for fault in found.values()]).encode()
        everyone = {index: Fault(index, *text) for said in from_all(told, group) for index, *text in json.loads(said)}
        faults += [everyone[index] for index in sorted(everyone)]
    return rows


class _Plan(BatchSampler):
    """The batches in which processes embed a dataset: images whose views have one shape, the largest views first.

    The processes get the batches in turn. So neither the batches nor the embeddings depend on the number of processes.
    """

    def __init__(
        self, sizes: NDArray[np.integer], views: Sequence[TestView], batch_size: int, processes: Processes
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; expected at least 1.")
        shapes = np.hstack([view.shapes(*sizes.T) for view in views])
        pixels = shapes.reshape(len(sizes), -1, 2).prod(axis=2).max(axis=1)
        budget = batch_size * max(view.size for view in views) ** 2
        kinds, kind_of, counts = np.unique(
            np.column_stack([-pixels, shapes]), axis=0, return_inverse=True, return_counts=True
        )
        self.shapes = len(kinds)
        alike = np.split(np.argsort(kind_of.reshape(-1), kind="stable"), np.cumsum(counts)[:-1])
        batches: list[NDArray[np.int64]] = []
        for largest, items in zip(kinds[:, 0].tolist(), alike, strict=True):
            at_once = min(batch_size, max(1, budget // -largest))
            batches += [items[begin : begin + at_once] for begin in range(0, len(items), at_once)]
        self.own = batches[processes.index :: processes.count]
        passes = max(1, len(self.own))  # a process of a small dataset may have no batch
        super().__init__(batch_size=batch_size, batches=passes, parts=1, seed=0, process_index=0, process_count=1)

    def _whole_batch(self, epoch: int, step: int) -> NDArray[np.int64]:
        return self.own[step]


def _embed_own(
    model: EmbeddingModel,
    loaders: Sequence[Loader],
    plan: _Plan,
    scale_p: float,
    tables: Sequence[RowTable],
    processes: Processes,
    amp: Amp,
    progress: Progress | None,
    unit: bool,
) -> dict[int, Fault]:
    """Write the embeddings of this process's share to the tables of the scales, and their means to the first table.

    Returns:
        the items that could not be read, whose rows are NaN, by index.
    """
    total, done = len(plan.own) * len(loaders), 0
    faults: dict[int, Fault] = {}
    for loader, table in zip(loaders, tables, strict=True):
        loader.load_state_dict({"epoch": 0, "step": 0})  # rewind the sampler, which the loaders share
        for batch, items in zip(loader if total else (), plan.own, strict=True):
            table.write(items, _embeddings(model, batch.images, processes.device, amp, unit=unit))
            faults |= {fault.index: fault for fault in batch.faults}
            done += 1
            if progress is not None:
                progress("embed", done, total)
    for items in plan.own if len(tables) > 1 else ():
        pooled = pool_scales([table.own(items) for table in tables], p=scale_p)
        tables[0].write(items, torch.from_numpy(pooled))
    broken = np.array(sorted(faults), np.int64)
    tables[0].write(broken, torch.full((len(broken), tables[0].shape[1]), torch.nan))
    for table in tables:
        table.close()
    return faults


def _embeddings(model: EmbeddingModel, images: Tensor, device: torch.device, amp: Amp, *, unit: bool = True) -> Tensor:
    """Compute (B, D) float32 embeddings of (B, 3, H, W) uint8 images, normalised if ``unit``."""
    prepared = normalize(images, model.image_mean, model.image_std, device)
    try:
        with autocast(device, amp):
            embeddings = model(prepared).float()
    except (AssertionError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        if isinstance(error, torch.OutOfMemoryError) or "Allocator" in reason or "CUDA" in reason:
            raise
        height, width = images.shape[2:]
        raise ConfigError(
            f"the network cannot embed images of {width} x {height} pixels ({reason}). Use another --size, or "
            "--resize-mode crop or squash."
        ) from error
    return unit_rows(embeddings, dim=1) if unit else embeddings


def keep_freed_memory(device: torch.device) -> None:
    """Let the C library keep freed memory for the next step's tensors, on a CPU with glibc; else do nothing.

    Otherwise every large tensor is mapped and unmapped again, and the kernel clears its pages each time: two fifths of
    the CPU time of a fine-tune (benchmarks/results/freed_memory.csv).
    """
    if device.type == "cpu" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for option, value in _MALLOC.items():
            libc.mallopt(option, value)


def autocast(device: torch.device, amp: Amp) -> AbstractContextManager[object]:
    """Return the context in which the model computes with the precision ``amp``."""
    if amp == "off":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if amp == "bf16" else torch.float16)


@contextmanager
def evaluating(model: EmbeddingModel, *, shapes: int = 1) -> Iterator[None]:
    """Put the model into evaluation mode, without gradients, inside the ``with`` block.

    If the images have several shapes, cuDNN does not try its algorithms, because the trials take time for each shape.
    """
    cudnn: Any = torch.backends.cudnn
    before, tries = model.training, cudnn.benchmark
    cudnn.benchmark = tries and shapes == 1
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        cudnn.benchmark = tries
        model.train(before)


def labels_file(path: Path) -> Path:
    """Return the path of the file with the keys and labels of embeddings: ``X.labels.parquet`` for ``X.npy``."""
    return path.with_suffix(".labels.parquet")


def faults_file(path: Path) -> Path:
    """Return the path of the list of items that could not be read: ``X.faults.csv`` for ``X.npy``."""
    return path.with_suffix(".faults.csv")


def check_suffix(path: Path) -> None:
    """Raise an error if a file for embeddings is not a ``.npy`` file.

    Raises:
        ConfigError: the file has another suffix.
    """
    if path.suffix != ".npy":
        raise ConfigError(f"{path}: suffix {path.suffix!r}; embeddings are written as .npy.")


def write_embeddings(
    path: Path,
    embeddings: Tensor,
    dataset: ShardDataset,
    faults: Sequence[Fault] = (),
    *,
    made: Path | None = None,
) -> None:
    """Write embeddings and, next to them, their keys and labels: if a write fails, all files stay as they were.

    Args:
        path: ``.npy`` file. :func:`labels_file` gets the columns key, split and one per level (int32, -1 unknown), in
            the same order. ``hgld evaluate --embeddings FILE --labels FILE`` reads both.
        embeddings: (N, D) embeddings of the dataset's items, in its order.
        dataset: dataset of N items.
        faults: items that could not be read and have no embedding. :func:`faults_file` lists them (columns item,
            where, reason); without such items there is no file.
        made: ``.npy`` file that already holds the embeddings; it gets a second name if it is on the same disk.

    Raises:
        ConfigError: the file's suffix is not ``.npy``.
        StorageError: the disk is full or not writable.
    """
    check_suffix(path)
    if len(embeddings) != len(dataset):
        raise InputError(f"{len(embeddings)} embeddings of {dataset!r}; expected one per item.")
    named = [(fault.index, fault.where, fault.reason) for fault in faults]
    write_together(
        path,
        rows=partial(_write_npy, embeddings, made),
        items=item_table(dataset).write_parquet,
        faults=pl.DataFrame(named, FAULTS, orient="row"),
    )


def write_together(
    path: Path, *, rows: Callable[[Path], object], items: Callable[[Path], object], faults: pl.DataFrame
) -> None:
    """Write embeddings and the tables next to them; if a write fails, all files stay as they were.

    Args:
        path: file of the embeddings; its folder is made.
        rows: function that writes the embeddings to a given file.
        items: function that writes the table of :func:`labels_file` to a given file.
        faults: rows of :func:`faults_file`; without rows, that file is not written.

    Raises:
        StorageError: the disk is full or not writable.
    """
    files = (path, labels_file(path), faults_file(path))
    aside = [aside_of(file) for file in files]
    with storage_errors(f"write {path}", "Free space or write elsewhere.", *POLARS_FAULTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(lock_of(path), keep=False):
            try:
                for write, part in zip((rows, items, faults.write_csv), aside, strict=True):
                    write(part)
                for part, file in zip(aside, files, strict=True):
                    put_in_place(part, file)
            except BaseException:
                for part in aside:
                    part.unlink(missing_ok=True)
                raise
            if not len(faults):
                files[2].unlink()


def item_table(dataset: ShardDataset) -> pl.DataFrame:
    """Return key, split and labels (one int32 column per level) of a dataset's items, in its order."""
    split = dataset.frame["split"] if dataset.split is None else pl.repeat(dataset.split, len(dataset), eager=True)
    labels = dataset.labels.to(torch.int32).numpy()
    columns = {level: labels[:, c] for c, level in enumerate(dataset.levels)}
    return pl.DataFrame({KEY: dataset.keys, "split": split, **columns})


def _write_npy(embeddings: Tensor, made: Path | None, path: Path) -> None:
    if made is not None:
        with suppress(OSError):  # another disk, or one without links
            path.unlink(missing_ok=True)
            path.hardlink_to(made)
            return
    with path.open("wb") as file:
        np.save(file, embeddings.numpy(), allow_pickle=False)
