"""Drawing of the map of names: colours of groups, places of points, labels that do not overlap."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import rankdata

WIDTH, HEIGHT = 1000, 640
_EDGE = 16
_GOLDEN_ANGLE = 137.50776


def group_color(rank: int) -> str:
    """Return the CSS colour of the ``rank``-th largest group: hues a golden angle apart in OKLCH.

    The lightness is between .54 and .66, which has a contrast of 3 : 1 on white and on near-black.
    """
    return f"oklch({(0.60, 0.66, 0.54)[rank % 3]} 0.125 {(250 + rank * _GOLDEN_ANGLE) % 360:.1f})"


def draw_map(names: pl.DataFrame, labels: Sequence[str]) -> dict[str, Any]:
    """Return the map of names for the page: points per group, and labels for a wide page and for a phone.

    Args:
        names: name, x, y, landmarks, label, in a fixed order.
        labels: labels of the groups, the largest group first.
    """
    places = fit(names.select("x", "y").to_numpy())
    scale = min(max(np.sqrt(250 / len(names)), 1), 2.5)  # few names have room for larger dots
    radii = np.round(scale * (2.4 + 0.9 * np.log2(np.maximum(names["landmarks"].to_numpy(), 1))), 1)
    layers, centres = [], []
    for rank, label in enumerate(labels):
        own = (names["label"] == label).arg_true().to_list()
        if own:
            points = [{"x": places[i, 0], "y": places[i, 1], "r": radii[i], "name": names["name"][i]} for i in own]
            layers.append({"color": group_color(rank), "label": label, "points": points})
            x, y = np.median(places[own], axis=0)
            centres.append((x, y - 10 - min(24.0, y - places[own, 1].min())))  # above a small group, not over it
    texts = [layer["label"] for layer in layers]
    wide, phone = (place_labels(texts, centres, size=size, most=most) for size, most in ((17, 26), (34, 9)))
    return {"width": WIDTH, "height": HEIGHT, "layers": layers, "wide": wide, "phone": phone}


def fit(points: np.ndarray) -> np.ndarray:
    """Return (N, 2) places spread over the drawing, y downwards, for (N, 2) points.

    A coordinate is the mean of its share of the extent and its share of the ranks, so that a few names far from all
    others do not press those into a corner; a side without extent is centred.
    """
    low, span = points.min(axis=0), np.ptp(points, axis=0)
    linear = np.where(span > 0, (points - low) / np.where(span > 0, span, 1), 0.5)
    share = (linear + (rankdata(points, axis=0) - 0.5) / len(points)) / 2
    share[:, 1] = 1 - share[:, 1]
    return np.round(_EDGE + share * (np.array([WIDTH, HEIGHT]) - 2 * _EDGE), 1)


def place_labels(
    texts: Sequence[str], centres: Sequence[tuple[float, float]], *, size: float, most: int
) -> list[dict[str, Any]]:
    """Return text, x and y of labels that do not overlap, at most ``most``, the first ones preferred.

    Args:
        texts: labels, the most important first.
        centres: their wanted places.
        size: height of the letters, in the unit of the places.
        most: number of labels at most.
    """
    placed: list[dict[str, Any]] = []
    boxes: list[tuple[float, float, float, float]] = []
    for text, (x, y) in zip(texts, centres, strict=True):
        half = 0.34 * size * len(text)
        if 2 * half > WIDTH or len(placed) == most:
            continue
        x, y = min(max(x, half), WIDTH - half), min(max(y, size), HEIGHT - size / 2)
        box = (x - half, y - size, x + half, y + 0.35 * size)
        if all(box[2] < b[0] or b[2] < box[0] or box[3] < b[1] or b[3] < box[1] for b in boxes):
            placed.append({"text": text, "x": round(float(x), 1), "y": round(float(y), 1)})
            boxes.append(box)
    return placed
