"""A paper's table with the user's runs as additional rows, each with its difference to the row of its recipe."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hgld.errors import ConfigError, quoted
from hgld.published.results import PAPERS, PublishedValue, belongs, fold, published_values

# -- which table ------------------------------------------------------------------------------------------------------

_WORDS = (
    (r"\b(tab(le)?|tbl)(?![a-z])", " "),
    (r"\bfig(ure)?(?![a-z])", "figure"),
    (r"\bsec(tion)?(?![a-z])", "section"),
)
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")
_NUMBER = re.compile(rf"({'|'.join(sorted(_ROMAN, key=len, reverse=True))})(left|right|)")


def find_table(spelling: str) -> tuple[str, list[PublishedValue]]:
    """Find the rows of a paper's table, given the paper's name and the table's number in any common spelling.

    Args:
        spelling: paper and table, such as ``SupRank Table V``, ``suprank 5``, ``Brown et al. Tab. 3 (left)`` or
            ``arXiv:1902.05509 D.1``; a paper's name alone means all its tables.

    Returns:
        title of the table, and its published values in the order of the paper.

    Raises:
        ConfigError: the paper or table is unknown; the message lists the known papers or tables.
    """
    paper, rest = paper_of(spelling)
    values = [value for value in published_values() if value.paper == paper]
    label = label_of(rest)
    found = [v for v in values if label in ("", label_of(v.table), label_of(v.table.partition("(")[0]))]
    if not found:
        tables = ", ".join(dict.fromkeys(value.table for value in values))
        raise ConfigError(f"{PAPERS[paper].name} has no values of {quoted(rest.strip(' ,:'))}; it has {tables}.")
    tables = dict.fromkeys(value.table for value in found)
    return f"{PAPERS[paper].name} {', '.join(tables)}" if label else PAPERS[paper].name, found


def paper_of(spelling: str) -> tuple[str, str]:
    """Return the key of the paper that a text begins with, and the text after it."""
    text = re.sub(r"^\s*arxiv:\s*", "", spelling, flags=re.IGNORECASE)
    names = [(name, key) for key, paper in PAPERS.items() for name in (key, paper.name, *paper.spellings)]
    for name, key in sorted(names, key=lambda pair: -len(fold(pair[0]))):
        loose = r"[\W_]*".join(re.escape(letter) for letter in fold(name))
        if match := re.match(rf"\W*{loose}(?![a-z@+])(\s+et\s+al\.?)?(\s*\(?\d{{4}}\)?(?=\W))?", text, re.IGNORECASE):
            return key, text[match.end() :]
    named = ", ".join(f"{paper.name} ({key})" for key, paper in PAPERS.items())
    raise ConfigError(f"no paper is called {quoted(spelling)}; there are {named}.")


def label_of(text: str) -> str:
    """Return a table's label in one spelling, so that labels can be compared.

    >>> [label_of(text) for text in ("Table V", "tab. 5", "Fig. 8", "Sec. D.1")]
    ['5', '5', 'figure8', 'sectiond1']
    """
    text = text.lower()
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text, count=1)
    match = _NUMBER.fullmatch(label := fold(text))
    return f"{_ROMAN.index(match[1]) + 1}{match[2]}" if match else label


# -- the table laid out -----------------------------------------------------------------------------------------------

_MOST_COLUMNS = 6  # maximum number of columns in a block, so that it fits into lines of 100 characters


@dataclass(frozen=True)
class OwnResults:
    """Results of a run, to print beside a paper's results.

    Attributes:
        name: name of the run, with its task if the run has several tasks.
        dataset: dataset of the evaluation, as its report states it.
        values: values of the report per metric, as shares, not per cent.
        reference: published values of the run's recipe, from which the differences are computed.
        levels: levels of the dataset, finest first.
        image_size: side of the images in evaluation, in pixels; 0 if unknown. Tables may have rows of one method at
            several sizes.
    """

    name: str
    dataset: str
    values: Mapping[str, float]
    reference: tuple[PublishedValue, ...] = ()
    levels: Sequence[str] = ()
    image_size: int = 0


@dataclass(frozen=True)
class PaperRow:
    """A row of a table: a published method, or a run.

    Attributes:
        label: name of the method or run.
        details: texts of the columns :attr:`PaperBlock.details`.
        cells: values of the metric columns; empty text for a missing value.
        own: whether the row is the user's own run.
        against: name of the published method with which the run is compared; empty if there is no such method.
        differences: signed differences to the values of that method, one per cell; empty for published rows.
    """

    label: str
    details: tuple[str, ...]
    cells: tuple[str, ...]
    own: bool = False
    against: str = ""
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperBlock:
    """A part of a table, whose columns are printed side by side.

    Attributes:
        title: facts that all its rows share.
        details: headings of the columns that distinguish rows of a method: backbone, dimensions, setting.
        columns: headings of the metric columns, each of one or several lines.
        rows: published rows, then the user's runs.
        notes: remarks about values.
    """

    title: str
    details: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperTable:
    """A paper's table in blocks.

    Attributes:
        title: paper and table.
        source: citation of the paper.
        blocks: one block per dataset; a single block if the table is narrow.
        notes: runs that are missing from the table, with the reason, and the source of inferred columns.
        own: number of rows of the user's own runs.
    """

    title: str
    source: str
    blocks: tuple[PaperBlock, ...]
    notes: tuple[str, ...]
    own: int


def lay_out(title: str, values: Sequence[PublishedValue], own: Iterable[OwnResults] = ()) -> PaperTable:
    """Lay out values of one paper as tables, with the user's results as additional rows.

    Args:
        title: title of the table.
        values: published values of one paper, in its order.
        own: results to add to tables with their dataset and metrics; the notes list all other results.
    """
    mine = list(own)
    groups: dict[tuple[str, str], list[PublishedValue]] = {}  # key: the table, and the dataset if the table is wide
    for table in dict.fromkeys(value.table for value in values):
        here = [value for value in values if value.table == table]
        is_wide = len({_column(value) for value in here}) > _MOST_COLUMNS
        for value in here:
            groups.setdefault((table, value.dataset if is_wide else ""), []).append(value)
    blocks = [_block(group, mine) for group in groups.values()]
    shown = {row.label for block in blocks for row in block.rows if row.own}
    notes = [_why_not(result, values) for result in mine if result.name not in shown]
    paper = PAPERS[values[0].paper]
    column, inferred = paper.inferred
    notes += [inferred] if column and any(getattr(value, column) for value in values) else []
    count = sum(row.own for block in blocks for row in block.rows)
    return PaperTable(title, paper.source, tuple(blocks), tuple(dict.fromkeys(notes)), count)


_SAME = (("AP", "mAP"), ("UKB score", "N-S"))
_Column = tuple[str, str, str, str, str]  # dataset, part, metric, level, unit


def _column(value: PublishedValue) -> _Column:
    return value.dataset, value.part, value.metric, value.level, value.unit


def _block(values: list[PublishedValue], own: list[OwnResults]) -> PaperBlock:
    by_column: dict[_Column, PublishedValue] = {}
    # keep the columns of one dataset next to each other
    for dataset in dict.fromkeys(value.dataset for value in values):
        by_column |= {_column(value): value for value in values if value.dataset == dataset}
    facts = {name: list(dict.fromkeys(getattr(v, name) for v in values)) for name in ("backbone", "dim", "setting")}
    told = [name for name, found in facts.items() if len(found) > 1]
    texts: dict[tuple[str, ...], dict[_Column, str]] = {}
    for value in values:
        texts.setdefault((value.method, *(getattr(value, name) for name in told)), {})[_column(value)] = value.text
    rows = [PaperRow(key[0], key[1:], tuple(row.get(c, "") for c in by_column)) for key, row in texts.items()]
    mine = (_own_row(result, by_column.values(), len(told)) for result in own)
    rows += [row for row in mine if any(row.cells)]
    return PaperBlock(_title(values, facts), tuple(told), _headings(list(by_column)), tuple(rows), _notes(values))


def _own_row(result: OwnResults, columns: Iterable[PublishedValue], details: int) -> PaperRow:
    """Return a run's values in the columns of a table, and their differences to the row of its recipe.

    Names may differ: mean AP is called AP or mAP, UKBench's score N-S, and a dataset directory may have
    another name for the finest level. If the recipe has several published values for a column, the run is compared with
    a value of this table, else with a value at the run's image size.
    """
    cells, differences, against = [], [], {}
    at_size = re.compile(rf".*s\*={result.image_size}\b")
    for column in columns:
        kinds = next((names for names in _SAME if column.metric in names), (column.metric,))
        where = [column.name.removeprefix(column.metric)]
        where += [f"/{level}" for level in result.levels[:1] if column.finest]
        found = [result.values.get(kind + place) for place in where for kind in kinds]
        value = next((v for v in found if v is not None), math.nan) if belongs(result.dataset, column) else math.nan
        digits = len(column.text.partition(".")[2])
        text = "" if math.isnan(value) else f"{column.in_unit(value):.{digits}f}"
        theirs = [other for other in result.reference if _column(other) == _column(column) and other.number is not None]
        difference = ""
        if text and theirs:
            nearest = min(
                theirs, key=lambda v: ((v.paper, v.table) != (column.paper, column.table), not at_size.match(v.setting))
            )
            against[nearest.method] = None
            difference = f"{float(text) - float(nearest.text):+.{digits}f}"
        cells.append(text)
        differences.append(difference)
    compared = tuple(differences) if against else ()
    return PaperRow(result.name, ("",) * details, tuple(cells), True, ", ".join(against), compared)


def _title(values: Sequence[PublishedValue], facts: Mapping[str, Sequence[str]]) -> str:
    alike = {name: found[0] for name, found in facts.items() if len(found) == 1 and found[0]}
    if "dim" in alike:
        alike["dim"] += " dimensions"
    datasets = list(dict.fromkeys(value.dataset for value in values))
    where = [values[0].table, *(datasets if len(datasets) == 1 else ())]
    unit = "; per cent" if {value.unit for value in values} == {"%"} else ""
    return ", ".join(where) + (f": {', '.join(alike.values())}" if alike else "") + unit


def _headings(columns: Sequence[_Column]) -> tuple[tuple[str, ...], ...]:
    """Return the lines of every column's heading: dataset, part and level if columns differ in them, then metric."""
    lines = list(zip(*columns, strict=True))
    datasets, parts, metrics, levels, _ = lines
    shown = [line for line, told in ((datasets, len({*datasets}) > 1), (parts, any(parts))) if told]
    several = any(len({c[3] for c in columns if c[0] == dataset and c[3]}) > 1 for dataset in datasets)
    shown += [levels] if several or "average" in levels else []
    return tuple(zip(*shown, metrics, strict=True))


def _notes(values: Sequence[PublishedValue]) -> tuple[str, ...]:
    methods: dict[str, dict[str, None]] = {}
    for value in values:
        if value.note and not re.fullmatch(r"of .* \d{4}", value.note):
            methods.setdefault(value.note, {})[value.method] = None
    every = {value.method for value in values}
    return tuple(
        f"{note[0].upper()}{note[1:]}." if set(named) == every else f"{', '.join(named)}: {note}."
        for note, named in methods.items()
    )


def _why_not(result: OwnResults, values: Sequence[PublishedValue]) -> str:
    datasets = list(dict.fromkeys(value.dataset for value in values))
    here = [value for value in values if belongs(result.dataset, value)]
    if not here:
        what = f"is of {result.dataset}" if result.dataset else "does not say its dataset"
        return f"{result.name} {what}; the table is of {', '.join(datasets)}."
    wanted = list(dict.fromkeys(value.name for value in here))
    return f"{result.name} has none of the table's metrics: {', '.join(wanted)}."
