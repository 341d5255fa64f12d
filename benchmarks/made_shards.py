"""Input of benchmarks/data.py and gpu.py: generated JPEGs as files and as a dataset directory."""

from pathlib import Path

import cv2
import numpy as np
import polars as pl

from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent

LEVELS = ("fine", "middle", "coarse")
PER_CLASS = 8


def make_jpegs(folder: Path, count: int, width: int, height: int) -> list[Path]:
    """Make images of smooth patches with some grain, in JPEG quality 90, and keep them for the next run."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i:06d}.jpg" for i in range(count)]
    rng = np.random.default_rng(0)
    grain = rng.normal(0, 7, (2 * height, 2 * width, 3)).astype(np.float32)
    for file in files:
        patches = rng.integers(0, 256, (height // 24, width // 24, 3)).astype(np.float32)
        top, left = rng.integers(0, height), rng.integers(0, width)
        if file.exists():
            continue
        picture = cv2.resize(patches, (width, height), interpolation=cv2.INTER_CUBIC)
        picture += grain[top : top + height, left : left + width]
        done, data = cv2.imencode(".jpg", picture.clip(0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 90])
        assert done
        file.write_bytes(data.tobytes())
    return files


def make_dataset(folder: Path, count: int, width: int, height: int) -> tuple[Path, list[Path]]:
    """Return a dataset directory with 8 images of each class, and the files of its images."""
    files = make_jpegs(folder / "files", count, width, height)
    fine = np.arange(count) // PER_CLASS
    table = pl.DataFrame({"path": [file.name for file in files], "split": "train"}).with_columns(
        pl.Series(name, fine // size).cast(pl.String) for name, size in zip(LEVELS, (1, 10, 100), strict=True)
    )
    table.write_csv(folder / "images.csv")
    source = SourceConfig(images=folder / "files", levels=LEVELS)
    shards = folder / "dataset"
    build_shards("manifest", folder / "images.csv", str(shards), source, ShardConfig(shard_items=2000), silent)
    return shards, files
