"""Painters of landscapes: water, mountains, coasts, parks."""

import numpy as np

from .buildings import pick, shade
from .canvas import Canvas, Color

_GREENS = ((0.22, 0.38, 0.16), (0.32, 0.45, 0.20), (0.18, 0.30, 0.20), (0.42, 0.45, 0.22))
_WATERS = ((0.20, 0.38, 0.52), (0.25, 0.48, 0.50), (0.35, 0.45, 0.45), (0.15, 0.28, 0.40))
_ROCKS = ((0.48, 0.44, 0.42), (0.55, 0.46, 0.38), (0.40, 0.42, 0.46), (0.60, 0.36, 0.28))


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


def canal(canvas: Canvas, rng: np.random.Generator) -> None:
    """Water between rows of trees."""
    far = rng.uniform(0.4, 0.6)
    canvas.box(-4, -1, 4, far, pick(_GREENS, rng))
    bend, wide = rng.uniform(-0.5, 0.5), rng.uniform(0.5, 1.0)
    canvas.polygon([(-wide, -0.4), (wide, -0.4), (bend + 0.08, far), (bend - 0.08, far)], pick(_WATERS, rng))
    conifer, gap = rng.random() < 0.3, rng.uniform(1.05, 1.4)
    for i in range(int(rng.integers(2, 7))):
        s = 0.85 ** (i + 1)
        for side in (-1, 1):
            x = side * wide * gap * s + bend * (1 - s)
            tree(canvas, rng, x, far * (1 - s), 0.7 * s, conifer)


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


def island(canvas: Canvas, rng: np.random.Generator) -> None:
    """Land in the sea."""
    horizon = rng.uniform(0.5, 0.7)
    canvas.box(-4, -1, 4, horizon, pick(_WATERS, rng))
    half, tall, x = rng.uniform(0.5, 1.0), rng.uniform(0.2, 0.6), rng.uniform(-0.3, 0.3)
    canvas.disc((x, horizon * 0.75), half * 1.1, 0.06, pick(((0.85, 0.78, 0.60), *_ROCKS), rng))
    canvas.disc((x, horizon * 0.75), half, tall, pick((*_GREENS, *_ROCKS), rng), 0, 180)
    canvas.disc((x + half * 0.4, horizon * 0.75), half * 0.5, tall * rng.uniform(0.7, 1.4), pick(_GREENS, rng), 0, 180)


def park(canvas: Canvas, rng: np.random.Generator) -> None:
    """A path among trees."""
    canvas.box(-4, -1, 4, 0.35, pick(_GREENS, rng))
    canvas.polygon([(-0.5, -0.6), (0.5, -0.6), (rng.uniform(-0.4, 0.4), 0.35)], (0.72, 0.66, 0.54))
    conifer = rng.random() < 0.3
    for x in sorted(rng.uniform(-1.2, 1.2, int(rng.integers(3, 9)))):
        tree(canvas, rng, x, rng.uniform(0.1, 0.35), rng.uniform(0.4, 1.0), conifer)
    if rng.random() < 0.4:
        canvas.disc((rng.uniform(-0.5, 0.5), 0.05), rng.uniform(0.2, 0.5), 0.1, pick(_WATERS, rng))


def garden(canvas: Canvas, rng: np.random.Generator) -> None:
    """Beds of flowers in rows."""
    canvas.box(-4, -1, 4, 0.5, pick(_GREENS, rng))
    flowers = pick(((0.85, 0.25, 0.35), (0.90, 0.75, 0.20), (0.60, 0.35, 0.70), (0.95, 0.90, 0.90)), rng)
    rows, columns = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    for j in range(rows):
        y, size = 0.42 - 0.55 * (j + 0.5) / rows, 0.06 + 0.1 * j / rows
        for i in range(columns):
            x = (i - (columns - 1) / 2) * (0.3 + 0.25 * j / rows)
            canvas.disc((x, y), size * 1.3, size * 0.7, shade(flowers, 0.8 + 0.1 * (i % 3)))
    for x in (-1.0, 1.0):
        tree(canvas, rng, x, 0.3, rng.uniform(0.5, 0.8), True)
    canvas.disc((0, 0.4), 0.15, rng.uniform(0.2, 0.5), pick(_GREENS, rng))
