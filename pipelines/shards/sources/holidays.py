"""INRIA Holidays: photographs of scenes and objects, the first of each group a query.

Jégou, Douze, Schmid: "Hamming Embedding and Weak Geometric Consistency for Large Scale Image Search", ECCV 2008. The
release has no list; the names of its images say all. Layout::

    jpg/100000.jpg          of group 1000 the query: the number ends in 00
    jpg/100001.jpg ...
"""

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import InputError

from ..catalog import Catalog
from .release import keep_splits, numbered_images, refuse_options

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("instance",)
OBTAIN = "Get both archives of INRIA Holidays as `hgld datasets holidays` says, and unpack them into one folder."
QUERIES = "queries"
_GROUP = 100  # numbers of a group


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of Holidays: one split, ``test``, whose list ``queries`` names the images that search the rest.

    Args:
        source: the folder ``jpg``, or the one that holds it.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that Holidays does not take.
        InputError: there are no images, or groups without their query.
    """
    refuse_options(options, (), "holidays")
    numbers, dropped = numbered_images(source, "jpg", r"([1-9][0-9]{5})\.jpg", "100000.jpg", OBTAIN)
    queries = [number for number in numbers.values() if number % _GROUP == 0]
    lost = sorted({number // _GROUP for number in numbers.values()} - {query // _GROUP for query in queries})
    if lost:
        raise InputError(
            f"{source}: {len(lost)} groups have no query, the first {lost[0]}: {lost[0] * _GROUP}.jpg is missing. The "
            f"release is not whole. {OBTAIN}"
        )
    items = pl.DataFrame(
        {
            "key": [str(number) for number in numbers.values()],
            "split": ["test"] * len(numbers),
            "file": list(numbers),
            "instance": [str(number // _GROUP) for number in numbers.values()],
        }
    )
    return Catalog(
        name="holidays",
        levels=LEVELS,
        items=keep_splits(items, options.splits, "holidays"),
        root=source,
        lists=pl.DataFrame({"list": [QUERIES] * len(queries), "key": list(map(str, queries))}),
        dropped=dropped,
        protocol="holidays",
    )
