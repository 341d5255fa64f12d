"""UKBench: objects photographed four times each; every image queries all of them.

Nistér, Stewénius: "Scalable Recognition with a Vocabulary Tree", CVPR 2006. The release has no list; four consecutive
numbers are an object. Layout::

    full/ukbench00000.jpg ... ukbench00003.jpg      the first object
    full/ukbench00004.jpg ...
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import InputError

from ..catalog import Catalog
from .release import keep_splits, numbered_images, refuse_options

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("instance",)
OBTAIN = "Get the images of UKBench as `hgld datasets ukbench` says, and unpack them."
_GROUP = 4  # images of an object


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of UKBench: one split, ``test``.

    Args:
        source: the folder ``full``, or the one that holds it.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that UKBench does not take.
        InputError: there are no images, or an object has not four.
    """
    refuse_options(options, (), "ukbench")
    numbers, dropped = numbered_images(source, "full", r"ukbench([0-9]{5})\.jpg", "ukbench00000.jpg", OBTAIN)
    sizes = Counter(number // _GROUP for number in numbers.values())
    torn = [group for group, size in sorted(sizes.items()) if size != _GROUP]
    if torn:
        first, last = _GROUP * torn[0], _GROUP * torn[0] + _GROUP - 1
        raise InputError(
            f"{source}: {len(torn)} objects have not {_GROUP} images, the first {sizes[torn[0]]}; expected "
            f"ukbench{first:05d}.jpg to ukbench{last:05d}.jpg. The release is not whole. {OBTAIN}"
        )
    items = pl.DataFrame(
        {
            "key": [f"ukbench{number:05d}" for number in numbers.values()],
            "split": ["test"] * len(numbers),
            "file": list(numbers),
            "instance": [f"{number // _GROUP:04d}" for number in numbers.values()],
        }
    )
    return Catalog(
        name="ukbench",
        levels=LEVELS,
        items=keep_splits(items, options.splits, "ukbench"),
        root=source,
        dropped=dropped,
        protocol="ukbench",
    )
