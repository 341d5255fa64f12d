"""The canvas of a drawing: shapes in a scene's own units, seen by a camera, in the light of one hour."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

Color = tuple[float, float, float]
Point = tuple[float, float]

_FINER = 2  # drawn at twice the size, then averaged: smooth edges for little time
_FRACTION_BITS = 4


@dataclass(frozen=True)
class View:
    """The circumstances of one drawing: camera, light and sky.

    Attributes:
        center: of the picture, in the scene's units.
        width: of the picture, in the scene's units.
        lean: sideways shift of uprights a unit of height, as in a hasty snapshot.
        light: factor of every colour (red, green, blue).
        sky: colour of the sky at the horizon and above.
    """

    center: Point
    width: float
    lean: float
    light: Color
    sky: tuple[Color, Color]


class Canvas:
    """A square picture of ``size`` pixels.

    A scene stands on y = 0 and its subject spans about -1..1; y grows upwards. Colours are red, green and blue in 0..1.
    """

    def __init__(self, size: int, view: View) -> None:
        self.size = size
        self.view = view
        side = size * _FINER
        self._scale = side / view.width
        shares = np.linspace(0, 1, side, dtype=np.float32)[:, None, None]
        low, high = (np.array(color, dtype=np.float32) * 255 for color in view.sky)
        self._pixels = np.ascontiguousarray(np.broadcast_to(high + (low - high) * shares, (side, side, 3)))

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        """Fill a polygon."""
        cv2.fillPoly(self._pixels, [self._places(points)], self._lit(color), cv2.LINE_8, _FRACTION_BITS)

    def box(self, left: float, bottom: float, right: float, top: float, color: Color) -> None:
        """Fill an upright rectangle."""
        self.polygon([(left, bottom), (right, bottom), (right, top), (left, top)], color)

    def disc(self, center: Point, across: float, up: float, color: Color, start: float = 0, end: float = 360) -> None:
        """Fill an ellipse of these half axes, or a sector of it from ``start`` to ``end`` degrees, anticlockwise."""
        angles = np.radians(np.linspace(start, end, 25))
        self.polygon([(center[0] + across * np.cos(a), center[1] + up * np.sin(a)) for a in angles], color)

    def line(self, points: Sequence[Point], width: float, color: Color) -> None:
        """Draw a line through points."""
        thickness = max(1, round(width * self._scale))
        places = [self._places(points)]
        cv2.polylines(self._pixels, places, False, self._lit(color), thickness, cv2.LINE_8, _FRACTION_BITS)

    def finish(self, noise: np.ndarray) -> np.ndarray:
        """Return the picture, (size, size, 3) uint8 in red, green and blue.

        Args:
            noise: (size, size, 3) of a sensor, in grey levels.
        """
        small = cv2.resize(self._pixels, (self.size, self.size), interpolation=cv2.INTER_AREA)
        return np.clip(small + noise, 0, 255).astype(np.uint8)

    def _places(self, points: Sequence[Point]) -> np.ndarray:
        given = np.array(points, dtype=np.float64)
        across = given[:, 0] + self.view.lean * given[:, 1] - self.view.center[0]
        up = given[:, 1] - self.view.center[1]
        half = self.size * _FINER / 2
        places = np.stack([half + across * self._scale, half - up * self._scale], axis=1)
        return np.round(places * (1 << _FRACTION_BITS)).astype(np.int32)

    def _lit(self, color: Color) -> tuple[float, float, float]:
        red, green, blue = (min(255.0, c * light * 255) for c, light in zip(color, self.view.light, strict=True))
        return red, green, blue
