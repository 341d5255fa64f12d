"""A dataset without downloads: drawings of a build's landmarks as shards with a class-disjoint test split."""

from dataclasses import dataclass
from pathlib import Path

import cv2
import polars as pl

from hgld.errors import ConfigError, StorageError
from hgld.files import read_json, write_folder
from hgld.tables import read_csv

from ..hierarchy.scrape.titles import category_title
from ..shards.build import BuildResult, build_shards
from ..shards.config import ShardConfig, SourceConfig
from ..stage import Progress, plain, sha256_of, write_json
from .drawings import draw

DRAWINGS, SHARDS = "drawings", "shards"
TABLE = "labels.csv"
LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
_DRAWN = "drawn.json"
_VERSION = 6  # increase this if a change of the code draws different images for the same arguments
_QUALITY = 90


@dataclass(frozen=True)
class DrawnConfig:
    """Options of the drawings and of their split.

    Attributes:
        landmarks: number of landmarks, spread over the groups as evenly as their sizes allow.
        images: number of drawings of each landmark.
        size: side of an image, pixels.
        test_classes: share of the landmarks whose images are the test split.
        seed: seed of all random choices.
    """

    landmarks: int = 330
    images: int = 12
    size: int = 64
    test_classes: float = 1 / 3
    seed: int = 0


def build_drawn_dataset(labels: Path, root: Path, config: DrawnConfig, progress: Progress) -> BuildResult:
    """Draw the landmarks of a hierarchical label file and build their shards.

    After an interruption, the same call resumes: an incomplete set of drawings is made again. A finished dataset is
    left as it is.

    Args:
        labels: hierarchical label file with the columns landmark_id, category, supercategory, hierarchical_label and
            natural_or_human_made.
        root: folder in which ``drawings/`` (images and the table ``labels.csv``) and ``shards/`` are made.
        config: options of the drawings and their split.
        progress: function called for every landmark and for every unit of work of the shards.

    Raises:
        ConfigError: there are fewer fully labelled landmarks than requested, or ``shards/`` holds something else.
        StorageError: the disk is full or not writable.
    """
    folder = root / DRAWINGS
    stated = {"version": _VERSION, "labels": sha256_of(labels), **plain(config)}
    if _read(folder / _DRAWN) != stated or not (folder / TABLE).is_file():
        chosen = choose_landmarks(read_csv(labels, infer=True), config.landmarks, config.seed)

        def fill(aside: Path) -> None:
            write_drawings(chosen, aside, config, progress)
            write_json(aside / _DRAWN, stated)

        try:
            write_folder(folder, fill)
        except OSError as error:
            raise StorageError(
                f"the drawings cannot be written to {root}: {error.strerror}. Free space, then run the same command."
            ) from error
    source = SourceConfig(levels=LEVELS, test_classes=config.test_classes, seed=config.seed, name="hgld-demo")
    shards = ShardConfig(workers=1)  # reading few small images takes less time than starting processes
    return build_shards("manifest", folder / TABLE, str(root / SHARDS), source, shards, progress)


def choose_landmarks(labels: pl.DataFrame, count: int, seed: int = 0) -> pl.DataFrame:
    """Choose landmarks whose labels are all known, spread over the groups as evenly as their sizes allow.

    Args:
        labels: rows of a hierarchical label file: landmark_id, category, supercategory, hierarchical_label,
            natural_or_human_made.
        count: number of landmarks.
        seed: seed of the choice.

    Returns:
        the rows of the chosen landmarks, in the order of ``labels``.

    Raises:
        ConfigError: there are fewer landmarks than the count.
    """
    known = labels.drop_nulls(LEVELS[1:]).with_row_index("row")
    if len(known) < count:
        raise ConfigError(f"{count} landmarks were requested, but only {len(known)} have all their labels.")
    shuffled = known.sample(fraction=1, shuffle=True, seed=seed)
    turns = shuffled.with_columns(turn=pl.int_range(pl.len()).over("hierarchical_label"))
    return turns.sort("turn", "hierarchical_label").head(count).sort("row").drop("row", "turn")


def write_drawings(labels: pl.DataFrame, folder: Path, config: DrawnConfig, progress: Progress) -> None:
    """Draw every landmark several times; write ``images/``, and the table of paths and labels (one column per level).

    Args:
        labels: rows of a hierarchical label file: landmark_id, category, supercategory, hierarchical_label,
            natural_or_human_made.
        folder: folder of the drawings.
        config: number and size of the images, and the seed; the same config gives the same bytes.
        progress: function called for every landmark.
    """
    rows: list[tuple[str, ...]] = []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(labels.iter_rows(named=True)):
        name = (category_title(str(row["category"])) or str(row["category"])).removeprefix("Category:")
        kinds = (str(row["supercategory"]), str(row["hierarchical_label"]))
        for image in range(config.images):
            path = f"images/{row['landmark_id']}-{image:02d}.jpg"
            pixels = draw(name, kinds, image, size=config.size, seed=config.seed)
            encoded = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1]
            (folder / path).write_bytes(encoded.tobytes())
            rows.append((path, name, kinds[1], str(row["natural_or_human_made"])))
        progress("drawing", number + 1, len(labels))
    pl.DataFrame(rows, schema=("path", *LEVELS), orient="row").write_csv(folder / TABLE)


def _read(record: Path) -> object:
    """Read the record of finished drawings; None if it is missing or damaged."""
    try:
        return read_json(record)
    except (OSError, ValueError):
        return None
