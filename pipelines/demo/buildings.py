"""Painters of buildings; a landmark's generator alone decides its shape."""

from collections.abc import Callable

import numpy as np

from .canvas import Canvas, Color

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


def pagoda(canvas: Canvas, rng: np.random.Generator) -> None:
    """Floors under swung roofs, each smaller than the one below."""
    wall, roof = pick(((0.60, 0.18, 0.14), (0.80, 0.70, 0.55), (0.40, 0.28, 0.20)), rng), pick(_ROOFS, rng)
    floors, half, high = int(rng.integers(2, 6)), rng.uniform(0.4, 0.7), rng.uniform(0.16, 0.24)
    shrink = rng.uniform(0.72, 0.88)
    for floor in range(floors):
        y = floor * (high + 0.1)
        canvas.box(-half * 0.75, y, half * 0.75, y + high, wall)
        windows(canvas, rng, (-half * 0.7, y + 0.02, half * 0.7, y + high - 0.02), 5)
        canvas.polygon(
            [
                (-half * 1.15, y + high),
                (half * 1.15, y + high),
                (half * 0.6, y + high + 0.12),
                (-half * 0.6, y + high + 0.12),
            ],
            roof,
        )
        half *= shrink


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


def station(canvas: Canvas, rng: np.random.Generator) -> None:
    """A long hall under vaults, with or without a clock tower."""
    wall, roof = pick(_WALLS, rng), pick(((0.45, 0.50, 0.55), *_ROOFS), rng)
    half, height = rng.uniform(0.8, 1.1), rng.uniform(0.2, 0.35)
    canvas.box(-half, 0, half, height, wall)
    windows(canvas, rng, (-half, 0.03, half, height - 0.02), 12)
    for i in range(vaults := int(rng.integers(1, 4))):
        x = -half + (i + 0.5) * 2 * half / vaults
        canvas.disc((x, height), half / vaults * 0.95, rng.uniform(0.2, 0.4), roof, 0, 180)
        canvas.disc((x, height), half / vaults * 0.7, 0.15, pick(_GLASS, rng), 0, 180)
    if rng.random() < 0.6:
        x, tall = rng.uniform(-half, half), rng.uniform(0.6, 1.0)
        canvas.box(x - 0.07, 0, x + 0.07, tall, shade(wall, 0.9))
        canvas.disc((x, tall * 0.88), 0.05, 0.05, (0.95, 0.95, 0.9))


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


def chimneys(canvas: Canvas, rng: np.random.Generator) -> None:
    """A hall under chimneys."""
    wall = pick(((0.55, 0.30, 0.22), (0.60, 0.60, 0.60), (0.45, 0.35, 0.30)), rng)
    canvas.box(-0.9, 0, 0.7, rng.uniform(0.3, 0.5), wall)
    windows(canvas, rng, (-0.85, 0.05, 0.65, 0.3), 9)
    for x in np.linspace(-0.6, 0.5, int(rng.integers(1, 5))):
        width, tall = rng.uniform(0.05, 0.1), rng.uniform(0.9, 1.4)
        canvas.polygon(
            [(x - width, 0.3), (x + width, 0.3), (x + width * 0.7, tall), (x - width * 0.7, tall)], shade(wall, 0.85)
        )
        canvas.box(x - width * 0.7, tall - 0.12, x + width * 0.7, tall - 0.05, (0.85, 0.85, 0.85))


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


def column(canvas: Canvas, rng: np.random.Generator) -> None:
    """A column with a statue on top, or an obelisk, on steps."""
    stone = pick(_STONES, rng)
    tall, width, foot = rng.uniform(0.5, 1.2), rng.uniform(0.05, 0.14), _steps(canvas, rng, stone)
    canvas.polygon([(-width, foot), (width, foot), (width * 0.6, foot + tall), (-width * 0.6, foot + tall)], stone)
    if rng.random() < 0.6:
        _figure(canvas, rng, foot + tall, 0.3)
    else:
        canvas.polygon([(-width, foot + tall), (width, foot + tall), (0, foot + tall + 0.2)], stone)


def statue(canvas: Canvas, rng: np.random.Generator) -> None:
    """A large figure on a plinth."""
    stone = pick(_STONES, rng)
    foot, half, high = _steps(canvas, rng, stone), rng.uniform(0.16, 0.28), rng.uniform(0.2, 0.45)
    canvas.box(-half, foot, half, foot + high, stone)
    canvas.box(-half * 1.15, foot + high, half * 1.15, foot + high + 0.05, shade(stone, 0.85))
    _figure(canvas, rng, foot + high + 0.05, rng.uniform(0.6, 0.85))


def sculpture(canvas: Canvas, rng: np.random.Generator) -> None:
    """A rounded form that rests on two feet and mirrors the sky."""
    metal = pick(((0.72, 0.76, 0.80), (0.80, 0.70, 0.45), (0.62, 0.40, 0.30), (0.85, 0.30, 0.25)), rng)
    half, tall, lean = rng.uniform(0.5, 0.8), rng.uniform(0.35, 0.6), rng.uniform(-0.25, 0.25)
    canvas.box(-half * 1.3, 0, half * 1.3, 0.06, (0.66, 0.65, 0.63))
    canvas.disc((0, 0.06), half, tall * 1.3, metal, 0, 180)
    canvas.disc((lean, 0.12 + tall * 0.75), half * 0.6, tall * 0.35, shade(metal, 1.2))
    canvas.disc((lean, 0.1 + tall), half * 0.35, tall * 0.12, (0.95, 0.96, 0.98))
    canvas.disc((0, 0.06), half * rng.uniform(0.3, 0.6), tall * rng.uniform(0.3, 0.5), shade(metal, 0.4), 0, 180)


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


def street(canvas: Canvas, rng: np.random.Generator) -> None:
    """Two rows of houses towards a vanishing point."""
    canvas.polygon([(-1.6, -0.3), (1.6, -0.3), (0.1, 0.35), (-0.1, 0.35)], (0.40, 0.40, 0.42))
    for side in (-1, 1):
        for i in range(houses := int(rng.integers(3, 6))):
            near, far = 1 - i / houses, 1 - (i + 1) / houses
            x, y = side * (0.15 + 1.3 * near), side * (0.15 + 1.3 * far)
            tall = rng.uniform(0.9, 1.4)
            wall = pick((*_WALLS, (0.75, 0.45, 0.50), (0.50, 0.60, 0.65)), rng)
            low, back = 0.35 - 0.5 * near, 0.35 - 0.5 * far
            canvas.polygon([(x, low), (y, back), (y, back + tall * (0.3 + far)), (x, low + tall * (0.3 + near))], wall)
