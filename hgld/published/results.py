"""Published results of papers, read from ``results.csv``: one value per row, with the table that prints it.

Numbers are copied as printed. If a paper contradicts itself, the file has both values, each with its table. Names of
datasets, levels and metrics are the names that hgld uses. This module imports nothing slow, because recipes use it.
"""

import csv
import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from hgld.errors import ConfigError
from hgld.plugins import read_definitions


@dataclass(frozen=True)
class Paper:
    """A publication with results.

    Attributes:
        name: short, readable name.
        source: authors, title, edition.
        spellings: other names of the paper, for searches.
        inferred: name of the column whose values the paper's tables do not print, and a sentence on their origin.
    """

    name: str
    source: str
    spellings: tuple[str, ...] = ()
    inferred: tuple[str, str] = ("", "")


PAPERS: Mapping[str, Paper] = read_definitions(Path(__file__).with_name("papers.toml"), Paper)
"""The papers by their keys in ``results.csv``: first the papers of hgld's losses, then papers of other rows."""

# hgld has this part of Copydays as a dataset, so the names of its metrics do not contain the part
_WHOLE_LIST = "strong+10k"
_MOST_NAMED = 12  # maximum number of names in an error
_SAME_IMAGES = {"inat-full": "inat-base"}  # datasets with the same images and species but different coarser levels
_SPELLINGS: Mapping[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("spellings.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class PublishedValue:
    """A value of a published table, as printed; every field is a text, empty if the paper does not state it.

    Attributes:
        paper: key of :data:`PAPERS`.
        table: name of the table in the paper, for example ``Table V``.
        dataset: name of the dataset in hgld.
        part: part of the dataset's protocol: ``medium``, ``hard+distractors``, ``small``.
        method: name of the method in the table.
        backbone: backbone of the method.
        dim: dimensions of the embedding.
        setting: differences from other rows of its method: batch, labels, resolution.
        metric: name of the metric in hgld, or in the table if hgld lacks the metric.
        level: level of a binary metric; ``average``: the mean over the dataset's levels.
        text: the value as printed.
        unit: unit of the value: ``%``, ``1`` (a share or a distance), ``of 4``, ``ms``; empty for counts and texts.
        note: remark about this value.
    """

    paper: str
    table: str
    dataset: str
    part: str
    method: str
    backbone: str
    dim: str
    setting: str
    metric: str
    level: str
    text: str
    unit: str
    note: str

    @property
    def name(self) -> str:
        """Return the metric's name in reports of hgld: ``R@1/product``, ``H-AP``, ``mAP/medium``, ``R@1/small``."""
        where = self.part.removesuffix(_WHOLE_LIST) or self.level
        return f"{self.metric}/{where}" if where else self.metric

    @property
    def finest(self) -> bool:
        """True for a value of the dataset's finest level, which may have another name in a dataset directory."""
        return bool(self.level) and self.level == _SPELLINGS["finest"].get(self.dataset) and not self.part

    @property
    def number(self) -> float | None:
        """The value as a number in its unit; None for a text such as ``3 days``."""
        try:
            return float(self.text)
        except ValueError:
            return None

    def as_dict(self) -> dict[str, str]:
        """Return all fields of the value, and the citation of the paper."""
        return {("value" if name == "text" else name): text for name, text in asdict(self).items()} | {
            "source": PAPERS[self.paper].source
        }

    def in_unit(self, value: float) -> float:
        """Convert a value of a report to the unit of this value."""
        return 100 * value if self.unit == "%" else value


_Row = TypeVar("_Row")


def read_rows(name: str, make: Callable[..., _Row]) -> tuple[_Row, ...]:
    """Return ``make(*cells)`` for every row, except the header, of a table in this module's folder."""
    with Path(__file__).with_name(name).open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        return tuple(make(*row) for row in rows)


@cache
def published_values() -> tuple[PublishedValue, ...]:
    """Return all values, paper by paper, in the order of their tables."""
    return read_rows("results.csv", PublishedValue)


def belongs(dataset: str, value: PublishedValue) -> bool:
    """Return whether a value can be compared with an evaluation on the dataset of this name in ``dataset.json``.

    Values at iNaturalist's species level hold for two levels and for seven, so they also belong to ``inat-full``.
    """
    same = value.dataset == _SAME_IMAGES.get(dataset) and value.level == "species"
    return value.dataset == dataset or same


# -- search -----------------------------------------------------------------------------------------------------------


def fold(text: str) -> str:
    """Return a name without case, spaces and punctuation, for comparisons of names.

    >>> fold("Smooth-AP"), fold("ROD-R@k + L_DG*"), fold("ProxyNCA++")
    ('smoothap', 'rodr@k+ldg*', 'proxynca++')
    """
    return re.sub(r"[^\w+@*]|_", "", text.lower())


def search_values(*, dataset: str = "", method: str = "", metric: str = "") -> list[PublishedValue]:
    """Return the values that match all given names; case, spaces and punctuation are ignored.

    Args:
        dataset: name of a dataset, such as ``sop``, ``iNaturalist`` or ``dyml``.
        method: part of a method's name: ``HAPPIER`` finds HAPPIER_F too.
        metric: name of a metric, such as ``R@1``, ``AP`` or ``R@1/product``; only whole names match, and AP equals mAP.

    Raises:
        ConfigError: no value matches; the message states the unknown word and the known names.
    """
    found = list(published_values())
    wanted = _SPELLINGS["datasets"].get(fold(dataset), fold(dataset))
    asked, (kind, _, level) = fold(method), metric.partition("/")
    for what, word, fits, named in (
        ("dataset", dataset, lambda v: wanted in fold(v.dataset), lambda v: v.dataset),
        ("method", method, lambda v: any(asked in name for name in _names(v.method)), lambda v: v.method),
        (
            "metric",
            metric,
            lambda v: (
                _metric(v.metric) == _metric(kind) and (not level or fold(level) in (fold(v.level), fold(v.part)))
            ),
            lambda v: v.name,
        ),
    ):
        kept = [value for value in found if not word or fits(value)]
        if not kept:
            there = list(dict.fromkeys(map(named, found)))
            shown = difflib.get_close_matches(word, there, n=_MOST_NAMED, cutoff=0.3) or there[:_MOST_NAMED]
            raise ConfigError(
                f"no published row has {what} {word!r}; there are {len(there)}, such as {', '.join(shown)}."
            )
        found = kept
    return found


def _metric(name: str) -> str:
    return "ap" if fold(name) == "map" else fold(name)


def _names(method: str) -> list[str]:
    own = fold(method)
    others = [names for beginning, names in _SPELLINGS["methods"].items() if own.startswith(beginning)]
    return [own, *" ".join(others).split()]
