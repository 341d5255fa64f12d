"""Input of benchmarks/data.py: generated JPEGs as files and as a dataset directory, and a large index."""

import hashlib
from pathlib import Path

import cv2
import numpy as np
import polars as pl

from hgld import Hierarchy
from hgld.data.format import HIERARCHY, INDEX, MANIFEST, FileFacts, Manifest, ShardFacts, item_json, shard_name
from hgld.data.index import split_facts, write_index
from hgld.pipelines.shards.pack import TarWriter

LEVELS = ("fine", "middle", "coarse")
PER_SHARD = 2000
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


def labels_of(item: int) -> tuple[int, int, int]:
    return item // PER_CLASS, item // PER_CLASS // 10, item // PER_CLASS // 100


def names_of(labels: tuple[int, ...]) -> list[str]:
    return [f"class {label}" for label in labels]


def write_hgld(folder: Path, images: list[bytes], sizes: tuple[int, int], per_shard: int = PER_SHARD) -> None:
    """Write a dataset directory as hgld build-shards packs it."""
    folder.mkdir(parents=True, exist_ok=True)
    shards, offsets, digests = [], [], []
    for begin in range(0, len(images), per_shard):
        name, part = shard_name("train", begin // per_shard), images[begin : begin + per_shard]
        with open(folder / name, "wb", buffering=1 << 20) as file:
            tar = TarWriter(file)
            for i, image in enumerate(part, begin):
                labels = labels_of(i)
                facts = item_json(labels, names_of(labels), "train", f"{i:06d}.jpg", LEVELS)
                offsets.append(tar.add(f"{i:06d}", "jpg", image, facts))
                digests.append(hashlib.sha256(image).hexdigest())
            sha256 = tar.finish()
        shards.append(ShardFacts(name, "train", len(part), (folder / name).stat().st_size, sha256))
    items = np.arange(len(images))
    index = index_of(items, np.array(offsets), np.array([len(image) for image in images]), sizes, digests, per_shard)
    finish(folder, index, tuple(shards))


def index_of(
    items: np.ndarray,
    offsets: np.ndarray,
    bytes_of: np.ndarray,
    sizes: tuple[int, int],
    digests: list[str],
    per_shard: int = PER_SHARD,
) -> pl.DataFrame:
    fine, middle, coarse = items // PER_CLASS, items // PER_CLASS // 10, items // PER_CLASS // 100
    keys = pl.Series(items).cast(pl.String).str.zfill(6)
    shards = pl.Series(items // per_shard).cast(pl.String).str.zfill(6)
    return pl.DataFrame(
        {"key": keys, "shard": "train-" + shards + ".tar", "offset": offsets, "size": bytes_of}
    ).with_columns(
        *(pl.Series(name, column, dtype=pl.Int32) for name, column in zip(LEVELS, (fine, middle, coarse), strict=True)),
        split=pl.lit("train"),
        suffix=pl.lit("jpg"),
        width=pl.lit(sizes[0], pl.Int32),
        height=pl.lit(sizes[1], pl.Int32),
        orientation=pl.lit(1, pl.Int8),
        sha256=pl.Series(digests),
        duplicate_of=pl.lit(None, pl.String),
        class_run=pl.Series((items % per_shard) // PER_CLASS, dtype=pl.Int32),
    )


def finish(folder: Path, index: pl.DataFrame, shards: tuple[ShardFacts, ...]) -> None:
    write_index(index, folder / INDEX, LEVELS)
    Hierarchy.from_labels(index.select(LEVELS).to_numpy(), LEVELS).to_parquet(folder / HIERARCHY)
    files = {
        name: FileFacts(
            bytes=(folder / name).stat().st_size, sha256=hashlib.sha256((folder / name).read_bytes()).hexdigest()
        )
        for name in (INDEX, HIERARCHY)
    }
    manifest = Manifest("made", LEVELS, 4, split_facts(index, LEVELS), shards, files)
    (folder / MANIFEST).write_text(manifest.to_json())


def write_large_index(folder: Path, items: int) -> None:
    """Write a dataset directory with a large index and no shards, which can be opened."""
    folder.mkdir(parents=True, exist_ok=True)
    positions = np.arange(items)
    digests = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(items)]
    offsets = 512 + 24_000 * (positions % PER_SHARD)
    index = index_of(positions, offsets, np.full(items, 22_000), (256, 256), digests)
    counts = index.group_by("shard", maintain_order=True).len()
    shards = tuple(ShardFacts(name, "train", n, 24_000 * n + 1024, "0" * 64) for name, n in counts.iter_rows())
    finish(folder, index, shards)
