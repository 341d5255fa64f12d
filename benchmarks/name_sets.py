"""Datasets of names with a reference grouping, and the options that the benchmarks of names share."""

import argparse
import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measured import make_parser  # a module beside this script

SETS = {  # printed name: folder, column of names, column of groups
    "washington": ("gldv2_washington_landmarks", "label", "mid"),
    "geonames": ("taxonomies/geonames", "label", "mid"),
    "places365": ("taxonomies/places365", "label", "mid"),
    "schemaorg mid": ("taxonomies/schemaorg_places", "label", "mid"),
    "schemaorg top": ("taxonomies/schemaorg_places", "label", "top"),
    "overture": ("taxonomies/overture_places", "label", "mid"),
    "cub200": ("taxonomies/cub200", "label", "mid"),
    "grocery": ("grocery", "fine", "coarse"),
    "overture top": ("taxonomies/overture_places", "label", "top"),
}
EIGHT = tuple(SETS)[:-1]  # the names of "overture top" are those of "overture"


def rows_of(data: Path, name: str, column: str = "") -> list[dict[str, str]]:
    """Return the rows of a dataset that have one value in a column; default: the column of its groups."""
    folder, _, level = SETS[name]
    with (data / folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row.get(column or level) and "|" not in row[column or level]]


def names_parser(about: str | None, sets: Iterable[str] = EIGHT, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks of names share, and options with these defaults."""
    parser = make_parser(about, **defaults)
    data = os.environ.get("HGLD_DATA")
    parser.add_argument(
        "--data", type=Path, default=data, required=data is None, help="folder of the datasets; default: HGLD_DATA"
    )
    parser.add_argument("--encoder", action="append", help="encoder of build-hierarchy; again for more")
    parser.add_argument("--sets", default=",".join(sets), help="names of datasets, separated by commas")
    return parser
