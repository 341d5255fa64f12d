"""Measurements of scale 1 without its images: lists, tables and embeddings of full counts, each command alone.

    PYTHONPATH=.:benchmarks python -m rehearsed.bounds --out DIR [--scale 1.0] [--only plan,open,evaluate]

``plan`` reads the lists of the release (``build-shards --dry-run``, which finds no tars); ``open`` opens a dataset of
all labelled images and plans an epoch, and does so with all clean images; ``evaluate`` ranks the gallery for the scored
queries by all metrics, from embeddings of 128 dimensions in which landmark, group and top show, and makes the report.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import made_shards
import numpy as np
import polars as pl

from hgld import Hierarchy
from hgld.data.index import HIERARCHY, INDEX, MANIFEST, FileFacts, Manifest, ShardFacts, split_facts, write_index
from rehearsed.measure import ENVIRONMENT, run
from rehearsed.release import Release
from rehearsed.stages import HGLD
from rehearsed.table import markdown
from rehearsed.world import LEVELS, World

DIMENSIONS, PER_SHARD = 128, 10_000
METRICS = "R@1,AP,mAP@100,mAP@R,H-AP,NDCG,ASI"
NAMES = ("landmark", *LEVELS[1:])


def labels_of(world: World, places: np.ndarray) -> pl.DataFrame:
    """Return landmark, group and top of places, as numbers."""
    groups = world.place_groups[places]
    tops = np.array([top == "natural" for _, top in world.groups])[groups]
    return pl.DataFrame(dict(zip(NAMES, (places, groups, tops), strict=True))).cast(pl.Int32)


def write_dataset(folder: Path, splits: dict[str, pl.DataFrame]) -> None:
    """Write a dataset directory without its shards: enough to open it and to plan."""
    folder.mkdir(parents=True, exist_ok=True)
    tables, shards = [], []
    every = pl.concat(labels.with_columns(split=pl.lit(split)) for split, labels in splits.items())
    every = every.with_columns(pl.col(NAMES).rank("dense").cast(pl.Int32) - 1)
    for split in splits:
        codes = every.filter(split=split).drop("split").sort(NAMES)
        count = len(codes)
        position = np.arange(count)
        table = made_shards.index_of(
            position,
            512 + 2_560 * (position % PER_SHARD),
            np.full(count, 1_100),
            (32, 32),
            [hashlib.sha256(b"%s %d" % (split.encode(), i)).hexdigest() for i in range(count)],
            PER_SHARD,
        ).drop(made_shards.LEVELS)
        names = [f"{split}-{number:06d}.tar" for number in range(-(-count // PER_SHARD))]
        table = table.with_columns(
            *codes.get_columns(),
            key=pl.format("{}{}", pl.lit(split[0]), "key"),
            split=pl.lit(split),
            shard=pl.Series(names).gather(position // PER_SHARD),
        )
        tables.append(table)
        sizes = np.bincount(position // PER_SHARD)
        shards += [
            ShardFacts(name, split, int(n), 2_560 * int(n) + 1024, "0" * 64)
            for name, n in zip(names, sizes, strict=True)
        ]
    index = pl.concat(tables)
    write_index(index, folder / INDEX, NAMES)
    Hierarchy.from_labels(index.select(NAMES).unique().to_numpy(), NAMES).to_parquet(folder / HIERARCHY)
    files = {
        name: FileFacts(
            bytes=(folder / name).stat().st_size, sha256=hashlib.sha256((folder / name).read_bytes()).hexdigest()
        )
        for name in (INDEX, HIERARCHY)
    }
    manifest = Manifest("made", NAMES, 4, split_facts(index, NAMES), tuple(shards), files)
    (folder / MANIFEST).write_text(manifest.to_json())


def write_embeddings(folder: Path, name: str, labels: pl.DataFrame, seed: int) -> None:
    """Write embeddings in which every level adds a direction of its class, and noise."""
    centres = [
        np.random.default_rng(level).normal(size=(int(labels[column].max()) + 1, DIMENSIONS)).astype(np.float32)  # pyright: ignore[reportArgumentType]
        for level, column in enumerate(NAMES)
    ]
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIMENSIONS)).astype(np.float32)
    rows = noise * 2.5 + sum(c[labels[column].to_numpy()] for c, column in zip(centres, NAMES, strict=True))
    np.save(folder / f"{name}.npy", rows)
    labels.write_parquet(folder / f"{name}.labels.parquet")


def prepare_plan(world: World, folder: Path) -> list[tuple[str, ...]]:
    release = Release(world)
    release._write_lists(folder / "gldv2")
    told = ("--source", "gldv2", "--out", "shards", "--partial", "--dry-run")
    return [(*HGLD, "build-shards", "gldv2", *told)]


def prepare_open(world: World, folder: Path) -> list[tuple[str, ...]]:
    release = Release(world)
    labelled = {
        which: release.places[which][np.repeat(world.landmarks[which].labelled, world.landmarks[which].images)]
        for which in ("train", "index")
    }
    write_dataset(
        folder / "labelled",
        {"train": labels_of(world, labelled["train"]), "gallery": labels_of(world, labelled["index"])},
    )
    write_dataset(folder / "clean", {"train": labels_of(world, release.places["train"])})
    return [(sys.executable, "-m", "rehearsed.opening", "dataset", place) for place in ("labelled", "clean")]


def prepare_evaluate(world: World, folder: Path) -> list[tuple[str, ...]]:
    release = Release(world)
    first = release.places["index"].min()
    gallery = labels_of(world, release.places["index"]).with_columns(pl.col(NAMES[0]) - first)
    query = labels_of(world, release.places["test"][: world.count(1_129)]).with_columns(pl.col(NAMES[0]) - first)
    write_embeddings(folder, "gallery", gallery, 1)
    write_embeddings(folder, "query", query, 2)
    sides = [f"--{a}={b}" for a, b in zip(_SIDES, _FILES, strict=True)]
    evaluate = (*HGLD, "evaluate", *sides, "--levels", ",".join(NAMES), "--metrics", METRICS, "--out", "query.json")
    report = (*HGLD, "report", "query.json", "--out", "report.html")
    return [evaluate, report]


_SIDES = ("embeddings", "labels", "gallery-embeddings", "gallery-labels")
_FILES = ("query.npy", "query.labels.parquet", "gallery.npy", "gallery.labels.parquet")
PARTS: dict[str, Callable[[World, Path], list[tuple[str, ...]]]] = {
    "plan": prepare_plan,
    "open": prepare_open,
    "evaluate": prepare_evaluate,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(PARTS))
    told = parser.parse_args()
    world, rows = World(told.scale, 0), {}
    told.out.mkdir(parents=True, exist_ok=True)
    for part in told.only.split(","):
        for command in PARTS[part](world, told.out):
            spent = run(command, told.out, told.out / f"{part}.log", ENVIRONMENT)
            name = " ".join(word for word in command[3:6] if not word.startswith("-"))
            facts = {"spent": spent.to_dict(), "done": spent.code == 0, "items": 1, "unit": "command", "disk": 0}
            rows[f"{part}: {name}"] = facts
    print(markdown({"stages": rows, "scale": told.scale}))


if __name__ == "__main__":
    main()
