"""Statements of papers on how their results were made, read from ``statements.csv``, beside what hgld does.

A statement is a fact with the section, table or figure that holds it. Facts that a paper does not state, but its
released code does, are rows without ``says``. This module imports nothing slow, because recipes use it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from hgld.published.results import read_rows


@dataclass(frozen=True)
class Statement:
    """A fact about a paper's experiments; a field is empty if there is nothing to state.

    Attributes:
        paper: key of :data:`hgld.published.PAPERS`.
        where: section, equation, figure or table that states the fact. ``text on Table V``: the paper's text about
            that table, if its section is not recorded here. Empty if the paper does not state the fact.
        subject: shell patterns of names to which the fact applies, separated by spaces: a recipe, ``loss:NAME``,
            ``data:NAME``, ``protocol:NAME``, ``metric:NAME``, or ``table:NAME`` (an experiment). A pattern after
            ``!`` excludes names.
        key: field of a training config, or a quantity in words.
        says: value in the paper.
        code: value in the authors' released code, then its file in parentheses; stated only if it differs from the
            paper's value or the paper has no value.
        ours: value in hgld, if it differs from the paper's value. For a field of a config, a recipe replaces it by the
            value of its config.
        because: reason for the difference.
    """

    paper: str
    where: str
    subject: str
    key: str
    says: str
    code: str
    ours: str
    because: str

    @property
    def is_followed(self) -> bool:
        """True if hgld does what the paper says or, if it says nothing, what its code does."""
        wanted = self.says or self.code.partition(" (")[0]
        return not (self.ours and wanted) or _same(wanted, self.ours)

    @property
    def is_plain(self) -> bool:
        """True if there is nothing to explain: hgld follows the paper or its code, and only one of them has a value."""
        return self.is_followed and not self.because and bool(self.says) != bool(self.code)

    @property
    def text(self) -> str:
        """The statement in a sentence: what the paper says, what its code does, what hgld does, and why."""
        parts = [f"the paper says {self.says}" if self.says else "the paper does not say"]
        parts += [f"its code does {self.code}"] if self.code else []
        parts.append(f"we do {self.ours}" if not (self.says and self.is_followed) else "we do as the paper")
        where = f" ({self.where})" if self.where else ""
        return (
            f"{self.key.rstrip('_')}{where}: {'; '.join(parts)}{f', because {self.because}' if self.because else ''}."
        )

    def applies_to(self, names: Collection[str]) -> bool:
        """Tell whether the subject means one of the names and excludes none of them."""
        patterns = self.subject.split()
        excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        return _any_fits(patterns, names) and not _any_fits(excluded, names)


def _any_fits(patterns: Collection[str], names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _same(one: str, other: str) -> bool:
    """Tell whether two texts mean the same value; numbers may be written differently."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


@cache
def all_statements() -> tuple[Statement, ...]:
    """Return all statements, paper by paper."""
    return read_rows("statements.csv", Statement)


def statements_of(paper: str, names: Collection[str]) -> list[Statement]:
    """Return the statements of a paper that apply to one of the names.

    Args:
        paper: key of :data:`hgld.published.PAPERS`.
        names: names that subjects may mean, such as the name of a recipe, and ``loss:HAPPIER``.
    """
    return [one for one in all_statements() if one.paper == paper and one.applies_to(names)]
