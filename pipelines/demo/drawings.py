"""Drawings of landmarks: the kind of landmark selects the painter, the landmark its shape, the image its circumstances.

A folder of images and a table that ``hgld build-shards manifest`` reads.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import polars as pl

from hgld.errors import ConfigError

from ..hierarchy.scrape.titles import category_title
from ..stage import Progress, silent
from . import painters
from .painters import Canvas, Painter, View, pick, ridge, shade, tree

TABLE = "labels.csv"
LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
_QUALITY = 90

PAINTERS: tuple[tuple[str, Painter], ...] = (  # the first painter with a word of the kind's name is taken
    ("church cathedral chapel abbey monastery basilica religious", painters.church),
    ("castle fort fortress fortification citadel", painters.castle),
    ("mosque mausoleum tomb synagogue temple shrine pagoda", painters.domed),
    ("bridge viaduct aqueduct", painters.bridge),
    ("lighthouse tower power obelisk column", painters.tower),
    ("garden park zoo cemetery forest reserve protected", painters.park),  # before statues, for gardens of sculptures
    ("statue fountain sculpture", painters.statue),
    ("triumphal monument memorial", painters.arch),
    ("office residential hotel university skyscraper street square road location", painters.block),
    ("lake water waterfall reservoir bay pond spring canal river stream", painters.lake),
    ("beach coast island peninsula", painters.beach),
    (
        "mountain landform natural volcano stratovolcano geyser caldera glacier hill rock basalt valley",
        painters.mountain,
    ),
    ("museum palace hall library theatre theater opera city villa house airport railway station", painters.classical),
)
_SKIES = (
    ((0.85, 0.90, 0.95), (0.35, 0.58, 0.85)),
    ((0.90, 0.90, 0.90), (0.70, 0.73, 0.76)),
    ((0.98, 0.78, 0.55), (0.45, 0.45, 0.65)),
)
_LIGHTS = ((1.0, 1.0, 1.0), (0.85, 0.87, 0.92), (1.08, 0.92, 0.74), (0.62, 0.64, 0.74))


@dataclass(frozen=True)
class Place:
    """A landmark to draw: its name, and the names of its kind, finest first."""

    name: str
    kinds: tuple[str, ...]


def painter_of(kinds: Iterable[str]) -> Painter:
    """Return the painter of the first kind that has one; a classical building if none has."""
    for kind in kinds:
        known = set(re.findall(r"\w+", kind.lower()))
        for words, painter in PAINTERS:
            if known.intersection(words.split()):
                return painter
    return painters.classical


def draw(place: Place, number: int, *, size: int = 64, seed: int = 0) -> np.ndarray:
    """Make one drawing of a landmark.

    Args:
        place: the landmark.
        number: of the image.
        size: side of the picture, pixels.
        seed: of all that is random.

    Returns:
        (size, size, 3) uint8, red, green, blue; a function of the arguments alone.
    """
    own = zlib.crc32(place.name.encode())
    taken = np.random.default_rng((seed, own, 1 + number))  # the circumstances, which differ in every image
    canvas = Canvas(size, _view(taken))
    _clouds(canvas, taken)
    shape = np.random.default_rng((seed, own, 0))  # the landmark's own, the same in every image
    ridge(canvas, shape, 0, shape.uniform(0, 0.35), pick(((0.45, 0.52, 0.55), (0.40, 0.48, 0.38)), shape), 0.03)
    canvas.box(-4, -2, 4, 0.02, pick(((0.48, 0.50, 0.36), (0.55, 0.53, 0.50), (0.35, 0.45, 0.28)), shape))
    painter_of(place.kinds)(canvas, shape)
    _clutter(canvas, taken)
    return canvas.finish(taken.normal(0, taken.uniform(2, 8), (size, size, 3)).astype(np.float32))


def _view(rng: np.random.Generator) -> View:
    light = np.array(_LIGHTS[rng.integers(len(_LIGHTS))]) * rng.uniform(0.85, 1.12)
    low, high = _SKIES[rng.integers(len(_SKIES))]
    return View(
        center=(rng.uniform(-0.3, 0.3), rng.uniform(0.4, 0.7)),
        width=rng.uniform(1.7, 3.0),
        lean=rng.normal(0, 0.05),
        light=(float(light[0]), float(light[1]), float(light[2])),
        sky=(shade(low, float(light.mean())), shade(high, float(light.mean()))),
    )


def _clouds(canvas: Canvas, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(0, 5))):
        x, y, size = rng.uniform(-1.4, 1.4), rng.uniform(0.9, 1.9), rng.uniform(0.1, 0.35)
        canvas.disc((x, y), size * 1.6, size * 0.5, (0.95, 0.95, 0.96))


def _clutter(canvas: Canvas, rng: np.random.Generator) -> None:
    """Draw people, cars and trees in front of the landmark."""
    colors = ((0.8, 0.2, 0.2), (0.2, 0.3, 0.6), (0.9, 0.9, 0.9), (0.15, 0.15, 0.18), (0.8, 0.7, 0.2))
    for _ in range(int(rng.integers(0, 6))):
        x, y, size = rng.uniform(-1.2, 1.2), rng.uniform(-0.25, 0.05), rng.uniform(0.12, 0.3)
        color = pick(colors, rng)
        canvas.box(x - size * 0.15, y, x + size * 0.15, y + size * 0.75, color)
        canvas.disc((x, y + size * 0.87), size * 0.12, size * 0.14, (0.85, 0.68, 0.55))
    for _ in range(int(rng.integers(0, 2))):
        x, y, color = rng.uniform(-1.2, 1.2), rng.uniform(-0.3, -0.1), pick(colors, rng)
        canvas.box(x - 0.22, y, x + 0.22, y + 0.12, color)
        canvas.box(x - 0.12, y + 0.12, x + 0.12, y + 0.22, shade(color, 0.7))
    if rng.random() < 0.3:
        tree(
            canvas,
            rng,
            rng.choice([-1.0, 1.0]) * rng.uniform(0.6, 1.2),
            rng.uniform(-0.2, 0.1),
            rng.uniform(0.5, 1.1),
            False,
        )


def choose_landmarks(labels: pl.DataFrame, count: int, seed: int = 0) -> pl.DataFrame:
    """Choose landmarks whose labels are all known, spread over the groups as evenly as their sizes allow.

    Args:
        labels: rows of a hierarchical label file: landmark_id, category, supercategory, hierarchical_label,
            natural_or_human_made.
        count: number of landmarks.
        seed: of the choice.

    Returns:
        the rows chosen, in the order of the labels.

    Raises:
        ConfigError: there are fewer landmarks than the count.
    """
    known = labels.drop_nulls(LEVELS[1:]).with_row_index("row")
    if len(known) < count:
        raise ConfigError(f"{count} landmarks are asked for, and {len(known)} have all their labels.")
    shuffled = known.sample(fraction=1, shuffle=True, seed=seed)
    turns = shuffled.with_columns(turn=pl.int_range(pl.len()).over("hierarchical_label"))
    return turns.sort("turn", "hierarchical_label").head(count).sort("row").drop("row", "turn")


def write_drawings(
    labels: pl.DataFrame, folder: Path, *, images: int = 12, size: int = 64, seed: int = 0, progress: Progress = silent
) -> Path:
    """Draw every landmark several times and write the images and their table.

    Args:
        labels: rows of a hierarchical label file, see :func:`choose_landmarks`.
        folder: gets ``images/`` and the table.
        images: number of drawings of each landmark.
        size: side of an image, pixels.
        seed: of all that is random; the same arguments give the same bytes.
        progress: told of every landmark.

    Returns:
        the table: path, and one column per level.
    """
    rows: list[tuple[str, ...]] = []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(labels.iter_rows(named=True)):
        name = (category_title(str(row["category"])) or str(row["category"])).removeprefix("Category:")
        kinds = (str(row["supercategory"]), str(row["hierarchical_label"]))
        for image in range(images):
            path = f"images/{row['landmark_id']}-{image:02d}.jpg"
            _write_jpeg(folder / path, draw(Place(name, kinds), image, size=size, seed=seed))
            rows.append((path, name, kinds[1], str(row["natural_or_human_made"])))
        progress("drawing", number + 1, len(labels))
    table = folder / TABLE
    _frame(rows).write_csv(table)
    return table


def _frame(rows: Sequence[tuple[str, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=("path", *LEVELS), orient="row")


def _write_jpeg(path: Path, picture: np.ndarray) -> None:
    _, data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    path.write_bytes(data.tobytes())
