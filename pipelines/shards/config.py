"""The options of a build of shards: how the release is read, and how the shards are written.

This module imports nothing heavy, because ``hgld build-shards --help`` is made from it: every field is a flag, and its
metadata is the flag's help. Fields that cannot change the dataset's bytes say so with ``key=False``.
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
        None, "Folder of the images, if it is not the folder of --source. Only for manifest.", key=False
    )
    name: str = setting(
        "", "Name of the dataset [default: manifest or folders]. Only for manifest and folders.", key=False
    )
    license: str = setting(
        "", "Licence of the images, preferably an SPDX or Hugging Face identifier. Only for manifest and folders."
    )
    description: str = setting("", "Description of the dataset in its card. Only for manifest and folders.")
    protocol: str = setting(
        "",
        "Evaluation protocol of the dataset; it determines which columns the table needs. Only for manifest and "
        "folders.",
    )
    levels: tuple[str, ...] = setting(
        (),
        "Names of the levels A,B,C, finest first; A=COLUMN if the column has another name. Default: the columns that "
        "form a tree; for folders level0, level1, ... Only for manifest and folders.",
        repeated=True,
        common=True,
    )
    test_classes: float | None = setting(
        None,
        "Share of the finest classes that form the test split; 0: no test split. Default: derived from the number of "
        "classes, if the images have no splits and --val-classes is not given. Only for manifest and folders.",
        common=True,
    )
    val_classes: float | None = setting(
        None,
        "Share of the training classes (without the classes of --test-classes) that form the split val; 0: no val "
        "split. "
        "For every source.",
        common=True,
    )
    merge_spellings: bool = setting(
        False,
        "Merge class names that differ only in case, Unicode form, spaces, - and _. Only for manifest and folders.",
        common=True,
    )
    seed: int = setting(0, "Seed of the random class splits and of the random order of the shards.")
    labels: Path | None = setting(
        None,
        "Folder with labels: a build of hgld build-hierarchy --classes (its levels replace the levels above the "
        "finest), "
        "the hierarchical labels (gldv2), or the retrieval splits (iNaturalist).",
        key=False,
        common=True,
    )
    distractors: bool = setting(False, "Include the distractors. Only for roxford, rparis and gldv2.")
    splits: tuple[str, ...] = setting(
        (), "Splits to build, separated by commas. Default: all splits of the release.", repeated=True
    )
    exclude: Path | None = setting(
        None,
        "CSV that lists items to exclude, for instance from hgld audit: a column key and, optionally, a column reason.",
        key=False,
        common=True,
    )


@dataclass(frozen=True)
class ShardConfig:
    """Options for writing shards."""

    group_size: int = setting(
        4, "Minimum number of items of a class that are stored next to each other in a shard.", least=1
    )
    shard_mb: int = setting(128, "Approximate size of a shard.", unit="megabytes (2^20 bytes)", least=1)
    shard_items: int = setting(10_000, "Approximate maximum number of items in a shard.", least=1)
    resize: int = setting(
        0,
        "Length of the shorter side to which images are downscaled, as JPEG. 0: keep the original bytes.",
        unit="pixels",
        least=0,
    )
    quality: int = setting(90, "JPEG quality of images that --resize downscales, 1 to 100.", least=1, most=100)
    partial: bool = setting(False, "Build the dataset without tars that are missing or damaged.")
    executor: Literal["local", "ray"] = setting(
        "local",
        "Executor of the work: local processes, or a Ray cluster whose machines have access to the same folders.",
        key=False,
    )
    workers: int = setting(
        0, "Maximum number of processes. 0: one per core (Ray: one per core of the cluster).", least=0, key=False
    )
    ray_address: str = setting("", "Address of a running Ray cluster. Default: start one on this machine.", key=False)
    keep_examined: bool = setting(
        False,
        "Keep copies of all examined images in the folder .build of --out until the build is done, so that you can "
        "delete tars once they are examined. Resized images are always kept there.",
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
