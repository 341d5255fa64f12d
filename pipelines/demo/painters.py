"""The canvas of a drawing, and painters of buildings and landscapes; a landmark's generator alone decides its shape."""

from collections.abc import Callable, Sequence
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


# -- painters ----------------------------------------------------------------------------------------------------------

Painter = Callable[[Canvas, np.random.Generator], None]

_WALLS = (
    (0.80, 0.72, 0.58),
    (0.62, 0.30, 0.24),
    (0.86, 0.84, 0.80),
    (0.55, 0.54, 0.52),
    (0.85, 0.70, 0.45),
    (0.70, 0.50, 0.45),
)
_ROOFS = ((0.55, 0.22, 0.16), (0.25, 0.27, 0.32), (0.35, 0.50, 0.42), (0.30, 0.22, 0.18), (0.45, 0.45, 0.48))
_STONES = ((0.75, 0.73, 0.70), (0.50, 0.48, 0.46), (0.85, 0.80, 0.70), (0.45, 0.32, 0.28))
_GLASS = ((0.16, 0.20, 0.26), (0.30, 0.42, 0.52), (0.12, 0.12, 0.12))
_GREENS = ((0.22, 0.38, 0.16), (0.32, 0.45, 0.20), (0.18, 0.30, 0.20), (0.42, 0.45, 0.22))
_WATERS = ((0.20, 0.38, 0.52), (0.25, 0.48, 0.50), (0.35, 0.45, 0.45), (0.15, 0.28, 0.40))
_ROCKS = ((0.48, 0.44, 0.42), (0.55, 0.46, 0.38), (0.40, 0.42, 0.46), (0.60, 0.36, 0.28))


def pick(colors: tuple[Color, ...], rng: np.random.Generator, spread: float = 0.07) -> Color:
    """Return one of the colours, slightly varied."""
    red, green, blue = np.clip(np.array(colors[rng.integers(len(colors))]) + rng.normal(0, spread, 3), 0, 1)
    return float(red), float(green), float(blue)


def shade(color: Color, factor: float) -> Color:
    """Return a darker or lighter colour."""
    red, green, blue = (min(1.0, c * factor) for c in color)
    return red, green, blue


