"""``hgld build-shards --dry-run``: what would be read and written, without writing anything."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.catalog import Catalog
from pipelines.examine_stage import ExaminePlan, plan_examination
from pipelines.shard_config import MEGABYTE, ShardConfig, SourceConfig
from pipelines.shard_output import ShardOutput
from pipelines.shard_plan import tar_size
from pipelines.shard_provenance import build_key
from pipelines.shard_work import WorkFolder, finished_dataset, work_path


@dataclass(frozen=True)
class PlannedSplit:
    """What a split would be: its items, its classes by level, its shards (about)."""

    items: int
    classes: Mapping[str, int]
    shards: int


@dataclass(frozen=True)
class PlannedBuild:
    """What a build would read and write.

    Attributes:
        out: folder or URL.
        done: whether that dataset lies there already.
        splits: by name.
        units: to examine, in all.
        pending: of them, not done yet.
        absent: tars that are missing.
        read_bytes: of the sources still to be examined.
        write_bytes: of the shards, about.
        spool_bytes: of the images that would be kept in the work folder meanwhile, about.
    """

    out: str
    done: bool
    splits: Mapping[str, PlannedSplit]
    units: int
    pending: int
    absent: tuple[Path, ...]
    read_bytes: int
    write_bytes: int
    spool_bytes: int


def plan_build(catalog: Catalog, out: str, options: SourceConfig, config: ShardConfig) -> PlannedBuild:
    """What :func:`pipelines.shards.build_catalog` would do with the same arguments.

    Raises:
        ConfigError: options that contradict each other; another dataset lies at ``out``.
        InputError: a tar or its checksum file cannot be read.
    """
    output = ShardOutput(out)
    work = WorkFolder(work_path(output, config.work))
    done = finished_dataset(output, build_key(catalog, options, config)) is not None
    plan = plan_examination(catalog, work.examined, config)
    return PlannedBuild(
        out=out,
        done=done,
        splits=_splits(catalog, plan, config),
        units=len(plan.units) + len(plan.absent),
        pending=0 if done else len(plan.pending) + len(plan.absent),
        absent=tuple(tar.path for tar in plan.absent),
        read_bytes=0 if done else plan.read_bytes,
        write_bytes=0 if done else shard_bytes(plan),
        spool_bytes=0 if done else plan.spool_bytes,
    )


def shard_bytes(plan: ExaminePlan) -> int:
    """Bytes of all shards, about, before any image is examined."""
    return tar_size(_sizes(plan, len(plan.items)), 1)


def _sizes(plan: ExaminePlan, items: int) -> np.ndarray:
    return np.full(items, plan.kept_bytes // max(1, len(plan.items)), dtype=np.int64)


def _splits(catalog: Catalog, plan: ExaminePlan, config: ShardConfig) -> dict[str, PlannedSplit]:
    splits = {}
    for (split,), part in plan.items.group_by("split", maintain_order=True):
        parts = tar_size(_sizes(plan, len(part)), 0) / (config.shard_mb * MEGABYTE)
        splits[str(split)] = PlannedSplit(
            items=len(part),
            classes={level: part[level].drop_nulls().n_unique() for level in catalog.levels},
            shards=math.ceil(max(parts, len(part) / config.shard_items)),
        )
    return dict(sorted(splits.items()))
