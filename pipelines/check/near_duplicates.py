"""Near-duplicate images: a perceptual hash of 64 bits, and a search for close hashes that scales to millions.

The hash is the usual DCT one (pHash): grey 32 x 32, its cosine transform, and one bit for each of the 8 x 8 lowest
frequencies: above their median or not. Two hashes of at most :data:`MAX_DISTANCE` = 5 differing bits agree but for at
most one bit in one of three bands of 21 or 22 bits; so every such pair is found by looking up each band with no bit and
with every single bit flipped, instead of comparing all pairs.
"""

import cv2
import numpy as np

from hgld.data.images import ImageHeader

from ..shards.image_checks import thumbnail

MAX_DISTANCE = 5
_SIDE, _KEPT = 32, 8
_LEAST_CONTRAST = 4.0  # standard deviation of the grey values below which frequencies are noise
_BANDS = ((0, 22), (22, 21), (43, 21))  # first bit, bits
_CANDIDATES_AT_ONCE = 1 << 22


def perceptual_hash(data: bytes, header: ImageHeader) -> int | None:
    """Return the DCT hash of the upright image; None where it is too plain for one.

    Raises:
        ImageError: the image cannot be decoded.
    """
    grey = thumbnail(data, header, _SIDE)
    if cv2.meanStdDev(grey)[1].item() < _LEAST_CONTRAST:
        return None
    lowest = cv2.dct(grey)[:_KEPT, :_KEPT].ravel()
    median = np.sort(lowest[1:])[len(lowest) // 2 - 1]  # without the first, the mean brightness, far above the others
    bits = lowest > median
    return int(np.packbits(bits).view(">u8")[0])


def nearest(queries: np.ndarray, references: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the closest reference of every query within :data:`MAX_DISTANCE` differing bits.

    Args:
        queries: (Q,) uint64 hashes.
        references: (R,) uint64 hashes.

    Returns:
        (Q,) int64 place of the reference, the first of equally close ones, or -1 if none is near; (Q,) int64 distance,
        -1 likewise.
    """
    asked, where_asked = np.unique(queries, return_inverse=True)
    known, first_known = np.unique(references, return_index=True)
    best = np.full(len(asked), np.iinfo(np.int64).max)  # distance in the high half, place in the low one
    for first_bit, bits in _BANDS:
        _search_band(asked, known, first_known, first_bit, bits, best)
    found = best != np.iinfo(np.int64).max
    places = np.where(found, best & 0xFFFFFFFF, -1)
    distances = np.where(found, best >> 32, -1)
    return places[where_asked], distances[where_asked]


def _search_band(
    asked: np.ndarray, known: np.ndarray, first_known: np.ndarray, first_bit: int, bits: int, best: np.ndarray
) -> None:
    """Improve ``best`` by the pairs that differ in at most one bit of one band."""
    mask = np.uint64((1 << bits) - 1)
    known_bands = ((known >> np.uint64(first_bit)) & mask).astype(np.int64)
    order = np.argsort(known_bands, kind="stable")
    starts = np.zeros((1 << bits) + 1, np.int64)
    np.cumsum(np.bincount(known_bands, minlength=1 << bits), out=starts[1:])
    asked_bands = ((asked >> np.uint64(first_bit)) & mask).astype(np.int64)
    for flip in (0, *(1 << bit for bit in range(bits))):
        looked_up = asked_bands ^ flip
        counts = starts[looked_up + 1] - starts[looked_up]
        hit = np.flatnonzero(counts)
        for part in _parts(hit, counts[hit]):
            sizes = counts[part]
            ends = np.cumsum(sizes)
            places = np.arange(ends[-1]) + np.repeat(starts[looked_up[part]] - (ends - sizes), sizes)
            query, reference = np.repeat(part, sizes), order[places]
            distance = np.bitwise_count(asked[query] ^ known[reference]).astype(np.int64)
            near = distance <= MAX_DISTANCE
            np.minimum.at(best, query[near], distance[near] << 32 | first_known[reference[near]])


def _parts(items: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Cut items into parts of bounded total size."""
    if not len(items):
        return []
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // _CANDIDATES_AT_ONCE)) + 1
    return np.split(items, cuts)