def windows(canvas: Canvas, rng: np.random.Generator, area: tuple[float, float, float, float], most: int = 8) -> None:
    """Draw rows of windows in the area left, bottom, right, top."""
    left, bottom, right, top = area
    columns, rows = int(rng.integers(2, most + 1)), int(rng.integers(1, max(2, most // 2) + 1))
    color, slim = pick(_GLASS, rng), rng.uniform(0.3, 0.7)
    wide, high = (right - left) / columns, (top - bottom) / rows
    for i in range(columns):
        for j in range(rows):
            x, y = left + (i + 0.5) * wide, bottom + (j + 0.5) * high
            canvas.box(x - wide * slim / 2, y - high * 0.3, x + wide * slim / 2, y + high * 0.3, color)


def church(canvas: Canvas, rng: np.random.Generator) -> None:
    """A nave with one to three spires."""
    wall, roof = pick(_WALLS, rng), pick(_ROOFS, rng)
    half, height = rng.uniform(0.4, 0.75), rng.uniform(0.35, 0.6)
    canvas.box(-half, 0, half, height, wall)
    canvas.polygon([(-half, height), (half, height), (half * 0.85, height + 0.3), (-half * 0.85, height + 0.3)], roof)
    windows(canvas, rng, (-half * 0.9, height * 0.25, half * 0.9, height * 0.85), 7)
    spires = int(rng.integers(1, 4))
    width, tall = rng.uniform(0.1, 0.17), rng.uniform(0.8, 1.2)
    places = {1: [rng.choice([-half, 0.0, half])], 2: [-half, half], 3: [-half, 0.0, half]}[spires]
    onion = rng.random() < 0.3
    for x in places:
        canvas.box(x - width, 0, x + width, tall * 0.75, shade(wall, 0.92))
        windows(canvas, rng, (x - width * 0.7, tall * 0.4, x + width * 0.7, tall * 0.72), 2)
        if onion:
            canvas.disc((x, tall * 0.8), width * 1.2, width * 1.4, roof)
        canvas.polygon(
            [(x - width, tall * 0.75), (x + width, tall * 0.75), (x, tall * 0.8 + rng.uniform(0.3, 0.6))], roof
        )
        canvas.line([(x, tall), (x, tall + 0.35)], 0.02, (0.2, 0.2, 0.2))


def castle(canvas: Canvas, rng: np.random.Generator) -> None:
    """Battlements and towers on a hill."""
    stone = pick(((0.58, 0.55, 0.50), (0.70, 0.64, 0.52), (0.50, 0.42, 0.38)), rng)
    hill = rng.uniform(0, 0.35)
    canvas.polygon(
        [(-1.6, 0), (-0.9, hill), (0.9, hill), (1.6, 0)], pick(((0.30, 0.42, 0.22), (0.45, 0.40, 0.30)), rng)
    )
    half, height = rng.uniform(0.5, 0.8), rng.uniform(0.3, 0.5)
    _battlement(canvas, -half, hill, half, hill + height, stone)
    towers = int(rng.integers(2, 6))
    roofed, roof = rng.random() < 0.5, pick(_ROOFS, rng)
    for x in np.linspace(-half, half, towers):
        width, tall = rng.uniform(0.08, 0.17), height + rng.uniform(0.1, 0.6)
        color = shade(stone, rng.uniform(0.8, 1.05))
        _battlement(canvas, x - width, hill, x + width, hill + tall, color)
        if roofed:
            canvas.polygon([(x - width, hill + tall), (x + width, hill + tall), (x, hill + tall + 3 * width)], roof)
        canvas.box(x - 0.02, hill + tall * 0.6, x + 0.02, hill + tall * 0.75, (0.12, 0.11, 0.10))
    canvas.disc((0, hill), 0.1, 0.2, (0.14, 0.12, 0.11), 0, 180)


def _battlement(canvas: Canvas, left: float, bottom: float, right: float, top: float, color: Color) -> None:
    canvas.box(left, bottom, right, top, color)
    teeth = max(2, int((right - left) / 0.1))
    step = (right - left) / (2 * teeth - 1)
    for i in range(teeth):
        canvas.box(left + 2 * i * step, top, left + (2 * i + 1) * step, top + 0.06, color)


def domed(canvas: Canvas, rng: np.random.Generator) -> None:
    """A dome over arches, with or without minarets."""
    wall = pick(((0.92, 0.90, 0.86), (0.85, 0.72, 0.52), (0.72, 0.52, 0.42)), rng)
    dome = pick(((0.90, 0.90, 0.88), (0.35, 0.55, 0.62), (0.85, 0.68, 0.25), (0.40, 0.42, 0.40)), rng)
    half, height, radius = rng.uniform(0.5, 0.8), rng.uniform(0.25, 0.5), rng.uniform(0.22, 0.4)
    canvas.box(-half, 0, half, height, wall)
    for i in range(arches := int(rng.integers(3, 8))):
        x = -half + (i + 0.5) * 2 * half / arches
        canvas.disc((x, height * 0.45), half / arches * 0.6, height * 0.3, shade(wall, 0.45), 0, 180)
        canvas.box(x - half / arches * 0.6, 0, x + half / arches * 0.6, height * 0.45, shade(wall, 0.45))
    canvas.box(-radius, height, radius, height + 0.1, shade(wall, 0.9))
    canvas.disc((0, height + 0.1), radius, radius * rng.uniform(0.9, 1.5), dome, 0, 180)
    for side in range(int(rng.integers(0, 3))):
        x, tall = (half + 0.1) * (1 if side else -1), rng.uniform(0.7, 1.1)
        canvas.box(x - 0.04, 0, x + 0.04, tall, shade(wall, 0.95))
        canvas.disc((x, tall), 0.06, 0.1, dome, 0, 180)


def classical(canvas: Canvas, rng: np.random.Generator) -> None:
    """A long front with a portico."""
    wall = pick(((0.88, 0.85, 0.78), (0.80, 0.76, 0.70), (0.90, 0.80, 0.60), (0.75, 0.60, 0.52)), rng)
    half, height = rng.uniform(0.7, 1.0), rng.uniform(0.4, 0.65)
    canvas.box(-half, 0, half, height, wall)
    windows(canvas, rng, (-half * 0.97, height * 0.15, half * 0.97, height * 0.9), 10)
    porch, columns = rng.uniform(0.25, 0.6), int(rng.integers(3, 9))
    canvas.box(-porch, 0, porch, height, shade(wall, 0.6))
    for x in np.linspace(-porch, porch, columns):
        canvas.box(x - 0.03, 0, x + 0.03, height, shade(wall, 1.08))
    canvas.polygon(
        [(-porch - 0.06, height), (porch + 0.06, height), (0, height + rng.uniform(0.12, 0.3))], shade(wall, 1.04)
    )
    if rng.random() < 0.4:
        top, tall = pick(_ROOFS, rng), rng.uniform(0.15, 0.4)
        canvas.box(-0.13, height, 0.13, height + tall, wall)
        canvas.disc((0, height + tall), 0.16, 0.2, top, 0, 180)
    if rng.random() < 0.5:
        canvas.box(-half, height, half, height + 0.08, pick(_ROOFS, rng))


def block(canvas: Canvas, rng: np.random.Generator) -> None:
    """Large modern buildings side by side."""
    for _ in range(int(rng.integers(1, 4))):
        wall = pick((*_WALLS, (0.35, 0.45, 0.52), (0.25, 0.28, 0.32)), rng)
        x, half, height = rng.uniform(-0.6, 0.6), rng.uniform(0.2, 0.5), rng.uniform(0.5, 1.3)
        canvas.box(x - half, 0, x + half, height, wall)
        canvas.box(x + half * 0.6, 0, x + half, height, shade(wall, 0.8))
        windows(canvas, rng, (x - half * 0.9, 0.1, x + half * 0.55, height * 0.95), 10)


def tower(canvas: Canvas, rng: np.random.Generator) -> None:
    """A tower or lighthouse, plain or banded."""
    wall, top = pick(_WALLS, rng), pick(_ROOFS, rng)
    base, crown, tall = rng.uniform(0.13, 0.3), rng.uniform(0.07, 0.14), rng.uniform(1.1, 1.5)
    canvas.polygon([(-base, 0), (base, 0), (crown, tall), (-crown, tall)], wall)
    bands = int(rng.integers(0, 5))
    for i in range(bands):
        low, high = tall * (2 * i + 1) / (2 * bands + 1), tall * (2 * i + 2) / (2 * bands + 1)
        a, b = (base + (crown - base) * y / tall for y in (low, high))
        canvas.polygon([(-a, low), (a, low), (b, high), (-b, high)], top)
    canvas.box(-crown * 1.5, tall, crown * 1.5, tall + 0.05, shade(wall, 0.7))
    canvas.box(-crown * 0.8, tall + 0.05, crown * 0.8, tall + 0.18, (0.95, 0.90, 0.55) if rng.random() < 0.5 else wall)
    canvas.disc((0, tall + 0.18), crown, crown, top, 0, 180)


def bridge(canvas: Canvas, rng: np.random.Generator) -> None:
    """A bridge of arches, or hung from two towers."""
    canvas.box(-4, -1, 4, 0.12, pick(((0.25, 0.38, 0.48), (0.32, 0.42, 0.36)), rng))
    stone = pick(((0.62, 0.58, 0.52), (0.55, 0.25, 0.20), (0.40, 0.42, 0.45), (0.75, 0.75, 0.72)), rng)
    deck, spans = rng.uniform(0.4, 0.6), int(rng.integers(1, 6))
    if rng.random() < 0.35:  # hung from two towers
        at, tall = rng.uniform(0.5, 0.8), rng.uniform(0.9, 1.3)
        xs = np.linspace(-at, at, 13)
        for x, y in zip(xs, deck + 0.05 + (tall - deck) * (xs / at) ** 2, strict=True):
            canvas.line([(x, deck), (x, y)], 0.012, shade(stone, 0.8))
        canvas.line([(x, deck + 0.05 + (tall - deck) * (x / at) ** 2) for x in xs], 0.03, stone)
        for x in (-at, at):
            canvas.box(x - 0.05, 0, x + 0.05, tall, stone)
            canvas.line([(x, tall), (2.4 * x, deck)], 0.03, stone)
    else:
        canvas.box(-2.5, 0.05, 2.5, deck, stone)
        span = 2.6 / spans
        for i in range(-1, spans + 1):
            x = -1.3 + (i + 0.5) * span
            canvas.disc((x, 0.12), span * 0.4, (deck - 0.12) * 0.85, pick(((0.30, 0.42, 0.50),), rng, 0.02), 0, 180)
    canvas.box(-3, deck, 3, deck + 0.05, shade(stone, 0.85))


def statue(canvas: Canvas, rng: np.random.Generator) -> None:
    """A large figure on a plinth."""
    stone = pick(_STONES, rng)
    foot, half, high = _steps(canvas, rng, stone), rng.uniform(0.16, 0.28), rng.uniform(0.2, 0.45)
    canvas.box(-half, foot, half, foot + high, stone)
    canvas.box(-half * 1.15, foot + high, half * 1.15, foot + high + 0.05, shade(stone, 0.85))
    _figure(canvas, rng, foot + high + 0.05, rng.uniform(0.6, 0.85))


def arch(canvas: Canvas, rng: np.random.Generator) -> None:
    """A triumphal arch with one gate or three."""
    stone = pick(_STONES, rng)
    half, tall, foot = rng.uniform(0.45, 0.75), rng.uniform(0.6, 1.0), 0.05
    canvas.box(-half * 1.1, 0, half * 1.1, foot, shade(stone, 0.8))
    canvas.box(-half, foot, half, tall, stone)
    gate, spring = half * rng.uniform(0.3, 0.4), tall * rng.uniform(0.4, 0.5)
    gates = [(0.0, gate, spring)]
    if rng.random() < 0.5:
        gates += [(side * half * 0.7, gate * 0.4, spring * 0.6) for side in (-1, 1)]
    for x, wide, high in gates:
        canvas.box(x - wide, foot, x + wide, high, shade(stone, 0.4))
        canvas.disc((x, high), wide, wide, shade(stone, 0.4), 0, 180)
    canvas.box(-half * 1.05, tall, half * 1.05, tall + 0.06, shade(stone, 0.85))
    attic = tall + rng.uniform(0.15, 0.3)
    canvas.box(-half * 0.95, tall + 0.06, half * 0.95, attic, shade(stone, 1.04))
    if rng.random() < 0.5:
        _figure(canvas, rng, attic, 0.3)


def _steps(canvas: Canvas, rng: np.random.Generator, stone: Color) -> float:
    """Draw steps and return their height."""
    steps = int(rng.integers(1, 5))
    for i in range(steps):
        half = 0.5 - i * 0.3 / steps
        canvas.box(-half, i * 0.07, half, (i + 1) * 0.07, shade(stone, 0.8 + 0.08 * i))
    return steps * 0.07


def _figure(canvas: Canvas, rng: np.random.Generator, foot: float, tall: float) -> None:
    """Draw a bronze figure with a raised or outstretched arm."""
    bronze = pick(((0.25, 0.30, 0.26), (0.35, 0.28, 0.20), (0.85, 0.65, 0.20)), rng)
    neck = foot + tall * 0.7
    canvas.polygon([(-tall * 0.24, foot), (tall * 0.24, foot), (tall * 0.16, neck), (-tall * 0.16, neck)], bronze)
    canvas.disc((0, foot + tall * 0.85), tall * 0.13, tall * 0.16, bronze)
    hand = rng.uniform(0.5, 0.8) * rng.choice([-1.0, 1.0]), rng.uniform(0.5, 1.3)
    canvas.line([(0, foot + tall * 0.6), (hand[0] * tall, foot + hand[1] * tall)], tall * 0.13, bronze)


def ridge(canvas: Canvas, rng: np.random.Generator, bottom: float, height: float, color: Color, rough: float) -> None:
    """Draw a skyline across the whole picture."""
    xs = np.linspace(-3, 3, 25)
    waves = sum(rng.normal() / n * np.sin(n * xs + rng.uniform(0, 6.3)) for n in range(1, 6))
    ys = bottom + height * (0.6 + 0.35 * waves + rough * rng.normal(size=len(xs)))
    canvas.polygon([(-3, bottom - 2), *zip(xs.tolist(), ys.tolist(), strict=True), (3, bottom - 2)], color)


def tree(canvas: Canvas, rng: np.random.Generator, x: float, y: float, size: float, conifer: bool) -> None:
    """Draw a tree that stands at (x, y)."""
    color = pick(_GREENS, rng, 0.03)
    canvas.box(x - size * 0.06, y, x + size * 0.06, y + size * 0.4, (0.30, 0.22, 0.15))
    if conifer:
        canvas.polygon([(x - size * 0.3, y + size * 0.2), (x + size * 0.3, y + size * 0.2), (x, y + size * 1.1)], color)
    else:
        canvas.disc((x, y + size * 0.65), size * 0.35, size * 0.4, color)


def mountain(canvas: Canvas, rng: np.random.Generator) -> None:
    """Peaks behind a green ridge."""
    rock = pick(_ROCKS, rng)
    for _ in range(int(rng.integers(1, 4))):
        x, half, tall = rng.uniform(-0.6, 0.6), rng.uniform(0.6, 1.3), rng.uniform(0.7, 1.35)
        lean = rng.uniform(-0.3, 0.3)
        color = shade(rock, rng.uniform(0.75, 1.1))
        canvas.polygon([(x - half, 0), (x + lean, tall), (x + half, 0)], color)
        canvas.polygon([(x + lean, tall), (x + half, 0), (x + lean * 0.5, 0)], shade(color, 0.8))
        if tall > 0.95:
            s = rng.uniform(0.15, 0.4)
            left, right = (x + lean + s * (side * half - lean) for side in (-1, 1))
            canvas.polygon([(left, tall * (1 - s)), (x + lean, tall), (right, tall * (1 - s))], (0.93, 0.94, 0.97))
    ridge(canvas, rng, 0, rng.uniform(0.1, 0.3), pick(_GREENS, rng), 0.1)


def lake(canvas: Canvas, rng: np.random.Generator) -> None:
    """Water before hills."""
    shore = rng.uniform(0.35, 0.6)
    ridge(canvas, rng, shore, rng.uniform(0.2, 0.6), pick((*_GREENS, *_ROCKS), rng), 0.05)
    water = pick(_WATERS, rng)
    canvas.box(-4, -1, 4, shore, water)
    for _ in range(int(rng.integers(4, 14))):
        x, y, half = rng.uniform(-1.3, 1.3), rng.uniform(-0.2, shore), rng.uniform(0.05, 0.4)
        canvas.line([(x - half, y), (x + half, y)], 0.015, shade(water, 1.25))
    for _ in range(int(rng.integers(0, 6))):
        tree(canvas, rng, rng.uniform(-1.2, 1.2), shore, rng.uniform(0.1, 0.3), rng.random() < 0.6)
    if rng.random() < 0.3:
        canvas.disc((rng.uniform(-0.6, 0.6), shore * 0.5), rng.uniform(0.1, 0.3), 0.06, pick(_GREENS, rng))


def beach(canvas: Canvas, rng: np.random.Generator) -> None:
    """Sand before the sea."""
    horizon = rng.uniform(0.5, 0.8)
    canvas.box(-4, -1, 4, horizon, pick(((0.15, 0.45, 0.62), (0.20, 0.55, 0.60), (0.25, 0.40, 0.50)), rng))
    sand = pick(((0.90, 0.82, 0.62), (0.78, 0.68, 0.50), (0.50, 0.46, 0.42)), rng)
    left, right = rng.uniform(0, 0.45, 2)
    canvas.polygon([(-3, -1), (-3, left), (0, rng.uniform(0.1, 0.4)), (3, right), (3, -1)], sand)
    if rng.random() < 0.5:
        x = rng.choice([-1.0, 1.0])
        canvas.polygon(
            [(x * 3, horizon), (x * 3, 1.1), (x * 0.5, rng.uniform(0.6, 1.0)), (x * 0.35, horizon)], pick(_ROCKS, rng)
        )
    for _ in range(int(rng.integers(0, 5))):
        x, y = rng.uniform(-1, 1), rng.uniform(-0.1, 0.15)
        canvas.disc(
            (x, y + 0.18), 0.14, 0.08, pick(((0.85, 0.20, 0.20), (0.95, 0.85, 0.20), (0.20, 0.40, 0.80)), rng), 0, 180
        )
        canvas.line([(x, y), (x, y + 0.2)], 0.02, (0.9, 0.9, 0.9))


def park(canvas: Canvas, rng: np.random.Generator) -> None:
    """A path among trees."""
    canvas.box(-4, -1, 4, 0.35, pick(_GREENS, rng))
    canvas.polygon([(-0.5, -0.6), (0.5, -0.6), (rng.uniform(-0.4, 0.4), 0.35)], (0.72, 0.66, 0.54))
    conifer = rng.random() < 0.3
    for x in sorted(rng.uniform(-1.2, 1.2, int(rng.integers(3, 9)))):
        tree(canvas, rng, x, rng.uniform(0.1, 0.35), rng.uniform(0.4, 1.0), conifer)
    if rng.random() < 0.4:
        canvas.disc((rng.uniform(-0.5, 0.5), 0.05), rng.uniform(0.2, 0.5), 0.1, pick(_WATERS, rng))
