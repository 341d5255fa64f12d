"""Retrieval metrics over batches and processes, for any validation loop."""

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from hgld.distributed import Processes, current_processes, from_all, wait_for_all
from hgld.errors import ConfigError, InputError
from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.metric import Metric
from hgld.evaluation.options import DEFAULT_METRICS, EvaluationOptions
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.row_table import RowTable, Sharing, shared_folder
from hgld.labels import Array, Labels, class_columns, label_codes

_SIDES = ("query", "gallery")


class Retrieval:
    """Retrieval metrics that are updated with batches and computed over all batches of all processes.

    Under a process group of torch (DDP, Lightning, accelerate, torchrun) :meth:`compute` evaluates the batches of all
    processes, so every process must call it. The processes write their embeddings to one file in TMPDIR, which they
    must share, and each ranks its share of the queries. Distributed samplers repeat items to give every process equally
    many, and a repeated query would find its own copy. If you pass ``items``, every item counts once, in the order of
    the dataset, whatever the number of processes.

    This class has the methods of a torchmetrics metric; :meth:`torchmetric` returns a real ``torchmetrics.Metric`` for
    ``MetricCollection`` and ``LightningModule.log``.

    Args:
        levels: names of the levels, finest first; None: the columns of a table of labels, or ``level0``, ``level1``,
            ...
        metrics: names of metrics; a binary metric without a level is computed at every level.
        options: further options of :func:`hgld.evaluate`, for example ``alpha`` or ``device``.

    >>> import torch
    >>> metric = Retrieval(levels=("animal", "kind"), metrics=("R@1",))
    >>> for batch in (torch.tensor([[1.0, 0.0], [0.9, 0.1]]), torch.tensor([[0.0, 1.0], [0.1, 0.9]])):
    ...     metric.update(batch, [("cat", "pet"), ("dog", "pet")])
    >>> metric.compute()
    {'R@1/animal': 0.0, 'R@1/kind': 1.0}
    """

    def __init__(
        self, levels: Sequence[str] | None = None, metrics: Iterable[str | Metric] = DEFAULT_METRICS, **options: Any
    ) -> None:
        self.levels = None if levels is None else tuple(levels)
        self.metrics = tuple(metrics)
        self.options = options
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._embeddings: dict[str, list[np.ndarray]] = {side: [] for side in _SIDES}
        self._labels: dict[str, list[pl.DataFrame]] = {side: [] for side in _SIDES}
        self._named: tuple[str, ...] | None = None
        self._report: RetrievalReport | None = None

    def update(self, embeddings: Array, labels: Labels, items: Any = None, *, gallery: bool = False) -> None:
        """Add a batch.

        Args:
            embeddings: (B, D) of any floating dtype; kept in float32 on the CPU.
            labels: (B, L) or (B,) numbers or names, in any form that :func:`hgld.labels.class_numbers` reads.
            items: (B,) dataset indices of the items; an index that occurs twice is counted once. None: every item
                counts.
            gallery: whether the batch belongs to the gallery. Without a gallery every item queries all other items.

        Raises:
            InputError: the numbers of embeddings, labels and items differ, or the levels differ from earlier batches.
        """
        rows = torch.as_tensor(embeddings).detach().float().cpu().numpy()
        if not len(rows) and not len(labels):
            return
        table, named = class_columns(labels, self.levels)
        if rows.ndim != 2 or len(table) != len(rows):
            raise InputError(
                f"embeddings have shape {rows.shape}, and there are {len(table)} labels; expected (B, D) and B labels."
            )
        numbers = [None] * len(rows) if items is None else torch.as_tensor(items).tolist()
        if len(numbers) != len(rows):
            raise InputError(f"{len(numbers)} items for {len(rows)} embeddings; expected one item index per embedding.")
        if named and self._named and named != self._named:
            raise InputError(
                f"a batch has the levels {', '.join(named)}, earlier batches {', '.join(self._named)}; pass the same "
                "columns in the same order, or set the levels: Retrieval(levels)."
            )
        side = _SIDES[gallery]
        self._embeddings[side].append(rows)
        self._labels[side].append(table.with_columns(pl.Series("item", numbers, dtype=pl.Int64)))
        self._named, self._report = self._named or named, None

    def __call__(
        self, embeddings: Array, labels: Labels, items: Any = None, *, gallery: bool = False
    ) -> dict[str, float]:
        """Add a batch with :meth:`update`, and return the metrics of this batch from :meth:`of_batch`."""
        self.update(embeddings, labels, items, gallery=gallery)
        return self.of_batch(embeddings, labels, gallery=gallery)

    def of_batch(
        self, embeddings: Array, labels: Labels, items: Any = None, *, gallery: bool = False
    ) -> dict[str, float]:
        """Return the metrics of one batch, in which every item queries the other items; the batch is not added.

        Args:
            embeddings: (B, D) of any floating dtype.
            labels: (B, L) or (B,).
            items: ignored; the argument exists because :meth:`update` has it.
            gallery: whether the batch belongs to the gallery, so that its items are not queries.

        Returns:
            metric values by name; empty for a gallery batch or fewer than two items.
        """
        if gallery or len(embeddings) < 2:
            return {}
        return dict(evaluate(embeddings, labels, levels=self.levels, metrics=self.metrics, **self.options).values)

    def compute(self) -> dict[str, float]:
        """Return every metric's mean over the queries for which it is defined; NaN if there are no such queries."""
        return dict(self.report().values)

    def report(self) -> RetrievalReport:
        """Return the full report, like :func:`hgld.evaluate`, with the values of every query.

        Every process must call this method. If no process got a batch since the last call, it returns the last report.

        Raises:
            InputError: there was no batch, the batches differ in levels or dimension, or some batches have class
                numbers and other batches have names.
            ConfigError: some batches had ``items`` and other batches had none.
        """
        processes = current_processes()
        all_have = all(from_all(b"" if self._report is None else b"known", processes))
        if self._report is None or not all_have:
            with shared_folder(processes) as folder:
                self._report = self._evaluated(processes, folder)
                wait_for_all(processes)  # the main process may remove the embeddings now
        return self._report

    def _evaluated(self, processes: Processes, folder: Path | None) -> RetrievalReport:
        query, gallery = (self._joined(side, processes, folder) for side in _SIDES)
        if query is None:
            raise InputError("no embeddings: call update(embeddings, labels) with every batch first.")
        tables = [side[1] for side in (query, gallery) if side is not None]
        codes = label_codes(tables, [name for name in tables[0].columns if name != "item"])
        searched = () if gallery is None else (gallery[0], codes[1])
        options = dict(self.options)
        if processes.count > 1:
            share = Sharing(processes, folder)
            options["options"] = replace(options.get("options") or EvaluationOptions(), share=share)
        names = self.levels or self._named
        return evaluate(query[0], codes[0], *searched, levels=names, metrics=self.metrics, **options)

    def _joined(self, side: str, processes: Processes, folder: Path | None) -> tuple[Tensor, pl.DataFrame] | None:
        """Return the embeddings and labels of all processes, every item once; None if there are no items.

        Only labels are sent to other processes; embeddings are in a file (:class:`RowTable`).
        """
        arrays, written, fault = self._embeddings[side], io.BytesIO(), ""
        dims = {array.shape[1] for array in arrays}
        if arrays:
            try:
                _joined(dims, self._labels[side]).serialize(written)
            except InputError as error:
                fault = str(error)
        # every process raises the error, so that none waits for the others
        if faults := [told for told in from_all(fault.encode(), processes) if told]:
            raise InputError(faults[0].decode())
        parts = from_all(written.getvalue(), processes)
        tables = [pl.DataFrame.deserialize(io.BytesIO(part)) if part else None for part in parts]
        dims = {int(dim) for dim in from_all(b"".join(b"%d" % dim for dim in dims), processes) if dim}
        if not dims:
            return None
        table = _joined(dims, [one for one in tables if one is not None])
        without, first = table["item"].null_count(), np.arange(len(table))
        if 0 < without < len(table):
            raise ConfigError(f"{without} of {len(table)} embeddings came without items; pass items with every batch.")
        if not without:
            _, first = np.unique(table["item"].to_numpy(), return_index=True)  # rows in the order of the items
        place = np.full(len(table), -1)
        place[first] = np.arange(len(first))
        place = place[sum(len(one) for one in tables[: processes.index] if one is not None) :]
        made = RowTable((len(first), dims.pop()), processes, folder)
        for array in arrays:
            to, place = np.split(place, [len(array)])
            order = np.argsort(to)[(to < 0).sum() :]
            made.write(to[order], torch.from_numpy(array[order]))
        made.close()
        return made.read(), table[first]

    def torchmetric(self, value: str | None = None) -> Any:
        """Return a ``torchmetrics.Metric`` with the same options, which collects its own batches; needs torchmetrics.

        Args:
            value: name of one metric to compute, as a scalar for ``self.log``; None: all metrics, as a dictionary.
        """
        # imported here, because it needs the optional package torchmetrics
        from hgld.evaluation.torchmetric import TorchRetrieval

        return TorchRetrieval(Retrieval(self.levels, self.metrics, **self.options), value)


def _joined(dims: Collection[int], tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate the labels of all batches.

    Args:
        dims: the dimensions D of the batches.
        tables: labels and items of the batches.

    Raises:
        InputError: the batches differ in dimension or levels, or mix class numbers and names.
    """
    levels = {table.width - 1 for table in tables}  # the column `item` is not a level
    for found, what in ((dims, "dimensions"), (levels, "levels")):
        if len(found) > 1:
            told = " and ".join(map(str, sorted(found)))
            raise InputError(f"batches have {told} {what}; expected the same number in all batches.")
    for level in tables[0].columns:
        kinds = {table[level].dtype == pl.String for table in tables if table[level].dtype != pl.Null}
        if len(kinds) > 1:
            raise InputError(f"{level}: some batches have class numbers and other batches names; use only one of them.")
    return pl.concat(tables, how="vertical_relaxed")
