"""Names for landmarks that have images but no name: CLIP zero-shot, and the vote of neighbours.

Both look at one vector a landmark, the renormalised mean of its images' unit embeddings, and both score a *group*: the
score is that group's share of the probability (zero-shot) or of the vote, and the name is the best one within it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image

from pipelines.landmark_images import ImagePlace, LandmarkKey, UnreadableImageError, read_image
from pipelines.progress import Progress

LOGIT_SCALE = 100.0  # where CLIP's learned temperature ends (Radford et al., 2021, section 2.5)
NEIGHBOURS = 10
IMAGES_AT_ONCE = 256  # decoded and held; the encoder cuts its own batches
LEAST_SCORE = 0.5  # more than half of the probability, or of the vote, for one group; otherwise no name is given
_BLOCK = 1024


@runtime_checkable
class ImageEncoder(Protocol):
    """What is asked of an encoder here: names and images as unit rows in one space."""

    @property
    def key(self) -> str: ...

    def encode(self, names: Sequence[str]) -> np.ndarray: ...

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray: ...


@dataclass(frozen=True)
class ImageVectors:
    """Mean embeddings of landmarks.

    Attributes:
        landmarks: the M landmarks with at least one readable image, in the order asked for.
        vectors: (M, D) float32 unit rows.
        unreadable: (landmark, member, reason) of every image that was left out.
    """

    landmarks: tuple[LandmarkKey, ...]
    vectors: np.ndarray
    unreadable: tuple[tuple[LandmarkKey, str, str], ...]


@dataclass(frozen=True)
class Choice:
    """The proposed name of M landmarks: index of the name, and its group's score in 0..1."""

    name: np.ndarray
    score: np.ndarray


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of (N, D) divided by their length; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(length > 0, length, 1)).astype(np.float32)


def embed_landmarks(
    encoder: ImageEncoder,
    images: Mapping[LandmarkKey, Sequence[ImagePlace]],
    landmarks: Sequence[LandmarkKey],
    progress: Progress,
) -> ImageVectors:
    """Embed the images of ``landmarks`` (all of which are in ``images``), some hundred images at a time."""
    kept: list[LandmarkKey] = []
    sums: list[np.ndarray] = []
    unreadable: list[tuple[LandmarkKey, str, str]] = []
    waiting: list[tuple[LandmarkKey, Image.Image]] = []

    def encode_waiting() -> None:
        rows = encoder.encode_images([picture for _, picture in waiting]) if waiting else []
        for (landmark, _), row in zip(waiting, rows, strict=True):
            if kept and kept[-1] == landmark:
                sums[-1] = sums[-1] + row
            else:
                kept.append(landmark)
                sums.append(np.asarray(row, dtype=np.float64))
        waiting.clear()

    for done, landmark in enumerate(landmarks):
        for image in images[landmark]:
            try:
                waiting.append((landmark, read_image(image)))
            except UnreadableImageError as reason:
                unreadable.append((landmark, image.member, str(reason)))
            if len(waiting) >= IMAGES_AT_ONCE:
                encode_waiting()
        progress("embed images of landmarks", done + 1, len(landmarks))
    encode_waiting()
    vectors = unit(np.stack(sums)) if sums else np.zeros((0, 0), dtype=np.float32)
    return ImageVectors(tuple(kept), vectors, tuple(unreadable))


def zero_shot(images: np.ndarray, names: np.ndarray, groups: np.ndarray) -> Choice:
    """CLIP zero-shot: softmax over all names, summed by group.

    Args:
        images: (M, D) unit rows of landmarks.
        names: (N, D) unit rows of names.
        groups: (N,) group of each name, 0..G-1.
    """
    member = np.zeros((len(names), int(groups.max()) + 1), dtype=np.float32)
    member[np.arange(len(names)), groups] = 1
    best, score = [], []
    for start in range(0, len(images), _BLOCK):
        logits = LOGIT_SCALE * (images[start : start + _BLOCK] @ names.T)
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        by_group = share @ member
        winner = by_group.argmax(axis=1)
        best.append(np.where(groups[None, :] == winner[:, None], share, -1).argmax(axis=1))
        score.append(by_group.max(axis=1))
    return _choice(best, score)


def vote(images: np.ndarray, known: np.ndarray, names: np.ndarray, groups: np.ndarray) -> Choice:
    """The nearest named landmarks vote, each with its cosine similarity (none below 0).

    Args:
        images: (M, D) unit rows of landmarks without a name.
        known: (R, D) unit rows of named landmarks.
        names: (R,) name index of each of those.
        groups: (N,) group of each name, 0..G-1.
    """
    nearest = min(NEIGHBOURS, len(known))
    best, score = [], []
    for start in range(0, len(images), _BLOCK):
        similarity = images[start : start + _BLOCK] @ known.T
        order = np.argsort(-similarity, axis=1, kind="stable")[:, :nearest]  # stable: ties go to the earlier landmark
        weight = np.maximum(np.take_along_axis(similarity, order, axis=1), 0)
        rows = np.repeat(np.arange(len(order)), nearest)
        by_name = np.zeros((len(order), len(groups)), dtype=np.float64)
        np.add.at(by_name, (rows, names[order].ravel()), weight.ravel())
        by_group = np.zeros((len(order), int(groups.max()) + 1), dtype=np.float64)
        np.add.at(by_group, (rows, groups[names[order]].ravel()), weight.ravel())
        winner = by_group.argmax(axis=1)
        best.append(np.where(groups[None, :] == winner[:, None], by_name, -1).argmax(axis=1))
        total = weight.sum(axis=1)
        score.append(by_group.max(axis=1) / np.where(total > 0, total, 1))
    return _choice(best, score)


def _choice(best: list[np.ndarray], score: list[np.ndarray]) -> Choice:
    if not best:
        return Choice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
    share = np.minimum(np.concatenate(score), 1)  # a sum of rounded shares may be a hair above 1
    return Choice(np.concatenate(best), share.astype(np.float32))
