"""The experiments of papers, read from ``tables.csv``: what each table and figure needs, and the commands for it.

A row whose paper is ``data`` says how to build a dataset from its release. The page about the papers and ``hgld
reproduce`` are made from these rows. This module imports nothing slow.
"""

from dataclasses import dataclass
from functools import cache

from hgld.errors import ConfigError
from hgld.published.paper_table import label_of, paper_of
from hgld.published.results import PAPERS, PublishedValue, published_values, read_rows


@dataclass(frozen=True)
class Experiment:
    """A table, figure or ablation of a paper.

    Attributes:
        paper: key of :data:`hgld.published.PAPERS`; ``data`` for the build of a dataset.
        table: name of the table or figure in the paper.
        shows: content of the table or figure.
        data: names of the datasets, separated by spaces.
        commands: commands to run in a folder with these datasets, one per line. A line with ``{recipe}`` and ``{data}``
            means one command per recipe of the table.
        why: reason why the table or figure cannot be repeated; empty if it can be repeated.
    """

    paper: str
    table: str
    shows: str
    data: str
    commands: str
    why: str

    @property
    def title(self) -> str:
        """Name of the paper and of the table."""
        return f"{PAPERS[self.paper].name} {self.table}"

    @property
    def values(self) -> list[PublishedValue]:
        """Published values of the table or figure."""
        return [value for value in published_values() if (value.paper, value.table) == (self.paper, self.table)]


@cache
def all_experiments() -> tuple[Experiment, ...]:
    """Return all experiments: first the builds of datasets, then paper by paper."""
    return read_rows("tables.csv", Experiment)


def find_experiments(spelling: str) -> list[Experiment]:
    """Return the experiments of a table, given the paper and the table's number in any common spelling.

    Raises:
        ConfigError: the paper or table is unknown; the message lists the known papers or tables.
    """
    paper, rest = paper_of(spelling)
    here = [one for one in all_experiments() if one.paper == paper]
    wanted = label_of(rest)
    found = [one for one in here if wanted in (label_of(one.table), label_of(one.table.partition(",")[0]))]
    if not found:
        tables = "; ".join(one.table for one in here)
        raise ConfigError(f"{PAPERS[paper].name} has no table or figure {rest.strip()!r}; it has {tables}.")
    return found
