"""Copies across splits: images that are the same, re-encoded, resized, or cropped a little.

Images are compared as 32 x 32 grey values. The similarity of two images is their correlation, before or after the
affine alignment that maximises it (Evangelidis and Psarakis, Parametric Image Alignment Using Enhanced Correlation
Coefficient Maximization, PAMI 2008). A crop that moves the content by a pixel or two lowers the plain correlation, and
changes a perceptual hash, but not the correlation after alignment.
"""

import io
from collections.abc import Callable, Sequence

import cv2
import numpy as np
from PIL import Image
from sklearn.isotonic import IsotonicRegression

from hgld.errors import InputError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress

TRAIN = "train"
_CANDIDATES = 5  # number of candidates that are compared with each image
_MADE = 200  # number of synthetic copies, which show how similar copies are
_COPY_QUANTILE = 0.01  # pairs less similar than 99% of the synthetic copies are not copies
_SIDE = 32
_COARSE = 12  # side in pixels of the small images that find candidates
_BLURRED = 1.2  # standard deviation of the blur before the first comparison, in pixels
_ALIGNED_FROM = 0.75  # images with a lower correlation are not aligned; crops by 5% reach at least 0.79
_LARGEST_CHANGE = 0.15  # if an alignment moves by more than this share of the side, the images differ
_STOP = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 15, 1e-4)
_BLUR = 3  # size of the Gaussian filter of the alignment, in pixels
_LEAST_CONTRAST = 4.0  # an image whose grey values have a smaller standard deviation counts as blank
_CROPPED = 0.95  # share of the sides that synthetic copies keep
_QUALITY = 50  # JPEG quality of synthetic copies
_LARGEST_MADE = 512  # longest side of synthetic copies in pixels, for speed


class ImageCopies:
    """Comparison of N images.

    Args:
        opened: function that returns the image of an item.
        count: number of images N.
        progress: function that is called with a task name, the number of images read and the total.

    Attributes:
        unreadable: reasons why images could not be read; these images are similar to no other image.
    """

    def __init__(self, opened: Callable[[int], Image.Image], count: int, progress: Progress) -> None:
        self.unreadable: list[str] = []
        self._opened = opened
        self._small = np.zeros((count, _SIDE, _SIDE), np.float32)
        for item in range(count):
            try:
                self._small[item] = _grey(opened(item))
            except InputError as error:
                self.unreadable.append(str(error))
            if item % 100 == 99 or item + 1 == count:
                progress("compare images", item + 1, count)
        self._shown = np.asarray(self._small.any(axis=(1, 2)))

    def nearest(self, queries: np.ndarray, references: np.ndarray, k: int) -> np.ndarray:
        """Return the (Q, k) references most similar to each query, by coarse grey values.

        Args:
            queries: (Q,) indices of the query items.
            references: (R,) indices of the items to search; no query finds itself.
            k: number of references per query; all references if there are fewer.
        """
        return _nearest(self._coarse(queries), self._coarse(references), queries, references, k)

    def _coarse(self, items: np.ndarray) -> np.ndarray:
        made = np.stack([cv2.resize(self._small[i], (_COARSE, _COARSE), interpolation=cv2.INTER_AREA) for i in items])
        rows = made.reshape(len(items), -1)
        rows = rows - rows.mean(axis=1, keepdims=True)
        rows[~self._shown[items], 0] = 1.0  # a zero row has no direction, so blank images get one of their own
        return rows

    def of_copies(self, items: np.ndarray) -> np.ndarray:
        """Return the similarities of images to their synthetic copies, which are cropped at random and encoded again.

        Args:
            items: (P,) items; blank images are skipped.
        """
        generator, found = np.random.default_rng(0), []
        for item in items[self._shown[items]].tolist():
            copy = _grey(_cropped(self._opened(item), generator))
            if copy.any():
                found.append(_correlation(self._small[item], copy))
        return np.array(found)

    def alike(self, pairs: np.ndarray) -> np.ndarray:
        """Return the (P,) similarities of pairs (P, 2) of images, at most 1; 0 if one image of the pair is blank."""
        return np.array(
            [
                _correlation(self._small[first], self._small[second])
                if self._shown[first] and self._shown[second]
                else 0.0
                for first, second in pairs.tolist()
            ]
        )


def _grey(image: Image.Image) -> np.ndarray:
    """Return the grey values of an image; all 0 if it is blank."""
    grey = np.asarray(image.convert("L"))
    if grey.std() < _LEAST_CONTRAST:
        return np.zeros((_SIDE, _SIDE), np.float32)
    return cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)


