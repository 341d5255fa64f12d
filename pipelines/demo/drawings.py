"""Drawings of many landmarks: a folder of images and a table that ``hgld build-shards manifest`` reads."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import polars as pl

from hgld.errors import ConfigError

from ..hierarchy.scrape.titles import category_title
from ..stage import Progress, silent
from .scenes import Place, draw

TABLE = "labels.csv"
LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
_QUALITY = 90


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
        the table: path, and one column a level.
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
