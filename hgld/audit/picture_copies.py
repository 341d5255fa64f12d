"""Pictures that are copies of each other: re-encoded, resized, or cropped a little.

A picture is compared as 32 x 32 grey values. Two pictures are as much alike as their correlation, as they are or once
one is laid over the other by the affine map that makes it highest (Evangelidis and Psarakis, Parametric Image Alignment
Using Enhanced Correlation Coefficient Maximization, PAMI 2008): a crop that moves the content by a pixel or two lowers
the correlation of the wholes, and the bits of a perceptual hash, but not this.
"""

import io
from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image

from hgld.errors import InputError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress

_SIDE = 32
_COARSE = 12  # side at which candidates are found
_BLURRED = 1.2  # deviation in pixels at which pictures are compared before they are aligned
_ALIGNED_FROM = 0.75  # correlation there below which a copy is out of the question: of crops by 5% the least was .79
_LARGEST_CHANGE = 0.15  # of the side: an alignment that takes more shows something else
_STOP = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 15, 1e-4)
_BLUR = 3  # pixels of the Gaussian by which the alignment smooths
_LEAST_CONTRAST = 4.0  # standard deviation of the grey values below which a picture shows nothing
_CROPPED = 0.95  # of the sides, which the copies made here keep
_QUALITY = 50  # of their JPEG
_LARGEST_MADE = 512  # pixels of their longer side, to make them quickly


class PictureCopies:
    """Comparison of N pictures.

    Args:
        opened: returns the picture of an item.
        count: N.
        progress: called with a task, the pictures read and their number.

    Attributes:
        unreadable: reasons why pictures could not be read; their items are like no other.
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
                progress("compare pictures", item + 1, count)
        self._shown = np.asarray(self._small.any(axis=(1, 2)))

    def nearest(self, queries: np.ndarray, references: np.ndarray, k: int) -> np.ndarray:
        """Return (Q, k) references that look most like each query, by their coarse grey values.

        Args:
            queries: (Q,) items.
            references: (R,) items; no query finds itself.
            k: how many, at most; fewer if there are no more references.
        """
        place = np.full(len(self._small), -1)
        place[references] = np.arange(len(references))
        own = place[queries]
        most = min(k, len(references) - int((own >= 0).any()))
        if most < 1 or not len(queries):
            return np.empty((len(queries), 0), np.int64)
        found, _ = nearest_neighbors(self._coarse(queries), self._coarse(references), most, self_index=own)
        return references[found]

    def _coarse(self, items: np.ndarray) -> np.ndarray:
        made = np.stack([cv2.resize(self._small[i], (_COARSE, _COARSE), interpolation=cv2.INTER_AREA) for i in items])
        rows = made.reshape(len(items), -1)
        rows = rows - rows.mean(axis=1, keepdims=True)
        rows[~self._shown[items], 0] = 1.0  # a direction of their own, as zero has none
        return rows

    def of_copies(self, items: np.ndarray) -> np.ndarray:
        """Return how much pictures are alike to copies that are made of them: cropped anywhere and encoded anew.

        Args:
            items: (P,) of them; those whose picture shows nothing are left out.
        """
        generator, found = np.random.default_rng(0), []
        for item in items[self._shown[items]].tolist():
            copy = _grey(_cropped(self._opened(item), generator))
            if copy.any():
                found.append(_correlation(self._small[item], copy))
        return np.array(found)

    def alike(self, pairs: np.ndarray) -> np.ndarray:
        """Return (P,) how much the pictures of each pair (P, 2) are alike, at most 1; 0 if one shows nothing."""
        return np.array(
            [
                _correlation(self._small[first], self._small[second])
                if self._shown[first] and self._shown[second]
                else 0.0
                for first, second in pairs.tolist()
            ]
        )


def _grey(picture: Image.Image) -> np.ndarray:
    """Return the grey values at which pictures are compared; 0 where it shows nothing."""
    grey = np.asarray(picture.convert("L"))
    if grey.std() < _LEAST_CONTRAST:
        return np.zeros((_SIDE, _SIDE), np.float32)
    return cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)


def _cropped(picture: Image.Image, generator: np.random.Generator) -> Image.Image:
    picture = picture.convert("RGB")
    picture.thumbnail((_LARGEST_MADE, _LARGEST_MADE))
    wide, high = (max(1, round(_CROPPED * side)) for side in picture.size)
    left, top = (
        int(generator.integers(whole - kept + 1)) for whole, kept in zip(picture.size, (wide, high), strict=True)
    )
    out = io.BytesIO()
    picture.crop((left, top, left + wide, top + high)).save(out, "JPEG", quality=_QUALITY)
    return Image.open(out)


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return the highest correlation of two pictures, as they are and aligned either way."""
    plain = float(np.corrcoef(first.ravel(), second.ravel())[0, 1])
    blurred = [cv2.GaussianBlur(grey, (0, 0), _BLURRED) for grey in (first, second)]
    if np.corrcoef(blurred[0].ravel(), blurred[1].ravel())[0, 1] < _ALIGNED_FROM:
        return plain
    return max(plain, _aligned(first, second), _aligned(second, first))


def _aligned(still: np.ndarray, moved: np.ndarray) -> float:
    """Return the correlation of two pictures once one is aligned; -1 where no small change aligns it."""
    warp = np.eye(2, 3, dtype=np.float32)
    try:
        found, _ = cv2.findTransformECC(still, moved, warp, cv2.MOTION_AFFINE, _STOP, np.empty(0, np.uint8), _BLUR)
    except cv2.error:  # it does not converge
        return -1.0
    change = np.abs(warp - np.eye(2, 3)) / [1, 1, _SIDE]
    return found if change.max() <= _LARGEST_CHANGE else -1.0