def _cropped(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    image = image.convert("RGB")
    image.thumbnail((_LARGEST_MADE, _LARGEST_MADE))
    wide, high = (max(1, round(_CROPPED * side)) for side in image.size)
    left, top = (
        int(generator.integers(whole - kept + 1)) for whole, kept in zip(image.size, (wide, high), strict=True)
    )
    out = io.BytesIO()
    image.crop((left, top, left + wide, top + high)).save(out, "JPEG", quality=_QUALITY)
    return Image.open(out)


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return the highest correlation of two images: unaligned, or with one image aligned to the other image."""
    plain = float(np.corrcoef(first.ravel(), second.ravel())[0, 1])
    blurred = [cv2.GaussianBlur(grey, (0, 0), _BLURRED) for grey in (first, second)]
    if np.corrcoef(blurred[0].ravel(), blurred[1].ravel())[0, 1] < _ALIGNED_FROM:
        return plain
    return max(plain, _aligned(first, second), _aligned(second, first))


def _aligned(still: np.ndarray, moved: np.ndarray) -> float:
    """Return the correlation of two images after alignment; -1 if no small change aligns them."""
    warp = np.eye(2, 3, dtype=np.float32)
    try:
        found, _ = cv2.findTransformECC(still, moved, warp, cv2.MOTION_AFFINE, _STOP, np.empty(0, np.uint8), _BLUR)
    except cv2.error:  # the alignment does not converge
        return -1.0
    change = np.abs(warp - np.eye(2, 3)) / [1, 1, _SIDE]
    return found if change.max() <= _LARGEST_CHANGE else -1.0


def _nearest(
    query_rows: np.ndarray, reference_rows: np.ndarray, queries: np.ndarray, references: np.ndarray, k: int
) -> np.ndarray:
    """Return (Q, k) references whose rows are nearest to the row of each query; no query finds itself."""
    where = {int(item): place for place, item in enumerate(references)}
    own = np.array([where.get(int(item), -1) for item in queries], dtype=np.int64)
    most = min(k, len(references) - int((own >= 0).any()))
    if most < 1 or not len(queries):
        return np.empty((len(queries), 0), np.int64)
    return references[nearest_neighbors(query_rows, reference_rows, most, self_index=own)[0]]


# -- across splits -----------------------------------------------------------------------------------------------------


def find_copies(
    unit: np.ndarray, labels: np.ndarray, splits: Sequence[str], images: ImageCopies
) -> list[tuple[int, int, float, float]]:
    """Find items of other splits that are copies of training items (of the largest split if no split is ``train``).

    The probability of a copy comes from a comparison with decoys: training items and their nearest training item of
    another finest class. A pair less similar than 99% of the synthetic copies gets probability 0.

    Args:
        unit: (N, D) unit embeddings.
        labels: (N,) finest classes, -1 if unknown.
        splits: (N,) name of each item's split.
        images: object that compares the images.

    Returns:
        per item that is not a training item: index, most similar training item, similarity, probability of a copy.
    """
    split = np.asarray(splits, dtype=object)
    sizes = {name: int((split == name).sum()) for name in dict.fromkeys(splits)}
    trained = TRAIN if TRAIN in sizes else max(sizes, key=lambda name: sizes[name])
    references, queries = np.flatnonzero(split == trained), np.flatnonzero(split != trained)
    generator = np.random.default_rng(0)
    sample = np.sort(generator.permutation(references)[: max(1000, len(queries))])

    def most_alike(asked: np.ndarray, *, other_class: bool) -> tuple[np.ndarray, np.ndarray]:
        best, score = np.full(len(asked), -1), np.full(len(asked), -1.0)
        nearest = _nearest(unit[asked], unit[references], asked, references, _CANDIDATES)
        for found in (nearest, images.nearest(asked, references, _CANDIDATES)):
            wanted = found != asked[:, None]
            if other_class:
                wanted &= labels[found] != labels[asked][:, None]
            rows, columns = np.nonzero(wanted)
            pairs = np.stack([asked[rows], found[rows, columns]], axis=1)
            alike = images.alike(pairs)
            for row, other, value in zip(rows.tolist(), pairs[:, 1].tolist(), alike.tolist(), strict=True):
                if value > score[row]:
                    best[row], score[row] = other, value
        return best, score

    others, alike = most_alike(queries, other_class=False)
    _, decoys = most_alike(sample, other_class=True)
    chances = decoy_posterior(alike, decoys)
    made = images.of_copies(np.sort(generator.permutation(references)[:_MADE]))
    if len(made):
        chances = np.where(alike < np.quantile(made, _COPY_QUANTILE), 0.0, chances)
    found = zip(queries.tolist(), others.tolist(), alike.tolist(), chances.tolist(), strict=True)
    return [row for row in found if row[1] >= 0]


def decoy_posterior(found: np.ndarray, decoys: np.ndarray) -> np.ndarray:
    """Return the probability that each pair is a finding and not a decoy: 1 - f_decoy / f.

    The probability is one minus the local false discovery rate (Efron, Journal of the American Statistical Association
    2004), estimated with decoys. One decoy is added above all scores (Levitsky et al., Unbiased False Discovery Rate
    Estimation for Shotgun Proteomics, Journal of Proteome Research 2017). Without this decoy, the highest score could
    get probability 1 by chance.

    Args:
        found: (M,) scores.
        decoys: (K,) scores of decoys: pairs that cannot be findings.
    """
    if not len(found) or not len(decoys):
        return np.full(len(found), np.nan)
    decoys = np.append(decoys, max(found.max(), decoys.max()) + 1)
    scores, is_found = np.concatenate([found, decoys]), np.arange(len(found) + len(decoys)) < len(found)
    weights = np.where(is_found, 1 / len(found), 1 / (len(decoys) - 1))  # pairs and decoys have equal total weight
    part = IsotonicRegression().fit_transform(scores, is_found.astype(float), sample_weight=weights)[: len(found)]
    return np.clip(1 - (1 - part) / np.maximum(part, 1e-9), 0.0, 1.0)
