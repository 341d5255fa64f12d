"""Record of the images and classes that a run was trained on, so that they are not used for a test later."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hgld.data.dataset import ShardDataset
from hgld.errors import ConfigError, InputError
from hgld.evaluation.trained_on import TRAINED_ON, was_trained_on
from hgld.files import write_atomic
from hgld.user_cache import digest_of

from .config import read_record

SEEN = "seen.json"
SCHEMA_VERSION = 1
_MOST_DIGESTS = 20_000
_MOST_BYTES = 16 << 20
_MOST_READ = 2_000


def write_seen(run: Path, dataset: ShardDataset) -> None:
    """Write the images and finest classes of a run's training split, ``RUN/seen.json``, unless the file exists.

    An image's number is the first 64 bits of its SHA-256 in the index, so no image is read again. If there are many
    images, only numbers that are multiples of ``every`` are recorded. Datasets with common images then record the same
    numbers.

    Args:
        run: folder of the run.
        dataset: training split of the run's dataset.
    """
    if (run / SEEN).is_file():
        return
    numbers = _numbers(dataset)
    every = -(-len(numbers) // _MOST_DIGESTS) or 1
    kept = np.unique(numbers[numbers % np.uint64(every) == 0])
    record = {
        "schema_version": SCHEMA_VERSION,
        "dataset": dataset.manifest.name,
        "split": dataset.split,
        "shards": _shards_digest(dataset),
        "every": every,
        "images": [f"{number:016x}" for number in kept.tolist()],
        "classes": sorted(_classes(dataset)),
    }
    write_atomic(run / SEEN, json.dumps(record, ensure_ascii=False) + "\n")


@dataclass(frozen=True, eq=False)
class Seen:
    """Images and classes that a run was trained on.

    Attributes:
        dataset: name of the run's dataset.
        split: name of the run's training split.
        shards: digest of all shards of the run's dataset.
        every: only images whose number is a multiple of this are recorded.
        images: (N,) uint64 numbers of the recorded images, ascending.
        classes: names of the finest classes.
    """

    dataset: str
    split: str
    shards: str
    every: int
    images: np.ndarray
    classes: frozenset[str]

    @classmethod
    def load(cls, run: Path) -> "Seen | None":
        """Read the images and classes that a run was trained on; None if the run has no such file.

        Raises:
            InputError: the file is not such a record.
        """
        file = run / SEEN
        if not file.is_file():
            return None
        record = read_record(file, SCHEMA_VERSION, max_bytes=_MOST_BYTES, hint="Remove the file.")
        try:
            if not int(record["every"]) > 0:
                raise ValueError(record["every"])
            images = np.array([int(digits, 16) for digits in record["images"]], np.uint64)
            dataset, split, shards = (str(record[name]) for name in ("dataset", "split", "shards"))
            return cls(dataset, split, shards, int(record["every"]), images, frozenset(map(str, record["classes"])))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{file}: does not list images that a run was trained on. Remove the file.") from error

    def facts(self, queries: Sequence[ShardDataset]) -> dict[str, Any]:
        """Count the queries' images and classes that the run was trained on; return an empty dict if both counts are 0.

        Args:
            queries: splits whose images are queries.
        """
        numbers = np.concatenate([_numbers(part) for part in queries])
        checked = numbers[numbers % np.uint64(self.every) == 0]
        images = int(np.isin(checked, self.images).sum())
        classes = set[str]().union(*map(_classes, queries))
        shared = len(classes & self.classes)
        if not images and not shared:
            return {}
        own = all(_shards_digest(part) == self.shards for part in queries)
        facts = {"images": images, "of_images": len(checked), "classes": shared, "of_classes": len(classes)}
        return {**facts, "as": f"{self.dataset}, {self.split}", "own_dataset": own}


def check_seen(
    run: Path, queries: Sequence[ShardDataset], *, allowed: bool, own_allowed: bool = True
) -> dict[str, Any]:
    """Raise an error if a run was trained on the queries.

    Args:
        run: folder of the run.
        queries: splits whose images are queries.
        allowed: whether ``--seen`` was given.
        own_allowed: whether to allow queries from the run's own dataset, whose split names show what was trained on.

    Returns:
        settings for a report; empty if the run was trained on neither the images nor their classes.

    Raises:
        ConfigError: the run was trained on more than 1 % of the images.
    """
    seen = Seen.load(run)
    facts = {} if seen is None else seen.facts(queries)
    if not facts:
        return {}
    if not allowed and was_trained_on(facts) and not (own_allowed and facts["own_dataset"]):
        named = " and ".join(f"{part.manifest.name}, {part.split or 'all splits'}" for part in queries)
        raise ConfigError(
            f"{named}: {run} was trained on {facts['images']:,} of {facts['of_images']:,} of these images (as "
            f"{facts['as']}), so its values would be better than on new images. Choose a split that it was not trained "
            "on, or pass --seen to allow this."
        )
    return {TRAINED_ON: facts}


def _numbers(dataset: ShardDataset) -> np.ndarray:
    """Return (N,) uint64 numbers of the images: the first 64 bits of their SHA-256.

    A plain folder has no index, so up to 2,000 evenly spaced images of it are read.
    """
    if "sha256" in dataset.frame.columns:
        digests = dataset.frame["sha256"].to_list()
    else:
        chosen = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), _MOST_READ)).astype(int))
        digests = [hashlib.sha256(dataset.read(item)).hexdigest() for item in chosen.tolist()]
    return np.array([int(digest[:16], 16) for digest in digests], np.uint64)


def _classes(dataset: ShardDataset) -> set[str]:
    finest = dataset.labels[:, 0]
    return {dataset.hierarchy.names[0][label] for label in finest[finest >= 0].unique().tolist()}


def _shards_digest(dataset: ShardDataset) -> str:
    return digest_of(json.dumps([(shard.split, shard.sha256) for shard in dataset.manifest.shards]))[:16]
