"""A paper's table with one's own runs as rows: the best two of every column, and the difference to a recipe's row."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hgld.errors import ConfigError, quoted
from hgld.published.results import PAPERS, PublishedValue, belongs, fold, published_values

# -- which table ------------------------------------------------------------------------------------------------------

_KINDS = {"table": r"tab(le)?|tbl", "figure": r"fig(ure)?", "section": r"sec(tion)?"}
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")
_NUMBER = re.compile(rf"({'|'.join(sorted(_ROMAN, key=len, reverse=True))}|[0-9]+)(left|right|)")


def find_table(spelling: str) -> tuple[str, list[PublishedValue]]:
    """Find the rows of a table by the paper's name and the table's number in any usual spelling.

    Args:
        spelling: ``SupRank Table V``, ``suprank 5``, ``Brown et al. Tab. 3 (left)``, ``arXiv:1902.05509 D.1``; a
            paper's name alone means all its tables.

    Returns:
        title, and the values in the table's order.

    Raises:
        ConfigError: no such paper or table; it says what there is.
    """
    paper, rest = _paper_of(spelling)
    values = [value for value in published_values() if value.paper == paper]
    kind, label = _label(rest)
    found = [value for value in values if _is_called(value.table, kind, label)]
    if not found:
        tables = ", ".join(dict.fromkeys(value.table for value in values))
        raise ConfigError(f"{PAPERS[paper].name} has no rows of {quoted(rest.strip(' ,:'))}; it has {tables}.")
    tables = dict.fromkeys(value.table for value in found)
    return f"{PAPERS[paper].name} {', '.join(tables)}" if label else PAPERS[paper].name, found


def _paper_of(spelling: str) -> tuple[str, str]:
    """Return the key of the paper that a text begins with, and the rest of the text."""
    text = re.sub(r"^\s*arxiv:\s*", "", spelling, flags=re.IGNORECASE)
    names = [(name, key) for key, paper in PAPERS.items() for name in (key, paper.name, *paper.spellings)]
    for name, key in sorted(names, key=lambda pair: -len(fold(pair[0]))):
        loose = r"[\W_]*".join(re.escape(letter) for letter in fold(name))
        if match := re.match(rf"\W*{loose}(?![a-z@+])(\s+et\s+al\.?)?(\s*\(?\d{{4}}\)?(?=\W))?", text, re.IGNORECASE):
            return key, text[match.end() :]
    named = ", ".join(f"{paper.name} ({key})" for key, paper in PAPERS.items())
    raise ConfigError(f"no paper is called {quoted(spelling)}; there are {named}.")


def _label(text: str) -> tuple[str, str]:
    """Return table, figure, section or nothing, and the folded label behind it, numbers in Arabic."""
    for kind, word in _KINDS.items():
        shorter, count = re.subn(rf"\b({word})(?![a-z])", " ", text.lower(), count=1)
        if count:
            return kind, _arabic(fold(shorter))
    return "", _arabic(fold(text))


def _arabic(label: str) -> str:
    match = _NUMBER.fullmatch(label)
    return f"{_ROMAN.index(match[1]) + 1}{match[2]}" if match and match[1] in _ROMAN else label


def _is_called(table: str, kind: str, label: str) -> bool:
    """Tell whether a table has a label, with its part or without; a bare number means a table, not a figure."""
    own, number = _label(table)
    named = {number, _label(table.partition("(")[0])[1]}
    return not (kind or label) or (label in named and own in (kind or "table", ""))


# -- the table laid out -----------------------------------------------------------------------------------------------

_MOST_COLUMNS = 6  # of a block, so that it can be read at 100 letters a line
_HIGHER_IS_BETTER = re.compile(r"(R@\d+|m?AP(@(R|\d+))?|H-AP|wAP|ASI|NDCG|NMI|top-\d+|N-S)")


@dataclass(frozen=True)
class OwnResults:
    """Results of one's own beside a paper's.

    Attributes:
        name: of the run.
        dataset: of the evaluation, as its report states it.
        values: of the report, by metric: shares, not per cent.
        reference: values of the run's own recipe, to state the difference to.
        levels: of the dataset, finest first.
        image_size: side of the images in evaluation, by which rows of one method at several sizes are told apart; 0:
            not known.
        where: task of the evaluation, where the run has several.
    """

    name: str
    dataset: str
    values: Mapping[str, float]
    reference: tuple[PublishedValue, ...] = ()
    levels: Sequence[str] = ()
    image_size: int = 0
    where: str = ""

    @property
    def title(self) -> str:
        """The run, and its task where that is to be told."""
        return f"{self.name}, {self.where}" if self.where else self.name


@dataclass(frozen=True)
class PaperCell:
    """A value of a paper's table, or of one's own.

    Attributes:
        text: the value; empty where there is none.
        place: 1 for the best of its column, 2 for the second best, else 0.
        difference: to the row of the run's recipe, signed; empty for published values.
    """

    text: str = ""
    place: int = 0
    difference: str = ""


@dataclass(frozen=True)
class PaperRow:
    """A row: a method's, or a run's where ``own``.

    Attributes:
        label: the method, or the run.
        details: its cells of :attr:`PaperBlock.details`.
        cells: of the columns.
        own: whether it is one's own.
        against: method of the recipe's row to which the differences are; empty without any.
    """

    label: str
    details: tuple[str, ...]
    cells: tuple[PaperCell, ...]
    own: bool = False
    against: str = ""


@dataclass(frozen=True)
class PaperBlock:
    """Columns of a table that stand side by side.

    Attributes:
        title: what all its rows have in common.
        details: headings of what tells rows of a method apart: backbone, dimensions, setting.
        columns: headings, each of some lines.
        rows: published ones, then one's own.
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
        source: of the paper.
        blocks: one a dataset; one in all where the table is narrow.
        notes: runs that are not in it, with the reason, and what the rows' statements rest on.
        own: how many rows are one's own.
    """

    title: str
    source: str
    blocks: tuple[PaperBlock, ...]
    notes: tuple[str, ...]
    own: int


def lay_out(
    title: str, values: Sequence[PublishedValue], own: Iterable[OwnResults] = (), *, mark: bool = True
) -> PaperTable:
    """Lay out values of one paper as tables, with one's own results as rows.

    Args:
        title: of the table.
        values: of one paper, in its order.
        own: results to add where dataset and metrics meet; the others are named in the notes.
        mark: say which values are the best two of their columns; not of some rows of a table.
    """
    mine = list(own)
    blocks, shown = [], set()
    for group in _groups(values):
        block, used = _block(group, mine, mark=mark)
        blocks.append(block)
        shown |= used
    notes = [_why_not(result, values) for i, result in enumerate(mine) if i not in shown]
    paper = PAPERS[values[0].paper]
    column, inferred = paper.inferred
    notes += [inferred] if column and any(getattr(value, column) for value in values) else []
    count = sum(row.own for block in blocks for row in block.rows)
    return PaperTable(title, paper.source, tuple(blocks), tuple(dict.fromkeys(notes)), count)


_SAME = (("AP", "mAP"), ("UKB score", "N-S"))
_Column = tuple[str, str, str, str, str]  # dataset, part, metric, level, unit


def _column(value: PublishedValue) -> _Column:
    return value.dataset, value.part, value.metric, value.level, value.unit


def _groups(values: Sequence[PublishedValue]) -> list[list[PublishedValue]]:
    """Split values by table, and a wide table by dataset."""
    groups = []
    for table in dict.fromkeys(value.table for value in values):
        here = [value for value in values if value.table == table]
        if len({_column(value) for value in here}) <= _MOST_COLUMNS:
            groups.append(here)
        else:
            datasets = dict.fromkeys(value.dataset for value in here)
            groups += [[value for value in here if value.dataset == dataset] for dataset in datasets]
    return groups


def _block(values: list[PublishedValue], own: list[OwnResults], *, mark: bool) -> tuple[PaperBlock, set[int]]:
    by_column: dict[_Column, PublishedValue] = {}
    for dataset in dict.fromkeys(value.dataset for value in values):  # a dataset's columns stand together
        by_column |= {_column(value): value for value in values if value.dataset == dataset}
    columns = list(by_column)
    facts = {name: list(dict.fromkeys(getattr(v, name) for v in values)) for name in ("backbone", "dim", "setting")}
    told = [name for name, found in facts.items() if len(found) > 1]
    rows: dict[tuple[str, ...], dict[_Column, str]] = {}
    for value in values:
        rows.setdefault((value.method, *(getattr(value, name) for name in told)), {})[_column(value)] = value.text
    mine = {i: _own_row(result, by_column.values(), len(told)) for i, result in enumerate(own)}
    mine = {i: row for i, row in mine.items() if any(cell.text for cell in row.cells)}
    laid = [PaperRow(key[0], key[1:], tuple(PaperCell(row.get(c, "")) for c in columns)) for key, row in rows.items()]
    laid += mine.values()
    if mark:
        laid = _marked(laid, [bool(_HIGHER_IS_BETTER.fullmatch(column[2])) for column in columns])
    block = PaperBlock(_title(values, facts), tuple(told), _headings(columns), tuple(laid), _notes(values))
    return block, set(mine)


def _own_row(result: OwnResults, columns: Iterable[PublishedValue], details: int) -> PaperRow:
    """Return one's own values for the columns of published ones, and their differences to the recipe's row."""
    cells, against = [], {}
    for column in columns:
        value = _reported(result, column) if belongs(result.dataset, column) else None
        if value is None or math.isnan(value):
            cells.append(PaperCell())
            continue
        digits = len(column.text.partition(".")[2])
        text = f"{column.in_unit(value):.{digits}f}"
        theirs = [other for other in result.reference if _column(other) == _column(column) and other.number is not None]
        theirs.sort(key=partial(_distance, column, result.image_size))
        against |= dict.fromkeys(other.method for other in theirs[:1])
        cells.append(PaperCell(text, difference=f"{float(text) - float(theirs[0].text):+.{digits}f}" if theirs else ""))
    return PaperRow(result.title, ("",) * details, tuple(cells), own=True, against=", ".join(against))


def _distance(column: PublishedValue, size: int, other: PublishedValue) -> tuple[bool, bool]:
    """Order a recipe's values: those of the column's own table first, of them those at the run's size of images."""
    here = (other.paper, other.table) == (column.paper, column.table)
    return not here, re.match(rf".*s\*={size}\b", other.setting) is None


