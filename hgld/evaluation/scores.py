"""Scores of queries against a gallery, block by block, with bounded memory, on the device asked for."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.labels import Array

# -- the device -------------------------------------------------------------------------------------------------------


def choose_device(embeddings: Array, device: torch.device | str | None) -> torch.device:
    """Return the requested device, or the device of the embeddings (the CPU for arrays).

    Raises:
        ConfigError: there is no such device here, or it cannot compute in float64.
    """
    wanted = embeddings.device if device is None and isinstance(embeddings, Tensor) else device or "cpu"
    try:
        chosen = torch.device(wanted)
        torch.empty(0, dtype=torch.float64, device=chosen).cpu()  # norms and sums are taken in float64
    except (RuntimeError, AssertionError, TypeError) as error:  # torch without CUDA asserts, MPS has no float64
        reason = str(error).partition(". ")[0].rstrip(".")  # what follows lists torch's builds
        raise ConfigError(f"device {str(wanted)!r} cannot be used here ({reason}). Take the device cpu.") from error
    return chosen


def checked_self_index(self_index: Array, num_queries: int) -> np.ndarray:
    """Return the queries' own gallery indices as (Q,) int64, -1 for those that are not in the gallery.

    Raises:
        InputError: another shape or dtype.
    """
    index = self_index.detach().cpu().numpy() if isinstance(self_index, Tensor) else np.asarray(self_index)
    if index.shape != (num_queries,) or not np.issubdtype(index.dtype, np.integer):
        raise InputError(
            f"self_index has shape {index.shape} and dtype {index.dtype}; expected ({num_queries},) integers, -1 for "
            "queries that are not in the gallery."
        )
    return index.astype(np.int64)


# -- scores -----------------------------------------------------------------------------------------------------------

_BLOCK_SCORES = 16_000_000  # scores of a block on the CPU, 64 MB
_FEWEST_ROWS = 128  # least queries per block: with fewer, a product waits for the gallery's memory
_ENOUGH_ROWS = 256  # more queries per block are hardly faster,
_ENOUGH_SCORES = 1 << 28  # and blocks beyond 1 GB are not worth the memory
_CPU_TILE = 2048  # gallery items per product on the CPU, whose embeddings stay in its cache
# A score must depend neither on its block nor on its place in the gallery. The last rows and columns of a product, of
# each BLAS thread's share too, go through other kernels, which round otherwise: MKL's below 4 rows or 12 columns (seen
# with AVX2 and 1 to 64 threads). A product of whole multiples has no such last ones.
_ROW_MULTIPLE = 16
_CPU_COLUMN_MULTIPLE = 64
_SCORE_BYTES = {"cpu": 16, "cuda": 96}  # per pair: the score, the grade, and the memory for ordering them
_SHARE_OF_FREE = 0.4
_MOST_SCORES = 1 << 30
_LARGEST_DOT = 1e37  # differences of scores stay finite in float32
_NUMBERS_AT_ONCE = 1 << 17  # float64 numbers that stay in the processor's second-level cache
_NUMBERS_A_COPY = 1 << 22  # numbers per copy to or from a GPU; every copy waits
_SHARE_PREPARED = 0.2
_CACHED_NUMBERS = 1 << 24  # more 16-bit numbers than this are converted again as fast as a 32-bit copy is read


class Rows:
    """Embeddings as the evaluator ranks them, in float32 and with unit rows, made again whenever a part is asked for.

    So a memory-mapped file of any size is ranked in the memory of a part.

    Args:
        embeddings: (N, D) of any floating dtype, bfloat16, float16 and memory-mapped arrays included.
        side: ``query`` or ``gallery``, for messages.
        normalize: divide every row by its L2 norm, which is taken in float64.
        device: device that the parts are put on.

    Attributes:
        shape: N and D.
        device: device of the parts.

    Raises:
        InputError: not a table of floating numbers, empty, NaN or Inf in it, or a zero vector where norms are needed.
    """

    def __init__(
        self,
        embeddings: Array,
        side: str,
        *,
        normalize: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self.source = _as_table(embeddings, side)
        self.shape = tuple(self.source.shape)
        self.device = torch.device(device)
        on_cpu = self.device.type == self.source.device.type == "cpu"
        self._at_once = max(16, (_NUMBERS_AT_ONCE if on_cpu else _NUMBERS_A_COPY) // self.shape[1])
        wide = torch.empty(min(self._at_once, len(self)), self.shape[1], dtype=torch.float64, device=device)
        narrow = torch.empty_like(wide, dtype=torch.float32)
        norms = torch.empty(len(self), dtype=torch.float64, device=device)
        for start in range(0, len(self), self._at_once):
            part = self.source[start : start + self._at_once]
            stop = start + len(part)
            if part.element_size() == 2:  # converting by way of float32 is twice as fast
                part = narrow[: stop - start].copy_(part)
            torch.linalg.vector_norm(wide[: stop - start].copy_(part), dim=1, out=norms[start:stop])
        if not (bool(norms.isfinite().all()) and _are_scalable(norms, normalize)):
            for start in range(0, len(self), self._at_once):
                part = slice(start, start + self._at_once)
                _check_rows(self.source[part].to(self.device).double(), norms[part], side, start, normalize)
        self._inverse = 1 / norms if normalize else torch.ones_like(norms)
        single = bool(((self._inverse > _LEAST_INVERSE) & (self._inverse < 1 / _LEAST_INVERSE)).all())
        self._in_double = self.source.dtype == torch.float64 or not single  # alike for all parts

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> Tensor:
        """Return the (n, D) float32 rows of a part."""
        return self.fill(torch.empty(self._inverse[part].shape[0], self.shape[1], device=self.device), part)

    def fill(self, out: Tensor, part: slice) -> Tensor:
        """Write the rows of a part into ``out``, (n, D) float32, and return it."""
        source, inverse = self.source[part], self._inverse[part, None]
        single = inverse.float()
        for start in range(0, len(source), self._at_once):
            rows = slice(start, start + self._at_once)
            if self._in_double:
                out[rows] = source[rows].to(self.device).double() * inverse[rows]
            else:
                out[rows].copy_(source[rows]).mul_(single[rows])
        return out


_LEAST_INVERSE = 1e-30  # factors below it would lose precision in float32


def _as_table(embeddings: Array, side: str) -> Tensor:
    """Return a table as a tensor; a memory-mapped array stays on disk.

    Raises:
        InputError: not a table of floating numbers, or empty.
    """
    table = embeddings.detach() if isinstance(embeddings, Tensor) else np.asarray(embeddings)
    floating = table.is_floating_point() if isinstance(table, Tensor) else np.issubdtype(table.dtype, np.floating)
    if table.ndim != 2 or not floating or 0 in table.shape:
        hint = "" if floating or table.ndim != 2 else " Convert them to float32, or are they the labels?"
        raise InputError(
            f"{side} embeddings have shape {tuple(table.shape)} and dtype {table.dtype}; "
            f"expected a non-empty (N, D) table of floating numbers, one row per item.{hint}"
        )
    if isinstance(table, Tensor):
        return table
    if table.dtype not in (np.float16, np.float32, np.float64):  # another byte order, or longer than 64 bits
        table = table.astype(np.float64)
    if min(table.strides) < 0:
        table = np.ascontiguousarray(table)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # hgld does not write to it
        return torch.from_numpy(table)


def prepare_embeddings(
    embeddings: Array, side: str, *, normalize: bool = True, device: torch.device | str = "cpu"
) -> Tensor:
    """Prepare embeddings as the evaluator ranks them: float32, unit rows.

    Args:
        embeddings: (N, D) embeddings; :class:`Rows` describes this and the other arguments.
        side: ``query`` or ``gallery``, for messages.
        normalize: divide every row by its L2 norm.
        device: device to put them on.

    Returns:
        (N, D) float32 on ``device``.

    Raises:
        InputError: as :class:`Rows`.
    """
    return Rows(embeddings, side, normalize=normalize, device=device)[:]


def open_embeddings(
    embeddings: Array, side: str, *, normalize: bool = True, device: torch.device | str = "cpu"
) -> "Tensor | Rows":
    """Prepare embeddings at once if they need little memory, else part by part; the rows are the same.

    Many numbers of 16 bits are prepared part by part too. Arguments and errors are those of :func:`prepare_embeddings`.
    """
    rows = Rows(embeddings, side, normalize=normalize, device=device)
    numbers = rows.shape[0] * rows.shape[1]
    few = 4 * numbers <= _SHARE_PREPARED * _free_bytes(rows.device)
    few = few and (rows.source.element_size() > 2 or numbers <= _CACHED_NUMBERS)
    return rows[:] if few or rows.device.type != "cpu" else rows


def _are_scalable(norms: Tensor, normalize: bool) -> bool:
    """Tell whether rows of these finite norms can be normalised, or have products within float32."""
    return bool((norms > 0).all()) if normalize else float(norms.max()) <= _LARGEST_DOT**0.5


def _check_rows(rows: Tensor, norms: Tensor, side: str, start: int, normalize: bool) -> None:
    """Refuse rows that cannot be ranked, naming the first."""
    for is_bad, problem in (
        (~torch.isfinite(rows).all(dim=1), "holds NaN or Inf{}. Look for a diverged training run or a damaged file."),
        (~torch.isfinite(norms), "has a norm beyond float64{}. Scale the embeddings down."),
        (
            (norms == 0) & normalize,
            "is a zero vector, which has no direction{}. Leave such items out, or pass normalize=False.",
        ),
    ):
        if len(bad := torch.nonzero(is_bad)):
            number = f" ({len(bad)} of {len(rows)} rows from row {start} on)"
            raise InputError(f"{side} embeddings: row {start + int(bad[0])} {problem.format(number)}")
    if not _are_scalable(norms, normalize):
        raise InputError(
            f"{side} embeddings: row {start + int(norms.argmax())} has norm {float(norms.max()):.3g}, and products of "
            "such rows leave float32. Scale the embeddings down, or let them be normalised."
        )


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Take matrix products in true float32 within the body: no TF32, no bfloat16 passes, no autocast, no gradients."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def block_rows(num_queries: int, num_gallery: int, device: torch.device, chunk_size: int | None = None) -> int:
    """Return the number of queries to rank at a time.

    Args:
        num_queries: Q.
        num_gallery: G.
        device: device of the scores.
        chunk_size: the caller's choice; None fits the block to the free memory.

    Raises:
        ConfigError: a chunk size below 1.
    """
    if chunk_size is not None:
        if chunk_size < 1:
            raise ConfigError(f"chunk_size is {chunk_size}; expected at least 1 query.")
        return min(chunk_size, num_queries)
    kind = "cuda" if device.type == "cuda" else "cpu"
    enough = max(_FEWEST_ROWS * num_gallery, min(_ENOUGH_ROWS * num_gallery, _ENOUGH_SCORES))
    wanted = max(_BLOCK_SCORES, enough) if device.type == "cpu" else _MOST_SCORES
    affordable = int(_free_bytes(device) * _SHARE_OF_FREE / _SCORE_BYTES[kind])
    return max(1, min(num_queries, min(wanted, affordable) // num_gallery))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # unused, in torch's allocator
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: assume that 256 MB are free
        return int(_BLOCK_SCORES * _SCORE_BYTES["cpu"] / _SHARE_OF_FREE)


def score_blocks(
    query: "Tensor | Rows", gallery: "Tensor | Rows", rows: int, part: range | None = None
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the scores of consecutive queries.

    Args:
        query: (Q, D) float32.
        gallery: (G, D) float32 on the same device.
        rows: queries per block.
        part: consecutive queries whose scores are wanted; None: all.

    Yields:
        start, stop and the (stop - start, G) products, which the caller may overwrite: their memory is that of the next
        block.
    """
    wanted = range(len(query)) if part is None else part
    num_gallery, tiles = len(gallery), _column_tiles(len(gallery), query.device)
    at_once = rows * max(1, _ROW_MULTIPLE // rows)  # queries a product
    most = _rounded_up(min(at_once, len(wanted)), _ROW_MULTIPLE)
    query, gallery = _padded(query, most), _padded(gallery, tiles[-1].stop)
    buffer = torch.empty(most, len(gallery), dtype=torch.float32, device=query.device)
    for first in range(wanted.start, wanted.stop, at_once):
        last = min(first + at_once, wanted.stop)
        size = _rounded_up(last - first, _ROW_MULTIPLE)
        begin = min(first, len(query) - size)
        queries = query[begin : begin + size]
        for items, embeddings in _tiles(gallery, tiles):
            torch.mm(queries, embeddings.T, out=buffer[:size, items])
        for start in range(first, last, rows):
            stop = min(start + rows, last)
            yield start, stop, buffer[start - begin : stop - begin, :num_gallery].contiguous()


def score_tiles(query: "Tensor | Rows", gallery: "Tensor | Rows", part: range) -> Iterator[tuple[int, range, Tensor]]:
    """Yield the scores of some queries against consecutive items of the gallery: the products of :func:`score_blocks`.

    Args:
        query: (Q, D) float32 on the CPU.
        gallery: (G, D) float32 on the CPU, as large as a product at least.
        part: consecutive queries.

    Yields:
        the first item, the columns that hold its score and those of the items that follow, and a contiguous table
        (len(part), ...) of columns, whose memory is that of the next one.
    """
    size = _rounded_up(len(part), _ROW_MULTIPLE)
    query = _padded(query, size)
    begin = min(part.start, len(query) - size)
    queries, own = query[begin : begin + size], slice(part.start - begin, part.stop - begin)
    buffer = torch.empty(size, _CPU_TILE, dtype=torch.float32)
    start = 0
    for items, embeddings in _tiles(gallery, _column_tiles(len(gallery), torch.device("cpu"))):
        torch.mm(queries, embeddings.T, out=buffer[:, : len(embeddings)])
        yield start, range(start - items.start, len(embeddings)), buffer[own]
        start = items.stop


def _tiles(gallery: "Tensor | Rows", tiles: list[slice]) -> Iterator[tuple[slice, Tensor]]:
    """Yield the columns of each product and the items' embeddings, whose memory may be that of the next ones."""
    made = torch.empty(_CPU_TILE, gallery.shape[1]) if isinstance(gallery, Rows) else None
    for items in tiles:
        if isinstance(gallery, Rows):
            assert made is not None
            yield items, gallery.fill(made[: items.stop - items.start], items)
        else:
            yield items, gallery[items]


def _column_tiles(num_gallery: int, device: torch.device) -> list[slice]:
    """Return the columns of each product; the last tile overlaps the one before it, or exceeds a small gallery."""
    if device.type != "cpu":
        return [slice(0, num_gallery)]
    tiles = []
    for first in range(0, num_gallery, _CPU_TILE):
        stop = min(first + _CPU_TILE, num_gallery)
        width = _rounded_up(stop - first, _CPU_COLUMN_MULTIPLE)
        begin = max(0, stop - width)
        tiles.append(slice(begin, begin + width))
    return tiles


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _padded(table: "Tensor | Rows", rows: int) -> "Tensor | Rows":
    """Pad a table with rows of zeros to at least ``rows`` rows."""
    if len(table) >= rows:
        return table
    return torch.nn.functional.pad(table[:], (0, 0, 0, rows - len(table)))


def descending_keys(scores: Tensor) -> Tensor:
    """Return int64 keys of 32 bits that ascend where the float32 scores descend, exact about ties."""
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: -0.0 becomes the 0.0 that it equals
    return ~torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
