"""Scores of queries against a gallery, block by block, with bounded memory, on the device asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError

# -- the device -------------------------------------------------------------------------------------------------------


def choose_device(embeddings: Tensor | np.ndarray, device: torch.device | str | None) -> torch.device:
    """Return the device asked for, or that of the embeddings (the CPU for arrays).

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


# -- scores -----------------------------------------------------------------------------------------------------------

_BLOCK_SCORES = 16_000_000  # scores of a block on the CPU, 64 MB: enough rows for the matrix product at 60,000 columns
_CPU_TILE = 2048  # gallery items a product on the CPU: their embeddings stay in its cache
# A score must depend neither on its block nor on its place in the gallery. The last rows and columns of a product, of
# each BLAS thread's share too, go through other kernels, which round otherwise: MKL's below 4 rows or 12 columns (seen
# with AVX2 and 1 to 64 threads). A product of whole multiples has no such last ones.
_ROW_MULTIPLE = 16
_CPU_COLUMN_MULTIPLE = 64
_SCORE_BYTES = {"cpu": 16, "cuda": 96}  # score, grade and what ordering them takes at the same time
_SHARE_OF_FREE = 0.4
_MOST_SCORES = 1 << 30
_LARGEST_DOT = 1e37  # differences of scores stay finite in float32
_ROWS_AT_ONCE = 8192


def prepare_embeddings(
    embeddings: Tensor | np.ndarray, side: str, *, normalize: bool = True, device: torch.device | str = "cpu"
) -> Tensor:
    """Prepare embeddings as the evaluator ranks them: float32, unit rows.

    Args:
        embeddings: (N, D) of any floating dtype, bfloat16, float16 and memory-mapped arrays included.
        side: ``query`` or ``gallery``, for messages.
        normalize: divide every row by its L2 norm, which is taken in float64.
        device: where to put them.

    Returns:
        (N, D) float32 on ``device``.

    Raises:
        InputError: not a table of floating numbers, empty, NaN or Inf in it, or a zero vector where norms are needed.
    """
    table = embeddings.detach() if isinstance(embeddings, Tensor) else np.asarray(embeddings)
    floating = table.is_floating_point() if isinstance(table, Tensor) else np.issubdtype(table.dtype, np.floating)
    if table.ndim != 2 or not floating or 0 in table.shape:
        raise InputError(
            f"{side} embeddings have shape {tuple(table.shape)} and dtype {table.dtype}; "
            "expected a non-empty (N, D) table of floating numbers, one row an item."
        )
    prepared = torch.empty(tuple(table.shape), dtype=torch.float32, device=device)
    for start in range(0, len(table), _ROWS_AT_ONCE):
        part = table[start : start + _ROWS_AT_ONCE]
        rows = (
            part.to(device).double() if isinstance(part, Tensor) else torch.tensor(part.astype(np.float64)).to(device)
        )
        norms = torch.linalg.vector_norm(rows, dim=1)
        _check_rows(rows, norms, side, start, normalize)
        prepared[start : start + len(rows)] = rows / norms[:, None] if normalize else rows
    return prepared


def _check_rows(rows: Tensor, norms: Tensor, side: str, start: int, normalize: bool) -> None:
    bad = torch.nonzero(~torch.isfinite(rows).all(dim=1))
    if len(bad):
        raise InputError(
            f"{side} embeddings: row {start + int(bad[0])} holds NaN or Inf ({len(bad)} of {len(rows)} rows from row "
            f"{start} on); expected finite numbers. Look for a diverged training run or an unfinished file."
        )
    beyond = torch.nonzero(~torch.isfinite(norms))
    if len(beyond):
        raise InputError(
            f"{side} embeddings: row {start + int(beyond[0])} has a norm beyond float64 ({len(beyond)} of {len(rows)} "
            f"rows from row {start} on). Scale the embeddings down."
        )
    zero = torch.nonzero(norms == 0)
    if normalize and len(zero):
        raise InputError(
            f"{side} embeddings: row {start + int(zero[0])} is a zero vector ({len(zero)} of {len(rows)} rows from row "
            f"{start} on), which has no direction. Leave such items out, or pass normalize=False."
        )
    if not normalize and float(norms.max()) ** 2 > _LARGEST_DOT:
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
        device: where the scores are.
        chunk_size: the caller's choice; None fits the block to the free memory.

    Raises:
        ConfigError: a chunk size below 1.
    """
    if chunk_size is not None:
        if chunk_size < 1:
            raise ConfigError(f"chunk_size is {chunk_size}; expected at least 1 query.")
        return min(chunk_size, num_queries)
    kind = "cuda" if device.type == "cuda" else "cpu"
    wanted = _BLOCK_SCORES if device.type == "cpu" else _MOST_SCORES
    affordable = int(_free_bytes(device) * _SHARE_OF_FREE / _SCORE_BYTES[kind])
    return max(1, min(num_queries, min(wanted, affordable) // num_gallery))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: 256 MB are there anywhere
        return int(_BLOCK_SCORES * _SCORE_BYTES["cpu"] / _SHARE_OF_FREE)


def score_blocks(
    query: Tensor, gallery: Tensor, rows: int, part: range | None = None
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the scores of consecutive queries.

    Args:
        query: (Q, D) float32.
        gallery: (G, D) float32 on the same device.
        rows: queries a block.
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
        for items in tiles:
            torch.mm(query[begin : begin + size], gallery[items].T, out=buffer[:size, items])
        for start in range(first, last, rows):
            stop = min(start + rows, last)
            yield start, stop, buffer[start - begin : stop - begin, :num_gallery].contiguous()


def _column_tiles(num_gallery: int, device: torch.device) -> list[slice]:
    """Return the columns of each product; the last ones reach back into those before, or beyond a small gallery."""
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


def _padded(table: Tensor, rows: int) -> Tensor:
    """Pad a table with zeros to at least so many rows."""
    return table if len(table) >= rows else torch.nn.functional.pad(table, (0, 0, 0, rows - len(table)))
