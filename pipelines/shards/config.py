"""The options of a build of shards: how the release is read, and how the shards are written.

This module imports nothing heavy, because ``hgld build-shards --help`` is made from it: every field is a flag, its
metadata the flag's help. Fields that cannot change the dataset's bytes say so with ``key=False``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hgld.errors import ConfigError
from hgld.settings import bound_problems, setting

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class SourceConfig:
    """Options for reading a release; an adapter raises an error for options that it does not use."""

    images: Path | None = setting(
        None, "Folder of the images, if it is not the folder of --source (manifest).", key=False
    )
    name: str = setting(
        "", "Name of the dataset [default: manifest or folders]. Only for manifest and folders.", key=False
    )
    license: str = setting(
        "", "Licence of the images, preferably an SPDX or Hugging Face identifier (manifest, folders)."
    )
    description: str = setting("", "Description of the dataset in its card (manifest, folders).")
    protocol: str = setting(
        "", "Evaluation protocol of the dataset; it determines the required columns of the table (manifest, folders)."
    )
    levels: tuple[str, ...] = setting(
        (),
        "Names of the levels A,B,C, finest first; A=COLUMN if the column has another name. Default: the columns that "
        "form a tree; for folders level0, level1, ... (manifest, folders).",
        repeated=True,
        common=True,
    )
    test_classes: float | None = setting(
        None,
        "Share of the finest classes whose items are the test split; 0: none. Default: from the number of classes, if "
        "the images have no splits and --val-classes is not given (manifest, folders).",
        common=True,
    )
    val_classes: float | None = setting(
        None,
        "Share of the classes left after --test-classes whose items are the split val; 0: none (any source).",
        common=True,
    )
    merge_spellings: bool = setting(
        False,
        "Merge class names that differ only in case, form of accents, blanks, - and _ (manifest, folders).",
        common=True,
    )
    seed: int = setting(0, "Seed of the class splits and of the shards' order.")
    labels: Path | None = setting(
        None,
        "Folder with labels: a build of hgld build-hierarchy --classes (its levels are added above the finest), the "
        "hierarchical labels (gldv2), or the retrieval splits (iNaturalist).",
        key=False,
        common=True,
    )
    distractors: bool = setting(False, "Include the distractors (roxford, rparis, gldv2).")
    splits: tuple[str, ...] = setting(
        (), "Build only these splits A,B; default: all splits of the release.", repeated=True
    )
    exclude: Path | None = setting(
        None,
        "CSV of items to exclude, for instance from hgld audit: a column key and, optionally, reason.",
        key=False,
        common=True,
    )


@dataclass(frozen=True)
class ShardConfig:
    """Options for writing shards."""

    group_size: int = setting(4, "Least number of items of a class that are next to each other in a shard.", least=1)
    shard_mb: int = setting(128, "Approximate size of a shard.", unit="megabytes (2^20 bytes)", least=1)
    shard_items: int = setting(10_000, "Approximate largest number of items in a shard.", least=1)
    resize: int = setting(
        0, "Shorter side to reduce images to, as JPEG; 0: keep the source's bytes.", unit="pixels", least=0
    )
    quality: int = setting(90, "JPEG quality of --resize, 1 to 100.", least=1, most=100)
    partial: bool = setting(False, "Build without missing or damaged tars.")
    executor: Literal["local", "ray"] = setting(
        "local",
        "Executor of the work: local processes, or a Ray cluster whose machines have access to the same folders.",
        key=False,
    )
    workers: int = setting(
        0, "Largest number of processes; 0: one per core (Ray: per core of the cluster).", least=0, key=False
    )
    ray_address: str = setting("", "Address of a running Ray cluster; default: start one on this machine.", key=False)
    keep_examined: bool = setting(
        False,
        "Keep all examined images in .build in --out until the build is done, so that tars can be deleted once they "
        "are examined; resized images are always kept there.",
        key=False,
    )

    def __post_init__(self) -> None:
        for name, problem in bound_problems(self):
            raise ConfigError(f"--{name.replace('_', '-')} {problem}")
        if self.ray_address and self.executor != "ray":
            raise ConfigError("--ray-address needs --executor ray; add it, or omit the address.")

    def execution(self) -> dict[str, Any]:
        """Return the arguments of :func:`hgld.pipelines.executor.run_units` that select the executor."""
        return {"executor": self.executor, "workers": self.workers, "ray_address": self.ray_address}
