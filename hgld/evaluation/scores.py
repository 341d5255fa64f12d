"""Scores of queries against a gallery, block by block, with bounded memory, on the requested device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.labels import Array

# -- the device -------------------------------------------------------------------------------------------------------


def choose_device(embeddings: "Array | Rows", device: torch.device | str | None) -> torch.device:
    """Return the requested device, or the device of the embeddings (the CPU for arrays).

    Raises:
        ConfigError: the device is not available, or cannot compute in float64.
    """
    wanted = embeddings.device if device is None and isinstance(embeddings, Tensor | Rows) else device or "cpu"
    try:
        chosen = torch.device(wanted)
        torch.empty(0, dtype=torch.float64, device=chosen).cpu()  # norms and sums are computed in float64
    # AssertionError: torch has no CUDA; TypeError: MPS has no float64
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")  # keep the first sentence: the rest lists torch's builds
        raise ConfigError(f"device {str(wanted)!r} cannot be used here ({reason}). Use the device cpu.") from error
    return chosen


def checked_self_index(self_index: Array, num_queries: int) -> np.ndarray:
    """Return each query's own gallery index as (Q,) int64, -1 if the query is not in the gallery.

    Raises:
        InputError: ``self_index`` has the wrong shape or dtype.
    """
    index = self_index.detach().cpu().numpy() if isinstance(self_index, Tensor) else np.asarray(self_index)
    if index.shape != (num_queries,) or not np.issubdtype(index.dtype, np.integer):
        raise InputError(
            f"self_index has shape {index.shape} and dtype {index.dtype}; expected ({num_queries},) integers, -1 for "
            "queries that are not in the gallery."
        )
    return index.astype(np.int64)


# -- scores -----------------------------------------------------------------------------------------------------------

_BLOCK_SCORES = 16_000_000  # scores per block on the CPU: 64 MB
_FEWEST_ROWS = 128  # minimum number of queries per block: with fewer, reading the gallery from memory dominates
_ENOUGH_ROWS = 256  # queries per block; larger blocks are hardly faster
_SHARED_ROWS = 64  # queries per block of each of several processes, whose blocks are in memory at the same time
_ENOUGH_SCORES = 1 << 28  # scores per block; blocks beyond 1 GB are not worth the memory
# Gallery items per product: on the CPU their embeddings fit into the cache; on a GPU only the items of a large gallery.
_TILE = {"cpu": 2048, "cuda": 1 << 16}
# A score must depend neither on its block nor on the item's position in the gallery. BLAS computes the last rows and
# columns of a product, and of each thread's share, with other kernels, which round differently. In MKL these are the
# last rows below 4 and the last columns below 12 (observed with AVX2 and 1 to 64 threads). A product whose sides are
# multiples of these numbers has no remainder.
_ROW_MULTIPLE = 16
_CPU_COLUMN_MULTIPLE = 64
_SCORE_BYTES = {"cpu": 16, "cuda": 96}  # bytes per pair for the score, the grade and their sorting
_SHARE_OF_FREE = 0.4
_MOST_SCORES = 1 << 30
_LARGEST_DOT = 1e37  # if products are below this, their differences stay finite in float32
_NUMBERS_AT_ONCE = 1 << 17  # float64 numbers per pass, so that they stay in the processor's second-level cache
_NUMBERS_A_COPY = 1 << 22  # numbers per copy to or from a GPU; the host waits for every copy
_SHARE_PREPARED = 0.2
_CACHED_NUMBERS = 1 << 24  # beyond this size, converting 16-bit numbers again is as fast as reading a 32-bit copy


class Rows:
    """Embeddings prepared for ranking: float32 unit rows, computed for the requested part at every access.

    So ranking a memory-mapped file of any size needs only the memory of one part.

    Args:
        embeddings: (N, D) of any floating dtype, bfloat16, float16 and memory-mapped arrays included.
        side: side that the embeddings are on, ``query`` or ``gallery``, for messages.
        normalize: whether to divide every row by its L2 norm, which is computed in float64.
        device: device that the parts are put on.

    Attributes:
        shape: N and D.
        device: device of the parts.

    Raises:
        InputError: the embeddings are not a table of floating-point numbers, are empty, hold NaN or Inf, or hold a zero
            vector although ``normalize`` is set.
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
            if part.element_size() == 2:  # converting via float32 is twice as fast
                part = narrow[: stop - start].copy_(part)
            torch.linalg.vector_norm(wide[: stop - start].copy_(part), dim=1, out=norms[start:stop])
        if not (bool(norms.isfinite().all()) and _are_scalable(norms, normalize)):
            for start in range(0, len(self), self._at_once):
                part = slice(start, start + self._at_once)
                _check_rows(self.source[part].to(self.device).double(), norms[part], side, start, normalize)
        self._inverse = 1 / norms if normalize else torch.ones_like(norms)
        single = bool(((self._inverse > _LEAST_INVERSE) & (self._inverse < 1 / _LEAST_INVERSE)).all())
        self._in_double = self.source.dtype == torch.float64 or not single  # all rows use one precision

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice | Tensor) -> Tensor:
        """Return the (n, D) float32 rows of a part: consecutive rows, or rows at the (n,) positions in a tensor."""
        return self.fill(torch.empty(self._inverse[part].shape[0], self.shape[1], device=self.device), part)

    def fill(self, out: Tensor, part: slice | Tensor) -> Tensor:
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


