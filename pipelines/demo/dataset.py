"""A dataset without downloads: drawings of a build's landmarks as shards with a class-disjoint test split."""

from dataclasses import dataclass
from pathlib import Path

from hgld.errors import StorageError
from hgld.files import read_json, write_folder
from hgld.tables import read_csv

from ..shards.build import BuildResult, build_shards
from ..shards.config import ShardConfig, SourceConfig
from ..stage import Progress, plain, sha256_of, write_json
from .drawings import LEVELS, TABLE, choose_landmarks, write_drawings

DRAWINGS, SHARDS = "drawings", "shards"
_DRAWN = "drawn.json"
_VERSION = 4  # raise it when the same arguments draw other pictures


@dataclass(frozen=True)
class DrawnConfig:
    """Options of the drawings and of their split.

    Attributes:
        landmarks: number of landmarks, spread over the groups as evenly as their sizes allow.
        images: number of drawings of each landmark.
        size: side of an image, pixels.
        test_classes: part of the landmarks whose images are the test split.
        seed: of all that is random.
    """

    landmarks: int = 330
    images: int = 12
    size: int = 64
    test_classes: float = 1 / 3
    seed: int = 0


def build_drawn_dataset(labels: Path, root: Path, config: DrawnConfig, progress: Progress) -> BuildResult:
    """Draw the landmarks of a hierarchical label file and build their shards.

    After an interruption, the same call goes on: an incomplete set of drawings is made anew. A finished dataset is left
    as it is.

    Args:
        labels: landmark_id, category, supercategory, hierarchical_label, natural_or_human_made.
        root: gets ``drawings/`` (images and the table ``labels.csv``) and ``shards/``.
        config: of the drawings and their split.
        progress: told of every landmark and unit.

    Raises:
        ConfigError: fewer landmarks have all their labels than are to be drawn, or ``shards/`` holds something else.
        StorageError: the disk is full or not writable.
    """
    table = _draw(labels, root, config, progress)
    source = SourceConfig(levels=LEVELS, test_classes=config.test_classes, seed=config.seed)
    shards = ShardConfig(workers=1)  # so few small images are read before other processes are up
    return build_shards("manifest", table, str(root / SHARDS), source, shards, progress)


def _draw(labels: Path, root: Path, config: DrawnConfig, progress: Progress) -> Path:
    """Return the table of the drawings; they are made in a folder aside, which is renamed when it is complete."""
    folder = root / DRAWINGS
    stated = {"version": _VERSION, "labels": sha256_of(labels), **plain(config)}
    if _read(folder / _DRAWN) == stated and (folder / TABLE).is_file():
        return folder / TABLE
    chosen = choose_landmarks(read_csv(labels, infer=True), config.landmarks, config.seed)
    options = {"images": config.images, "size": config.size, "seed": config.seed}

    def fill(aside: Path) -> None:
        write_drawings(chosen, aside, **options, progress=progress)
        write_json(aside / _DRAWN, stated)

    try:
        write_folder(folder, fill)
    except OSError as error:
        raise StorageError(
            f"the drawings cannot be written to {root}: {error.strerror}. Free space, then run the same command."
        ) from error
    return folder / TABLE


def _read(record: Path) -> object:
    """Read the record of finished drawings; None where it is missing or damaged."""
    try:
        return read_json(record)
    except (OSError, ValueError):
        return None