def _reported(result: OwnResults, column: PublishedValue) -> float | None:
    """Return a report's value by the name of a published one.

    Mean AP is called AP and mAP, UKBench's score N-S too; the finest level may have another name in a dataset
    directory.
    """
    kinds = next((names for names in _SAME if column.metric in names), (column.metric,))
    where = [column.name.removeprefix(column.metric)]
    where += [f"/{result.levels[0]}"] if column.finest and result.levels else []
    found = [result.values[kind + place] for place in where for kind in kinds if kind + place in result.values]
    return found[0] if found else None


def _marked(rows: list[PaperRow], higher: Sequence[bool]) -> list[PaperRow]:
    """Mark the best and the second best values of columns where higher is better; ties share a place."""
    places: list[dict[float, int]] = []
    for j, counts in enumerate(higher):
        numbers = {float(row.cells[j].text) for row in rows if counts and row.cells[j].text}
        places.append(dict(zip(sorted(numbers, reverse=True)[:2], (1, 2), strict=False)) if len(numbers) > 1 else {})
    return [
        replace(row, cells=tuple(replace(cell, place=_place(cell, places[j])) for j, cell in enumerate(row.cells)))
        for row in rows
    ]


def _place(cell: PaperCell, places: Mapping[float, int]) -> int:
    return places.get(float(cell.text), 0) if places and cell.text else 0


def _title(values: Sequence[PublishedValue], facts: Mapping[str, Sequence[str]]) -> str:
    alike = {name: found[0] for name, found in facts.items() if len(found) == 1 and found[0]}
    if "dim" in alike:
        alike["dim"] += " dimensions"
    datasets = list(dict.fromkeys(value.dataset for value in values))
    where = [values[0].table, *(datasets if len(datasets) == 1 else ())]
    unit = "; per cent" if {value.unit for value in values} == {"%"} else ""
    return ", ".join(where) + (f": {', '.join(alike.values())}" if alike else "") + unit


def _headings(columns: Sequence[_Column]) -> tuple[tuple[str, ...], ...]:
    """Return the lines of every column's heading: dataset and part where they tell columns apart, level, metric."""
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
        return f"{result.title} {what}; the table is of {', '.join(datasets)}."
    wanted = list(dict.fromkeys(value.name for value in here))
    return f"{result.title} has none of the table's metrics: {', '.join(wanted)}."
