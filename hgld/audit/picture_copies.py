"""Pictures that are copies of each other: re-encoded, resized, or cropped a little.

A picture is compared as 32 x 32 grey values. Two pictures are as much alike as the highest correlation of one whole
with the other, whole or cropped to :data:`_CROP` of its sides at nine places: a crop that moves the picture's content
by a pixel or two lowers the correlation of the wholes, and the bits of a perceptual hash, but not this.
"""

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from PIL import Image

from hgld.errors import InputError
from hgld.evaluation.evaluate import Progress
from hgld.evaluation.neighbors import nearest_neighbors

_SIDE = 32
_COARSE = 12  # side at which candidates are found
_CROP = 0.95
_LEAST_CONTRAST = 4.0  # standard deviation of the grey values below which a picture shows nothing


class PictureCopies:
    """Comparison of N pictures.

    Args:
        opened: returns the picture of an item.
        count: N.
        progress: called with a task, the pictures read and their number.

    Attributes:
        unreadable: items whose picture could not be read, with the reason; they are like no other.
    """

    def __init__(self, opened: Callable[[int], Image.Image], count: int, progress: Progress) -> None:
        self.unreadable: list[str] = []
        self._small = np.zeros((count, _SIDE, _SIDE), np.float32)
        for item in range(count):
            try:
                grey = np.asarray(opened(item).convert("L"))
            except InputError as error:
                self.unreadable.append(str(error))
                continue
            if grey.std() >= _LEAST_CONTRAST:
                self._small[item] = cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
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

    def alike(self, pairs: np.ndarray) -> np.ndarray:
        """Return (P,) how much the pictures of each pair (P, 2) are alike, at most 1; 0 if one shows nothing."""
        views: dict[int, np.ndarray] = {}
        scores = np.zeros(len(pairs), np.float32)
        for row, (first, second) in enumerate(pairs.tolist()):
            if self._shown[first] and self._shown[second]:
                a, b = (_kept(views, item, self._small) for item in (first, second))
                scores[row] = max(float((a @ b[0]).max()), float((b @ a[0]).max()))
        return scores


def _kept(views: dict[int, np.ndarray], item: int, small: np.ndarray) -> np.ndarray:
    if item not in views:
        if len(views) > 4096:
            views.clear()
        views[item] = _unit(np.stack([small[item], *_crops(small[item])]))
    return views[item]


def _crops(picture: np.ndarray) -> Sequence[np.ndarray]:
    """Return the nine crops, each resized to the whole."""
    side = len(picture)
    shifts = np.array([0.0, 0.5, 1.0]) * (1 - _CROP) * side
    edge = (_CROP - 1) / 2  # pixel centres of the crop, in those of the picture
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return [
        cv2.warpAffine(
            picture,
            np.array([[_CROP, 0, x + edge], [0, _CROP, y + edge]]),
            (side, side),
            flags=flags,
            borderMode=cv2.BORDER_REPLICATE,
        )
        for x in shifts
        for y in shifts
    ]


def _unit(pictures: np.ndarray) -> np.ndarray:
    rows = pictures.reshape(len(pictures), -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