_LEAST_INVERSE = 1e-30  # smallest factor that keeps its precision in float32


def _as_table(embeddings: Array, side: str) -> Tensor:
    """Convert a table to a tensor; a memory-mapped array stays on disk.

    Raises:
        InputError: the argument is not a table of floating-point numbers, or is empty.
    """
    table = embeddings.detach() if isinstance(embeddings, Tensor) else np.asarray(embeddings)
    floating = table.is_floating_point() if isinstance(table, Tensor) else np.issubdtype(table.dtype, np.floating)
    if table.ndim != 2 or not floating or 0 in table.shape:
        hint = "" if floating or table.ndim != 2 else " Convert them to float32, or check whether they are labels."
        raise InputError(
            f"{side} embeddings have shape {tuple(table.shape)} and dtype {table.dtype}; "
            f"expected a non-empty (N, D) table of floating numbers, one row per item.{hint}"
        )
    if isinstance(table, Tensor):
        return table
    # the array has a foreign byte order or numbers of more than 64 bits
    if table.dtype not in (np.float16, np.float32, np.float64):
        table = table.astype(np.float64)
    if min(table.strides) < 0:
        table = np.ascontiguousarray(table)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # hgld never writes to the array
        return torch.from_numpy(table)


def prepare_embeddings(
    embeddings: Array, side: str, *, normalize: bool = True, device: torch.device | str = "cpu"
) -> Tensor:
    """Prepare embeddings for ranking: float32 unit rows.

    Args:
        embeddings: (N, D) of any floating dtype.
        side: side that the embeddings are on, ``query`` or ``gallery``, for messages.
        normalize: whether to divide every row by its L2 norm.
        device: device of the result.

    Returns:
        (N, D) float32 on ``device``.

    Raises:
        InputError: the embeddings are not a table of floating-point numbers, are empty, hold NaN or Inf, or hold a zero
            vector although ``normalize`` is set.
    """
    return Rows(embeddings, side, normalize=normalize, device=device)[:]


def open_embeddings(
    embeddings: "Array | Rows",
    side: str,
    *,
    normalize: bool = True,
    device: torch.device | str = "cpu",
    is_shared: bool = False,
) -> "Tensor | Rows":
    """Prepare embeddings at once if they need little memory, else part by part; both methods give the same rows.

    On the CPU, large tables of 16-bit numbers are prepared part by part too, and all large tables if ``is_shared``:
    several processes rank, and their copies would add up. ``Rows`` are returned unchanged. The other arguments and the
    errors are the same as in :func:`prepare_embeddings`.
    """
    if isinstance(embeddings, Rows):
        return embeddings
    rows = Rows(embeddings, side, normalize=normalize, device=device)
    numbers, on_cpu = rows.shape[0] * rows.shape[1], rows.device.type == "cpu"
    few = 4 * numbers <= _SHARE_PREPARED * _free_bytes(rows.device)
    by_parts = on_cpu and (is_shared or rows.source.element_size() == 2) and numbers > _CACHED_NUMBERS
    return rows[:] if few and not by_parts else rows


def _are_scalable(norms: Tensor, normalize: bool) -> bool:
    """Tell whether rows with these finite norms can be normalised, or, without ``normalize``, multiplied in float32."""
    return bool((norms > 0).all()) if normalize else float(norms.max()) <= _LARGEST_DOT**0.5


def _check_rows(rows: Tensor, norms: Tensor, side: str, start: int, normalize: bool) -> None:
    """Raise an error with the first row that cannot be ranked."""
    for is_bad, problem in (
        (~torch.isfinite(rows).all(dim=1), "holds NaN or Inf{}. Check for a diverged training run or a damaged file."),
        (~torch.isfinite(norms), "has a norm beyond float64{}. Scale the embeddings down."),
        (
            (norms == 0) & normalize,
            "is a zero vector, which has no direction{}. Remove such items, or pass normalize=False.",
        ),
    ):
        if len(bad := torch.nonzero(is_bad)):
            number = f" ({len(bad)} of {len(rows)} rows, starting at row {start})"
            raise InputError(f"{side} embeddings: row {start + int(bad[0])} {problem.format(number)}")
    if not _are_scalable(norms, normalize):
        raise InputError(
            f"{side} embeddings: row {start + int(norms.argmax())} has norm {float(norms.max()):.3g}, and products of "
            "such rows overflow float32. Scale the embeddings down, or let them be normalised."
        )


