"""A table of embeddings that several processes fill and rank together, and that none of them holds in memory."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hgld.distributed import Processes, from_all, from_main, gather, wait_for_all
from hgld.errors import InputError, storage_errors
from hgld.evaluation.report import RetrievalReport

ROWS_AT_ONCE = 4096
_NUMBERS = itertools.count()
_MOST_RANGES = 16
_HINT = "Free space, or set TMPDIR to a larger folder that all processes share."


@contextmanager
def shared_folder(processes: Processes, place: Path | None = None) -> Iterator[Path | None]:
    """Make a folder for the tables of several processes, and remove it after the main process's ``with`` block.

    Args:
        processes: processes of the run; every process must call this, and read no table after the block of the main
            process. One process needs no folder and gets None.
        place: folder that all processes can read and write; its content is deleted. None: a new folder in TMPDIR.
    """
    if processes.count == 1:
        yield None
        return
    made = None
    if processes.is_main:
        with storage_errors(f"write {place or tempfile.gettempdir()}", _HINT):
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(parents=True)
            made = str(place or tempfile.mkdtemp(prefix="hgld-rows-"))
    folder = Path(from_main(made, processes))
    try:
        yield folder
    finally:
        if processes.is_main:
            shutil.rmtree(folder, ignore_errors=True)


class RowTable:
    """An (N, D) float32 table whose rows are written by the processes that computed them.

    One process keeps the table in memory. Several processes write to one ``.npy`` file: no row is sent to another
    process, and every process maps the file. The memory that a mapped file takes belongs to the system, which can free
    it at any time.

    Args:
        shape: N and D.
        processes: processes of the run; every process must make and close the table.
        folder: folder from :func:`shared_folder`; unused for one process.

    Attributes:
        folder: folder of the file.
        file: the file; None for one process.

    Raises:
        InputError: this process does not see the folder of the main process.
        StorageError: the disk is full or not writable.
    """

    def __init__(self, shape: tuple[int, int], processes: Processes, folder: Path | None) -> None:
        self.shape, self.folder, self.file, self._processes = shape, folder, None, processes
        if processes.count == 1:
            self._rows = torch.empty(shape)
            return
        assert folder is not None
        name = None
        if processes.is_main:
            with storage_errors(f"write {folder}", _HINT):
                name = str(folder / f"{next(_NUMBERS)}.npy")
                np.lib.format.open_memmap(name, "w+", np.float32, shape=shape)
        self.file = Path(from_main(name, processes))
        if not self.file.is_file():
            raise InputError(
                f"{folder}: process {processes.index} does not see the files of the main process there. Set TMPDIR to "
                "a folder that all processes share."
            )
        # "r+" truncates nothing; without a memory map, because a full disk would crash the process.
        self._out = self.file.open("r+b")
        self._begin = self.file.stat().st_size - 4 * shape[0] * shape[1]

    def write(self, items: np.ndarray, rows: Tensor) -> None:
        """Write the (n, D) rows of ``items``, (n,) ascending positions that no other process writes."""
        if self.file is None:
            self._rows[torch.from_numpy(items)] = rows.float().cpu()
            return
        values = rows.float().cpu().contiguous().numpy()
        starts = np.flatnonzero(np.diff(items, prepend=-2) != 1).tolist()
        with storage_errors(f"write {self.file}", _HINT):
            for start, stop in itertools.pairwise([*starts, len(items)]):
                self._out.seek(self._begin + 4 * self.shape[1] * int(items[start]))
                self._out.write(values[start:stop].data)

    def own(self, items: np.ndarray) -> Tensor:
        """Return (n, D) rows that this process has written."""
        if self.file is None:
            return self._rows[torch.from_numpy(items)]
        self._out.flush()
        return torch.from_numpy(np.load(self.file, mmap_mode="r")[items])

    def close(self) -> None:
        """Finish this process's rows.

        Raises:
            StorageError: the disk is full.
        """
        if self.file is not None:
            with storage_errors(f"write {self.file}", _HINT):
                self._out.close()

    def read(self) -> Tensor:
        """Return the whole table after every process has closed it: in memory, or mapped from the file."""
        if self.file is None:
            return self._rows
        wait_for_all(self._processes)
        return torch.from_numpy(np.load(self.file, mmap_mode="c"))  # "c": a private copy of what is written to


def change_rows(
    table: Tensor,
    processes: Processes,
    folder: Path | None,
    change: Callable[[Tensor], Tensor],
    kept: Sequence[int] | np.ndarray | None = None,
) -> tuple[Tensor, Path | None]:
    """Compute a new table from the rows of a table, block by block; every process computes its share of the rows.

    Args:
        table: (N, D) rows on the CPU.
        processes: processes of the run; every process must call this.
        folder: folder from :func:`shared_folder`.
        change: function from (n, D) rows to (n, D) rows; a row must not depend on the other rows.
        kept: positions of the rows to keep, ascending; None: all.

    Returns:
        the new table and its file (:class:`RowTable`).
    """
    rows = np.arange(len(table)) if kept is None else np.asarray(kept)
    made = RowTable((len(rows), table.shape[1]), processes, folder)
    for items in Sharing(processes, folder).blocks(len(rows)):
        made.write(items, change(table[torch.from_numpy(rows[items])]))
    made.close()
    return made.read(), made.file


@dataclass(frozen=True)
class Sharing:
    """Division of an evaluation among processes.

    Attributes:
        processes: processes of the run; every process must call every method.
        folder: folder for their tables, from :func:`shared_folder`.
    """

    processes: Processes
    folder: Path | None

    def own(self, count: int) -> range:
        """Return this process's share of ``count`` consecutive things."""
        share = -(-count // self.processes.count)
        return range(count)[self.processes.index * share : (self.processes.index + 1) * share]

    def blocks(self, count: int) -> Iterator[np.ndarray]:
        """Yield the positions of this process's rows of a table of ``count`` rows, block by block.

        The blocks do not depend on the number of processes, because a matrix product of other blocks may round
        differently.
        """
        for block in self.own(-(-count // ROWS_AT_ONCE)):
            yield np.arange(block * ROWS_AT_ONCE, min((block + 1) * ROWS_AT_ONCE, count))

    def total(self, compute: Callable[[range], np.ndarray], count: int) -> np.ndarray:
        """Add float64 arrays in an order that does not depend on the number of processes.

        Args:
            compute: function that takes a range of consecutive row positions and returns their array.
            count: number of rows; they are divided into at most 16 ranges.
        """
        edges = np.linspace(0, -(-count // ROWS_AT_ONCE), _MOST_RANGES + 1).astype(int) * ROWS_AT_ONCE
        ranges = [range(start, min(stop, count)) for start, stop in itertools.pairwise(edges.tolist()) if stop > start]
        total = np.zeros(())
        for first in range(0, len(ranges), self.processes.count):
            here = ranges[first : first + self.processes.count]
            own = compute(here[min(self.processes.index, len(here) - 1)])
            parts = gather(torch.from_numpy(own)[None].to(self.processes.device), self.processes)
            for part in parts[: len(here)].cpu().numpy():
                total = total + part
        return total

    def rank(self, rank: Callable[[range], RetrievalReport], num_queries: int) -> RetrievalReport:
        """Evaluate this process's share of the queries; a query's values do not depend on the sharing.

        Args:
            rank: function that takes a range of query indices and returns the report of these queries.
            num_queries: number of all queries.

        Returns:
            the report of all queries, on every process.
        """
        own, values, facts = self.own(num_queries), b"", None
        if own:
            report = rank(own)
            values = report.per_query.select(report.query_metrics).to_numpy().tobytes()
            of_set = {name: value for name, value in report.values.items() if name not in report.query_metrics}
            facts = [report.query_metrics, of_set, report.settings]
        parts = from_all(values, self.processes)
        # A process without queries gets the names of the metrics from the main process.
        names, of_set, settings = from_main(facts, self.processes)
        table = np.frombuffer(b"".join(parts)).reshape(num_queries, len(names))
        columns = {name: table[:, column] for column, name in enumerate(names)}
        return RetrievalReport.from_columns(columns, settings, num_queries=num_queries, of_set=of_set)


ALONE = Sharing(Processes(0, 1, torch.device("cpu")), None)
