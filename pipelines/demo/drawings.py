"""Drawings of landmarks: the group sets the drawing function, the landmark sets the shape, the image sets the light."""

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import cv2
import numpy as np

Color = tuple[float, float, float]
Point = tuple[float, float]
Painter = Callable[["Canvas", np.random.Generator], None]

_FINER = 2  # images are drawn at twice the size and averaged, for smooth edges
_FRACTION_BITS = 4


def _palette(colors: str) -> tuple[Color, ...]:
    """Return the colours of hexadecimal codes separated by spaces."""
    parts = [bytes.fromhex(color) for color in colors.split()]
    return tuple((red / 255, green / 255, blue / 255) for red, green, blue in parts)


_WALLS = _palette("ccb894 9e4d3d dbd6cc 8c8a85 d9b273")
_STONES = _palette("bfbab3 807a75 d9ccb3 947361")
_ROOFS = _palette("8c3829 404552 59806b 4d382e")
_BRONZES = _palette("404d42 594733 d9a633")
_GREENS = _palette("386129 527333 2e4d33 6b7338")
_WATERS = _palette("336185 407a80 597373 264766")
_ROCKS = _palette("7a706b 8c7561 666b75 995c47")
_SANDS = _palette("e6d19e c7ad80 80756b")
_GROUNDS = _palette("7a805c 8c8780 597347")
_GLASS = _palette("293342 4d6b85")
_CLOTHES = _palette("cc3333 334d99 e6e6e6 26262e ccb333")
_SKIES = _palette("5994d9 b3bac2 7373a6")
_LIGHTS = ((1.0, 1.0, 1.0), (0.85, 0.87, 0.92), (1.08, 0.92, 0.74), (0.62, 0.64, 0.74))
_DARK, _WHITE, _PATH, _TRUNK, _HAZE, _SKIN = _palette("24201f f2f2f5 b8a88a 4d3826 6e807a d9ad8c")