def check_dimensions(query: "Tensor | Rows", gallery: "Tensor | Rows") -> None:
    """Raise an error if queries and gallery have different dimensions.

    Raises:
        InputError: the dimensions differ.
    """
    if query.shape[1] != gallery.shape[1]:
        raise InputError(
            f"query embeddings have {query.shape[1]} dimensions, gallery embeddings {gallery.shape[1]}; expected "
            "embeddings of one model, with equal dimensions."
        )


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Compute matrix products in true float32 in the ``with`` block: no TF32, bfloat16, autocast or gradients."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def block_rows(
    num_queries: int,
    num_gallery: int,
    device: torch.device,
    chunk_size: int | None = None,
    *,
    is_shared: bool = False,
) -> int:
    """Return the number of queries to rank at a time.

    Args:
        num_queries: number of queries Q.
        num_gallery: number of gallery items G.
        device: device of the scores.
        chunk_size: number that the caller chose; None: as many as fit the free memory.
        is_shared: whether several processes rank, which share the memory.

    Raises:
        ConfigError: the chunk size is below 1.
    """
    if chunk_size is not None:
        if chunk_size < 1:
            raise ConfigError(f"chunk_size is {chunk_size}; expected at least 1 query.")
        return min(chunk_size, num_queries)
    kind = "cuda" if device.type == "cuda" else "cpu"
    if is_shared:
        enough = _SHARED_ROWS * num_gallery
    else:
        enough = max(_FEWEST_ROWS * num_gallery, min(_ENOUGH_ROWS * num_gallery, _ENOUGH_SCORES))
    wanted = max(_BLOCK_SCORES, enough) if device.type == "cpu" else _MOST_SCORES
    affordable = int(_free_bytes(device) * _SHARE_OF_FREE / _SCORE_BYTES[kind])
    return max(1, min(num_queries, min(wanted, affordable) // num_gallery))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        # reserved by torch's allocator, but unused
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
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
        rows: number of queries per block.
        part: indices of consecutive queries; None: all queries.

    Yields:
        start, stop and the (stop - start, G) products. The next block reuses their memory, so the caller may overwrite
        them.
    """
    wanted = range(len(query)) if part is None else part
    num_gallery, tiles = len(gallery), _column_tiles(gallery)
    at_once = rows * max(1, _ROW_MULTIPLE // rows)  # queries per matrix product
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
    """Yield the scores of queries against consecutive gallery items, equal to the scores of :func:`score_blocks`.

    Args:
        query: (Q, D) float32 on the CPU.
        gallery: (G, D) float32 on the CPU, at least as large as one product.
        part: indices of consecutive queries.

    Yields:
        (start, columns, scores). ``start`` is the gallery index of the first new item. ``columns`` is the range of
        columns of ``scores`` that hold the items from ``start`` on. ``scores`` is contiguous, (len(part), ...); the
        next table reuses its memory.
    """
    size = _rounded_up(len(part), _ROW_MULTIPLE)
    query = _padded(query, size)
    begin = min(part.start, len(query) - size)
    queries, own = query[begin : begin + size], slice(part.start - begin, part.stop - begin)
    buffer = torch.empty(size, _TILE["cpu"], dtype=torch.float32)
    start = 0
    for items, embeddings in _tiles(gallery, _column_tiles(gallery)):
        torch.mm(queries, embeddings.T, out=buffer[:, : len(embeddings)])
        yield start, range(start - items.start, len(embeddings)), buffer[own]
        start = items.stop


def _tiles(gallery: "Tensor | Rows", tiles: list[slice]) -> Iterator[tuple[slice, Tensor]]:
    """Yield the columns of each product and the items' embeddings; the next step may reuse their memory."""
    widest = max(items.stop - items.start for items in tiles)
    made = torch.empty(widest, gallery.shape[1], device=gallery.device) if isinstance(gallery, Rows) else None
    for items in tiles:
        if isinstance(gallery, Rows):
            assert made is not None
            yield items, gallery.fill(made[: items.stop - items.start], items)
        else:
            yield items, gallery[items]


def _column_tiles(gallery: "Tensor | Rows") -> list[slice]:
    """Return the columns of each product; the last tile overlaps the one before it, or exceeds a small gallery."""
    on_cpu, size, tiles = gallery.device.type == "cpu", len(gallery), []
    if not on_cpu and not isinstance(gallery, Rows):
        return [slice(0, size)]
    tile = _TILE["cpu" if on_cpu else "cuda"]
    for first in range(0, size, tile):
        stop = min(first + tile, size)
        width = _rounded_up(stop - first, _CPU_COLUMN_MULTIPLE) if on_cpu else min(tile, size)
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
    """Return int64 keys of 32 bits that ascend as the float32 scores descend; equal scores have equal keys."""
    # adding 0.0 turns -0.0 into 0.0, so that equal scores have equal bits
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)
    return ~torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