class Canvas:
    """A square image of a scene under random circumstances: camera, light and sky.

    A scene stands on y = 0 and its subject spans about -1..1; y grows upwards. Colours are red, green and blue in 0..1.

    Args:
        size: side of the image, pixels.
        rng: random generator for the circumstances.
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size = size
        self._light = np.array(_LIGHTS[rng.integers(len(_LIGHTS))]) * rng.uniform(0.85, 1.12)
        self._center = rng.uniform(-0.3, 0.3), rng.uniform(0.4, 0.7)
        self._scale = size * _FINER / rng.uniform(1.7, 3.0)
        self._lean = rng.normal(0, 0.05)  # sideways shift of uprights per unit of height, as in a hasty snapshot
        high = np.array(_SKIES[rng.integers(len(_SKIES))], dtype=np.float32)
        shares = np.linspace(0, 1, size * _FINER, dtype=np.float32)[:, None, None]
        sky = (high + (np.float32(0.92) - high) * shares) * np.float32(self._light.mean() * 255)
        self._pixels = np.ascontiguousarray(np.broadcast_to(sky, (len(shares), len(shares), 3)))

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        """Fill a polygon."""
        cv2.fillPoly(self._pixels, [self._places(points)], self._lit(color), cv2.LINE_8, _FRACTION_BITS)

    def box(self, left: float, bottom: float, right: float, top: float, color: Color) -> None:
        """Fill an upright rectangle."""
        self.polygon([(left, bottom), (right, bottom), (right, top), (left, top)], color)

    def gable(self, x: float, bottom: float, half: float, tall: float, color: Color) -> None:
        """Fill a triangle centred at ``x``."""
        self.polygon([(x - half, bottom), (x + half, bottom), (x, bottom + tall)], color)

    def disc(self, center: Point, across: float, up: float, color: Color, end: float = 360) -> None:
        """Fill an ellipse with half axes ``across`` and ``up``; or its sector from 0 (right) to ``end`` degrees."""
        angles = np.radians(np.linspace(0, end, 25))
        self.polygon([(center[0] + across * np.cos(a), center[1] + up * np.sin(a)) for a in angles], color)

    def dome(self, x: float, bottom: float, half: float, tall: float, color: Color) -> None:
        """Fill the upper half of an ellipse."""
        self.disc((x, bottom), half, tall, color, 180)

    def finish(self, noise: np.ndarray) -> np.ndarray:
        """Return the image, (size, size, 3) uint8 in red, green and blue.

        Args:
            noise: (size, size, 3) noise of a sensor, in grey levels.
        """
        small = cv2.resize(self._pixels, (self.size, self.size), interpolation=cv2.INTER_AREA)
        return np.clip(small + noise, 0, 255).astype(np.uint8)

    def _places(self, points: Sequence[Point]) -> np.ndarray:
        x, y = np.array(points, dtype=np.float64).T
        across, up = x + self._lean * y - self._center[0], y - self._center[1]
        places = self.size * _FINER / 2 + np.stack([across, -up], axis=1) * self._scale
        return np.round(places * (1 << _FRACTION_BITS)).astype(np.int32)

    def _lit(self, color: Color) -> list[float]:
        return np.minimum(np.array(color) * self._light * 255, 255).tolist()


# -- parts of scenes ---------------------------------------------------------------------------------------------------


def pick(colors: Sequence[Color], rng: np.random.Generator) -> Color:
    """Return one of the colours, slightly varied."""
    red, green, blue = np.clip(np.array(colors[int(rng.integers(len(colors)))]) + rng.normal(0, 0.07, 3), 0, 1).tolist()
    return red, green, blue


def shade(color: Color, factor: float) -> Color:
    """Return a darker or lighter colour."""
    red, green, blue = (min(1.0, c * factor) for c in color)
    return red, green, blue


def windows(canvas: Canvas, rng: np.random.Generator, half: float, bottom: float, top: float) -> None:
    """Draw rows of windows in an area around the middle."""
    columns, rows = int(rng.integers(2, 10)), int(rng.integers(1, 5))
    color, slim = pick(_GLASS, rng), half / columns * rng.uniform(0.3, 0.7)
    high = (top - bottom) / rows
    for at in half * (2 * np.arange(columns) + 1 - columns) / columns:
        for y in bottom + high * np.arange(rows):
            canvas.box(at - slim, y + high * 0.2, at + slim, y + high * 0.8, color)


def arches(canvas: Canvas, count: int, half: float, bottom: float, top: float, color: Color) -> None:
    """Draw openings with round tops side by side."""
    wide, spring = 0.6 * half / count, (bottom + top) / 2
    for x in half * (2 * np.arange(count) + 1 - count) / count:
        canvas.box(x - wide, bottom, x + wide, spring, color)
        canvas.dome(x, spring, wide, top - spring, color)


def ridge(canvas: Canvas, rng: np.random.Generator, bottom: float, height: float, color: Color) -> None:
    """Draw a skyline across the whole image."""
    xs = np.linspace(-3, 3, 25)
    ys = np.full(len(xs), bottom + 0.6 * height)
    for n in range(1, 6):
        ys += 0.35 * height * rng.normal() / n * np.sin(n * xs + rng.uniform(0, 6.3))
    canvas.polygon([(-3, bottom - 2), *zip(xs.tolist(), ys.tolist(), strict=True), (3, bottom - 2)], color)


def trees(canvas: Canvas, rng: np.random.Generator, count: int, bottom: float, size: float) -> None:
    """Draw trees of at most the height ``size`` that stand on a line."""
    is_conifer = rng.random() < 0.4
    for x in rng.uniform(-1.2, 1.2, count):
        tall, color = size * rng.uniform(0.4, 1), pick(_GREENS, rng)
        canvas.box(x - tall * 0.06, bottom, x + tall * 0.06, bottom + tall * 0.4, _TRUNK)
        if is_conifer:
            canvas.gable(x, bottom + tall * 0.2, tall * 0.3, tall * 0.9, color)
        else:
            canvas.disc((x, bottom + tall * 0.65), tall * 0.35, tall * 0.4, color)


# -- drawing functions: the landmark's random generator varies the shape ----------------------------------------------


def building(
    canvas: Canvas,
    rng: np.random.Generator,
    *,
    front: str = "windows",
    top: str = "roof",
    flank: str = "",
    walls: Sequence[Color] = _WALLS,
    halves: Point = (0.4, 0.75),
    heights: Point = (0.35, 0.6),
) -> None:
    """Draw a building.

    Args:
        canvas: canvas to draw on.
        rng: random generator of the landmark's shape.
        front: decoration of the facade: ``windows``, ``arches``, ``columns`` or ``bands``.
        top: shape of the building's top: ``roof``, ``gable``, ``dome`` or ``teeth``.
        flank: top of the towers at the sides: ``gable``, ``dome`` or ``teeth``; empty: no towers.
        walls: colours of the walls.
        halves: smallest and largest half of the building's width.
        heights: smallest and largest height of the building.
    """
    wall, roof, half, height = pick(walls, rng), pick(_ROOFS, rng), rng.uniform(*halves), rng.uniform(*heights)
    canvas.box(-half, 0, half, height, wall)
    if front == "windows":
        windows(canvas, rng, half * 0.9, height * 0.2, height * 0.9)
    elif front == "arches":
        arches(canvas, int(rng.integers(3, 8)), half, 0, height * 0.75, shade(wall, 0.45))
    elif front == "columns":
        porch = half * rng.uniform(0.4, 0.9)
        canvas.box(-porch, 0, porch, height, shade(wall, 0.6))
        for x in np.linspace(-porch, porch, int(rng.integers(3, 9))):
            canvas.box(x - 0.03, 0, x + 0.03, height, shade(wall, 1.08))
    else:
        bands = int(rng.integers(0, 5))
        for y in height * np.arange(bands) / (bands + 0.5):
            canvas.box(-half, y, half, y + height / (2 * bands + 1), roof)
    crown(canvas, top, 0, height, half, half * rng.uniform(0.3, 0.9), (wall, roof))
    across, tall, slim = half + rng.uniform(-0.1, 0.15), height + rng.uniform(0.2, 0.5), rng.uniform(0.06, 0.16)
    for x in np.linspace(-across, across, int(rng.integers(1, 4))) if flank else ():
        canvas.box(x - slim, 0, x + slim, tall, shade(wall, 0.9))
        crown(canvas, flank, x, tall, slim, rng.uniform(0.1, 0.4), (wall, roof))


def crown(
    canvas: Canvas, top: str, x: float, bottom: float, half: float, tall: float, colors: tuple[Color, Color]
) -> None:
    """Draw the top of a building or tower in the colours of its wall and roof."""
    wall, roof = colors
    if top == "gable":
        canvas.gable(x, bottom, half, tall, roof)
    elif top == "dome":
        canvas.dome(x, bottom, half * 0.8, tall, roof)
    elif top == "teeth":
        for tooth in np.arange(x - half, x + half - 0.03, 0.1):
            canvas.box(tooth, bottom, tooth + 0.05, bottom + 0.06, wall)
    else:
        canvas.box(x - half, bottom, x + half, bottom + tall * 0.3, roof)


def bridge(canvas: Canvas, rng: np.random.Generator) -> None:
    """Draw a bridge of arches."""
    canvas.box(-4, -1, 4, 0.12, pick(_WATERS, rng))
    stone, deck = pick((*_STONES, *_WALLS), rng), rng.uniform(0.4, 0.7)
    canvas.box(-2.5, 0.05, 2.5, deck, stone)
    arches(canvas, int(rng.integers(2, 8)), 2.0, 0.12, deck * 0.9, _HAZE)
    canvas.box(-3, deck, 3, deck + 0.05, shade(stone, 0.85))


def statue(canvas: Canvas, rng: np.random.Generator) -> None:
    """Draw a large bronze figure with an outstretched arm on a plinth with steps."""
    stone, bronze, half = pick(_STONES, rng), pick(_BRONZES, rng), rng.uniform(0.16, 0.28)
    foot, tall, steps = rng.uniform(0.25, 0.6), rng.uniform(0.6, 0.85), int(rng.integers(1, 5))
    for i in range(steps):
        canvas.box(i * 0.3 / steps - 0.5, i * 0.05, 0.5 - i * 0.3 / steps, (i + 1) * 0.05, shade(stone, 0.8 + 0.08 * i))
    canvas.box(-half, 0, half, foot, stone)
    canvas.gable(0, foot, tall * 0.26, tall, bronze)
    canvas.disc((0, foot + tall * 0.85), tall * 0.13, tall * 0.16, bronze)
    across, up = rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 0.8) * tall, foot + rng.uniform(0.5, 1.3) * tall
    canvas.polygon([(0, foot + tall * 0.55), (0, foot + tall * 0.7), (across, up + 0.05), (across, up)], bronze)


def mountain(canvas: Canvas, rng: np.random.Generator) -> None:
    """Draw peaks behind a green ridge."""
    rock = pick(_ROCKS, rng)
    for _ in range(int(rng.integers(1, 4))):
        x, half, tall = rng.uniform(-0.6, 0.6), rng.uniform(0.6, 1.3), rng.uniform(0.7, 1.35)
        color = shade(rock, rng.uniform(0.75, 1.1))
        canvas.gable(x, 0, half, tall, color)
        canvas.polygon([(x, tall), (x + half, 0), (x + half * 0.3, 0)], shade(color, 0.8))
        if tall > 0.95:
            snow = rng.uniform(0.15, 0.4)
            canvas.gable(x, tall * (1 - snow), half * snow, tall * snow, _WHITE)
    ridge(canvas, rng, 0, rng.uniform(0.1, 0.3), pick(_GREENS, rng))


def water(canvas: Canvas, rng: np.random.Generator) -> None:
    """Draw water in front of hills, usually with a beach."""
    shore, color = rng.uniform(0.35, 0.6), pick(_WATERS, rng)
    ridge(canvas, rng, shore, rng.uniform(0.2, 0.6), pick((*_GREENS, *_ROCKS), rng))
    canvas.box(-4, -1, 4, shore, color)
    for _ in range(int(rng.integers(4, 14))):
        x, y, half = rng.uniform(-1.3, 1.3), rng.uniform(-0.2, shore), rng.uniform(0.05, 0.4)
        canvas.box(x - half, y, x + half, y + 0.015, shade(color, 1.25))
    ridge(canvas, rng, -0.3, rng.uniform(0, 0.6), pick(_SANDS, rng))
    trees(canvas, rng, int(rng.integers(0, 6)), shore, 0.3)


def park(canvas: Canvas, rng: np.random.Generator) -> None:
    """Draw a path among trees, and a pond."""
    canvas.box(-4, -1, 4, 0.35, pick(_GREENS, rng))
    canvas.polygon([(-0.5, -0.6), (0.5, -0.6), (rng.uniform(-0.4, 0.4), 0.35)], _PATH)
    for bottom in (0.3, 0.15):
        trees(canvas, rng, int(rng.integers(2, 5)), bottom, 1.0)
    canvas.disc((rng.uniform(-0.5, 0.5), 0.05), rng.uniform(0, 0.5), 0.1, pick(_WATERS, rng))


classical = partial(building, front="columns", top="gable", halves=(0.7, 1.0))
PAINTERS: tuple[tuple[str, Painter], ...] = (  # the first entry with a word of the class name applies
    ("church cathedral chapel abbey monastery basilica religious", partial(building, flank="gable")),
    (
        "castle fort fortress fortification citadel",
        partial(building, front="arches", top="teeth", flank="teeth", walls=_STONES),
    ),
    (
        "mosque mausoleum tomb synagogue temple shrine pagoda",
        partial(building, front="arches", top="dome", flank="dome"),
    ),
    ("bridge viaduct aqueduct", bridge),
    (
        "lighthouse tower power obelisk column",
        partial(building, front="bands", top="dome", halves=(0.1, 0.25), heights=(1.0, 1.5)),
    ),
    # before the statues, so that a sculpture garden is drawn as a garden
    ("garden park zoo cemetery forest reserve protected", park),
    ("statue fountain sculpture triumphal monument memorial", statue),
    (
        "office residential hotel university skyscraper street square road location",
        partial(building, walls=(*_WALLS, *_GLASS), heights=(0.7, 1.3)),
    ),
    ("lake water waterfall reservoir bay pond spring canal river stream beach coast island peninsula", water),
    ("mountain landform natural volcano stratovolcano geyser caldera glacier hill rock basalt valley", mountain),
    ("museum palace hall library theatre theater opera city villa house airport railway station", classical),
)


def painter_of(kinds: Iterable[str]) -> Painter:
    """Return the drawing function for the first class name that has one; by default a classical building."""
    for kind in kinds:
        known = set(re.findall(r"\w+", kind.lower()))
        for words, painter in PAINTERS:
            if known.intersection(words.split()):
                return painter
    return classical


def draw(name: str, kinds: Sequence[str], number: int, *, size: int = 64, seed: int = 0) -> np.ndarray:
    """Draw one image of a landmark.

    Args:
        name: name of the landmark.
        kinds: class names of the landmark, finest first.
        number: number of the image.
        size: side of the image, pixels.
        seed: seed of all random choices.

    Returns:
        (size, size, 3) uint8, red, green, blue; it depends only on the arguments.
    """
    own = zlib.crc32(name.encode())
    # numbers for light, camera and people, which differ in every image
    taken = np.random.default_rng((seed, own, 1 + number))
    shape = np.random.default_rng((seed, own, 0))  # numbers for the landmark's shape, which is the same in every image
    canvas = Canvas(size, taken)
    for _ in range(int(taken.integers(0, 5))):
        across = taken.uniform(0.2, 0.5)
        canvas.disc((taken.uniform(-1.4, 1.4), taken.uniform(0.9, 1.9)), across, across / 3, _WHITE)
    ridge(canvas, shape, 0, shape.uniform(0, 0.35), _HAZE)
    canvas.box(-4, -2, 4, 0.02, pick(_GROUNDS, shape))
    painter_of(kinds)(canvas, shape)
    for _ in range(int(taken.integers(0, 6))):  # people in front of the landmark
        x, y, tall = taken.uniform(-1.2, 1.2), taken.uniform(-0.25, 0.05), taken.uniform(0.12, 0.3)
        canvas.box(x - tall * 0.15, y, x + tall * 0.15, y + tall * 0.75, pick(_CLOTHES, taken))
        canvas.disc((x, y + tall * 0.87), tall * 0.12, tall * 0.14, _SKIN)
    if taken.random() < 0.3:
        trees(canvas, taken, 1, -0.1, 1.1)
    return canvas.finish(taken.normal(0, taken.uniform(2, 8), (size, size, 3)).astype(np.float32))
