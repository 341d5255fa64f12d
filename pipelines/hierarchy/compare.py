"""Comparison of two label files, such as a regenerated hierarchy and a reference.

A label file states the group of each landmark: one of GLDv2's hierarchical CSVs, or a table like them. Landmarks that
both files label are compared as two partitions. All measures that have a direction take B for the reference: A's
homogeneity is how far each group of A holds landmarks of one group of B.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from sklearn.metrics import adjusted_rand_score, homogeneity_completeness_v_measure, normalized_mutual_info_score

from hgld.errors import TableError
from hgld.pipelines.csv_rows import CsvText
from hgld.pipelines.hierarchy.review.agreement import cohens_kappa

ID, SPLIT, NAME, TOP = "landmark_id", "split", "supercategory", "natural_or_human_made"
LABELS = ("hierarchical_label", "label")  # the first of them that a file has
UNLABELLED = "unclassified"
_VALUES = ["split", "landmark_id", "name", "label", "top"]


@dataclass(frozen=True)
class LabelFile:
    """Landmarks with their groups.

    Attributes:
        path: the file.
        landmarks: one row a landmark: row (line in a CSV, row in a parquet file, from 1), split, landmark_id, name,
            label, top. ``name`` is folded for comparison (composed, single spaces, no case). Null: the file has no such
            column, or an empty cell, or for label and top ``unclassified``.
        repeats: rows that repeat an earlier one exactly and were left out.
        columns: which of split, name and top the file has.
    """

    path: Path
    landmarks: pl.DataFrame
    repeats: int
    columns: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> "LabelFile":
        """Read a CSV, or a parquet file by its suffix ``.parquet``.

        Columns: landmark_id, and hierarchical_label or label; where there are any, also split, supercategory and
        natural_or_human_made. Others are ignored.

        Raises:
            TableError: the file cannot be read, lacks a column, has no rows or an id that is not a whole number, or
                says two different things of one landmark.
        """
        raw, columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
        if raw.is_empty():
            raise TableError(f"{path}: no rows below the header; expected one landmark a row.")
        table = _typed(path, raw)
        landmarks = table.unique(_VALUES, keep="first", maintain_order=True)
        _refuse_contradictions(path, landmarks)
        present = frozenset(value for value in ("split", "name", "top") if columns[value] is not None)
        return cls(path, landmarks, len(table) - len(landmarks), present)


Columns = dict[str, str | None]


def _columns(path: Path, found: Sequence[str]) -> Columns:
    """Return the file's column for each value, None where it has none."""
    label = next((name for name in LABELS if name in found), None)
    if ID not in found or label is None:
        shown = ", ".join(repr(name[:60]) for name in found[:20])
        raise TableError(
            f"{path} lacks the column {ID if ID not in found else ' or '.join(LABELS)}; found {shown}. "
            f"Rename the columns: {ID} and {LABELS[0]}, optionally {SPLIT}, {NAME}, {TOP}."
        )
    optional = {"split": SPLIT, "name": NAME, "top": TOP}
    chosen = {value: column if column in found else None for value, column in optional.items()}
    return {"landmark_id": ID, "label": label} | chosen


def _csv(path: Path) -> tuple[pl.DataFrame, Columns]:
    file = CsvText.read(path)
    columns = _columns(path, file.columns)
    there = {value: column for value, column in columns.items() if column is not None}
    rows = [(line, *cells) for line, cells in file.select(list(there.values()))]
    return pl.DataFrame(
        rows, schema=["row", *there], schema_overrides=dict.fromkeys(there, pl.String), orient="row"
    ), columns


def _parquet(path: Path) -> tuple[pl.DataFrame, Columns]:
    try:
        table = pl.read_parquet(path)
        columns = _columns(path, table.columns)
        texts = [pl.col(column).cast(pl.String).alias(value) for value, column in columns.items() if column is not None]
        return table.select(texts).with_row_index("row", offset=1), columns
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TableError(f"{path} cannot be read as a parquet table of numbers and text ({error}).") from error


def _typed(path: Path, raw: pl.DataFrame) -> pl.DataFrame:
    """Return the values of each landmark, null where there is none."""
    cells = raw.with_columns(
        pl.lit(None, dtype=pl.String).alias(value) for value in _VALUES if value not in raw.columns
    )
    cells = cells.with_columns(pl.col(value).str.strip_chars().replace("", None) for value in _VALUES)
    whole = pl.col("landmark_id").str.contains(r"^[0-9]{1,18}$").fill_null(value=False)
    if not (odd := cells.filter(~whole)).is_empty():
        row, found = odd["row"][0], odd["landmark_id"][0] or ""
        raise TableError(f"{path}, line {row}: {ID} is {found[:80]!r}; expected a whole number. Correct the row.")
    unlabelled = pl.col("label", "top").str.to_lowercase().is_in([UNLABELLED])
    return cells.with_columns(
        pl.when(~unlabelled).then(pl.col("label", "top")),
        name=pl.col("name").str.normalize("NFC").str.replace_all(r"\s+", " ").str.to_lowercase(),
    ).select(
        pl.col("row").cast(pl.Int64),
        "split",
        pl.col("landmark_id").cast(pl.Int64),
        "name",
        "label",
        pl.col("top").str.to_lowercase(),
    )


def _refuse_contradictions(path: Path, landmarks: pl.DataFrame) -> None:
    twice = landmarks.filter(pl.struct("split", "landmark_id").is_duplicated()).sort("split", "landmark_id", "row")
    if twice.is_empty():
        return
    first, second = twice.head(2).rows(named=True)
    differs = next(value for value in ("label", "top", "name") if first[value] != second[value])
    raise TableError(
        f"{path}: landmark {first['landmark_id']} has the {differs} {first[differs]!r} in line {first['row']} and "
        f"{second[differs]!r} in line {second['row']}; expected one row a landmark. Delete the wrong row, or tell the "
        f"lists of different splits apart by a column {SPLIT!r}."
    )


# -- the comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """The landmarks of one file, and how many of them the other file has too.

    Attributes:
        file: its name.
        landmarks: its landmarks; ``repeats`` rows that repeat an earlier one exactly are not among them.
        labelled: those with a label; the others are empty or ``unclassified`` and take no part in any measure.
        in_other: labelled landmarks that the other file has, labelled or not.
        shared: labelled landmarks that the other file labels too.
        share: shared / labelled; 0 if none is labelled.
        groups: its distinct labels.
        names: its distinct names; None where it has no column for them.
    """

    file: str
    landmarks: int
    repeats: int
    labelled: int
    in_other: int
    shared: int
    share: float
    groups: int
    names: int | None


@dataclass(frozen=True)
class Partitions:
    """The agreement of two partitions of the same items.

    Attributes:
        items: number of landmarks or names.
        groups_a, groups_b: number of groups that they are in.
        ari: adjusted Rand index (Hubert and Arabie 1985); 1 equal, 0 as by chance.
        nmi: mutual information over the arithmetic mean of the entropies; equals ``v_measure`` by definition.
        homogeneity, completeness, v_measure: Rosenberg and Hirschberg 2007, with B as the reference.
    """

    items: int
    groups_a: int
    groups_b: int
    ari: float
    nmi: float
    homogeneity: float
    completeness: float
    v_measure: float


@dataclass(frozen=True)
class GroupMatch:
    """A group and the most similar group of the other file (by Jaccard, then by label), over shared landmarks.

    ``precision`` = shared / landmarks, ``recall`` = shared / match_landmarks, ``f1`` their harmonic mean, ``jaccard`` =
    shared / (landmarks + match_landmarks - shared).
    """

    group: str
    match: str
    landmarks: int
    match_landmarks: int
    shared: int
    precision: float
    recall: float
    f1: float
    jaccard: float


@dataclass(frozen=True)
class Cell:
    """A cell of the confusion: the landmarks, and distinct names, that A puts into ``a`` and B into ``b``."""

    a: str
    b: str
    landmarks: int
    names: int | None


@dataclass(frozen=True)
class Tops:
    """Agreement on natural / human-made over the landmarks of both files for which both say it.

    ``undecided`` are landmarks of both files of which one or both say nothing. ``cells`` count landmarks by A's and B's
    value. ``accuracy`` and ``kappa`` (Cohen's) are None if nothing is decided by both.
    """

    landmarks: int
    undecided: int
    accuracy: float | None
    kappa: float | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`.

    Attributes:
        joined_on: the columns that identify a landmark.
        a, b: coverage of the two files.
        landmarks: the partitions of the landmarks that both label.
        names: the partitions of their distinct names, each in the group of most of its landmarks (then the first by
            label); None where neither file has names.
        names_from: ``A`` or ``B``, whose names these are; A's where it has some.
        mixed_a, mixed_b: names whose landmarks one file puts into several groups.
        matches_a, matches_b: best match of each group of A, and of B, the largest first.
        confusion: all cells that are not empty, the largest first.
        tops: agreement on natural / human-made; None where a file has no such column.
    """

    joined_on: tuple[str, ...]
    a: Coverage
    b: Coverage
    landmarks: Partitions
    names: Partitions | None
    names_from: str | None
    mixed_a: int
    mixed_b: int
    matches_a: tuple[GroupMatch, ...]
    matches_b: tuple[GroupMatch, ...]
    confusion: tuple[Cell, ...]
    tops: Tops | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Return Markdown tables for people; lists that are cut short say so."""
        return markdown(self)


def compare(a: Path, b: Path) -> Comparison:
    """Compare two label files, joined on the landmark id.

    Where both files have a column ``split``, a landmark is (split, landmark_id). Where one or none has it, it is the
    landmark_id alone, which then must not occur in two splits of a file.

    Args:
        a: the file to judge: CSV or parquet as :meth:`hgld.pipelines.hierarchy.compare.LabelFile.read` takes it.
        b: the reference.

    Raises:
        TableError: a file cannot be read or contradicts itself, or the two have no labelled landmark in common.
    """
    file_a, file_b = LabelFile.read(a), LabelFile.read(b)
    keys = _keys(file_a, file_b)
    both = file_a.landmarks.join(file_b.landmarks, on=keys, suffix="_b").sort(keys)
    labelled = both.filter(pl.col("label").is_not_null() & pl.col("label_b").is_not_null())
    if labelled.is_empty():
        raise TableError(
            f"{a} and {b} have {len(both)} landmarks in common, none of which both label; nothing can be compared. "
            f"Ids begin with {_first_ids(file_a)} in the one and {_first_ids(file_b)} in the other: are they lists of "
            "the same split?"
        )
    source = next((side for side, file in (("A", file_a), ("B", file_b)) if _named(file)), None)
    labelled = labelled.with_columns(shown=pl.col("name_b" if source == "B" else "name"))
    names, mixed_a, mixed_b = _names(labelled) if source else (None, 0, 0)
    confusion = labelled.group_by("label", "label_b").agg(
        landmarks=pl.len().cast(pl.Int64), names=pl.col("shown").drop_nulls().n_unique()
    )
    return Comparison(
        joined_on=tuple(keys),
        a=_coverage(file_a, both["label"], labelled),
        b=_coverage(file_b, both["label_b"], labelled),
        landmarks=_partitions(labelled["label"], labelled["label_b"]),
        names=names,
        names_from=source,
        mixed_a=mixed_a,
        mixed_b=mixed_b,
        matches_a=_matches(confusion, "label", "label_b"),
        matches_b=_matches(confusion, "label_b", "label"),
        confusion=_cells(confusion, named=source is not None),
        tops=_tops(both) if "top" in file_a.columns & file_b.columns else None,
    )


def _keys(a: LabelFile, b: LabelFile) -> list[str]:
    if "split" in a.columns and "split" in b.columns:
        return ["split", "landmark_id"]
    for file, other in ((a, b), (b, a)):
        twice = file.landmarks.filter(pl.col("landmark_id").is_duplicated()).sort("landmark_id", "split")
        if not twice.is_empty():
            number, splits = twice["landmark_id"][0], twice["split"].head(2).to_list()
            raise TableError(
                f"{file.path}: landmark {number} occurs in the splits {splits[0]} and {splits[1]}, and {other.path} "
                "has no column 'split' to tell them apart. Add the column there, or compare one split's file at a time."
            )
    return ["landmark_id"]


def _named(file: LabelFile) -> bool:
    return file.landmarks["name"].null_count() < len(file.landmarks)


def _first_ids(file: LabelFile) -> str:
    return ", ".join(map(str, file.landmarks["landmark_id"].sort().head(3)))


def _coverage(file: LabelFile, in_both: pl.Series, labelled: pl.DataFrame) -> Coverage:
    own = file.landmarks.filter(pl.col("label").is_not_null())
    return Coverage(
        file=file.path.name,
        landmarks=len(file.landmarks),
        repeats=file.repeats,
        labelled=len(own),
        in_other=in_both.len() - in_both.null_count(),
        shared=len(labelled),
        share=len(labelled) / len(own) if len(own) else 0.0,
        groups=own["label"].n_unique(),
        names=file.landmarks["name"].drop_nulls().n_unique() if "name" in file.columns else None,
    )


def _partitions(a: pl.Series, b: pl.Series) -> Partitions:
    codes_a, codes_b = a.rank("dense").to_numpy(), b.rank("dense").to_numpy()
    homogeneity, completeness, v_measure = homogeneity_completeness_v_measure(codes_b, codes_a)
    ari, nmi = adjusted_rand_score(codes_b, codes_a), normalized_mutual_info_score(codes_b, codes_a)
    figures = map(float, (ari, nmi, homogeneity, completeness, v_measure))
    return Partitions(len(a), a.n_unique(), b.n_unique(), *figures)


def _names(labelled: pl.DataFrame) -> tuple[Partitions | None, int, int]:
    """Return the partitions of the distinct names, and how many names each file puts into several groups."""
    named = labelled.filter(pl.col("shown").is_not_null())
    if named.is_empty():
        return None, 0, 0
    sides, mixed = [], []
    for column in ("label", "label_b"):
        counts = named.group_by("shown", column).len().sort("shown", "len", column, descending=[False, True, False])
        majority = counts.unique("shown", keep="first", maintain_order=True)
        sides.append(majority[column])
        mixed.append(counts["shown"].filter(counts["shown"].is_duplicated()).n_unique())
    return _partitions(*sides), mixed[0], mixed[1]


def _matches(confusion: pl.DataFrame, side: str, other: str) -> tuple[GroupMatch, ...]:
    sizes = confusion.with_columns(
        size=pl.col("landmarks").sum().over(side), match_size=pl.col("landmarks").sum().over(other)
    )
    union = pl.col("size") + pl.col("match_size") - pl.col("landmarks")
    best = (
        sizes.with_columns(
            precision=pl.col("landmarks") / pl.col("size"),
            recall=pl.col("landmarks") / pl.col("match_size"),
            f1=2 * pl.col("landmarks") / (pl.col("size") + pl.col("match_size")),
            jaccard=pl.col("landmarks") / union,
        )
        .sort(side, "jaccard", other, descending=[False, True, False])
        .unique(side, keep="first", maintain_order=True)
        .sort("size", side, descending=[True, False])
        .select(side, other, "size", "match_size", "landmarks", "precision", "recall", "f1", "jaccard")
    )
    return tuple(GroupMatch(*row) for row in best.iter_rows())


def _cells(confusion: pl.DataFrame, *, named: bool) -> tuple[Cell, ...]:
    ordered = confusion.sort("landmarks", "label", "label_b", descending=[True, False, False])
    return tuple(Cell(a, b, count, names if named else None) for a, b, count, names in ordered.iter_rows())


def _tops(both: pl.DataFrame) -> Tops:
    decided = both.filter(pl.col("top").is_not_null() & pl.col("top_b").is_not_null())
    counts = decided.group_by("top", "top_b").len().sort("top", "top_b")
    cells = tuple(Cell(a, b, count, None) for a, b, count in counts.iter_rows())
    if decided.is_empty():
        return Tops(0, len(both), None, None, cells)
    one, other = decided["top"].to_list(), decided["top_b"].to_list()
    return Tops(
        landmarks=len(decided),
        undecided=len(both) - len(decided),
        accuracy=sum(x == y for x, y in zip(one, other, strict=True)) / len(decided),
        kappa=cohens_kappa(one, other),
        cells=cells,
    )


# -- the comparison as Markdown ------------------------------------------------------------------------------------

_MOST_GROUPS = 100
_MOST_CELLS = 30
_MARKUP = re.compile(r"([\\`*_\[\]<>|&#~])")


def markdown(comparison: "Comparison") -> str:
    """Return coverage, measures, tops, best matches and the largest confusions as tables; labels are escaped."""
    a, b = comparison.a, comparison.b
    parts = [
        f"# {_text(a.file)} (A) against {_text(b.file)} (B)",
        f"Joined on {', '.join(comparison.joined_on)}. Landmarks without a label, or `unclassified`, are not measured.",
        "## Coverage",
        _table(
            ["", "A", "B"],
            [
                ["landmarks", a.landmarks, b.landmarks],
                ["rows that repeat another", a.repeats, b.repeats],
                ["labelled", a.labelled, b.labelled],
                ["labelled, and in the other file", a.in_other, b.in_other],
                ["labelled in both", a.shared, b.shared],
                ["share of the labelled", _share(a.share), _share(b.share)],
                ["groups", a.groups, b.groups],
                ["distinct names", _number(a.names), _number(b.names)],
            ],
        ),
        "## Agreement of the groups",
        _partitions_text(comparison),
        *_tops_text(comparison.tops),
        *_matches_text("A", "B", comparison.matches_a),
        *_matches_text("B", "A", comparison.matches_b),
        *_confusion(comparison),
    ]
    return "\n\n".join(parts) + "\n"


def _partitions_text(comparison: "Comparison") -> str:
    def row(what: str, found: "Partitions") -> list[object]:
        figures = (found.ari, found.nmi, found.homogeneity, found.completeness, found.v_measure)
        return [what, found.items, found.groups_a, found.groups_b, *map(_figure, figures)]

    rows = [row("landmarks", comparison.landmarks)]
    note = "Neither file has names."
    if comparison.names is not None:
        rows.append(row("distinct names", comparison.names))
        note = (
            f"The names are {comparison.names_from}'s, each in the group of most of its landmarks; A puts the "
            f"landmarks of {comparison.mixed_a} names into several groups, B of {comparison.mixed_b}."
        )
    head = ["over", "items", "groups of A", "groups of B", "ARI", "NMI", "homogeneity", "completeness", "V-measure"]
    return f"{_table(head, rows)}\n\nHomogeneity and completeness take B for the reference. {note}"


def _tops_text(tops: "Tops | None") -> Iterable[str]:
    yield "## Natural or human-made"
    if tops is None:
        yield "One of the files does not say."
        return
    if tops.accuracy is None or tops.kappa is None:
        yield f"Undecided in one file or both for all {tops.undecided} landmarks in common."
        return
    yield (
        f"Accuracy {_share(tops.accuracy)}, Cohen's kappa {_figure(tops.kappa)} over {tops.landmarks} landmarks; "
        f"{tops.undecided} more are undecided in one file or both."
    )
    yield _table(["A", "B", "landmarks"], [[_text(c.a), _text(c.b), c.landmarks] for c in tops.cells])


def _matches_text(file: str, other: str, matches: Sequence["GroupMatch"]) -> Iterable[str]:
    yield f"## Best match in {other} of each group of {file}"
    head = [file, other, f"in {file}", f"in {other}", "shared", "precision", "recall", "F1", "Jaccard"]
    rows = [
        [
            _text(m.group),
            _text(m.match),
            m.landmarks,
            m.match_landmarks,
            m.shared,
            *map(_figure, (m.precision, m.recall, m.f1, m.jaccard)),
        ]
        for m in matches
    ]
    yield _table(head, rows, most=_MOST_GROUPS)


def _confusion(comparison: "Comparison") -> Iterable[str]:
    yield "## Largest confusions"
    matched = {(m.group, m.match) for m in comparison.matches_a} | {(m.match, m.group) for m in comparison.matches_b}
    others: list[Cell] = [cell for cell in comparison.confusion if (cell.a, cell.b) not in matched]
    if not others:
        yield "None beside the best matches."
        return
    yield "Landmarks that share a group of A and a group of B which are not each other's best match, either way."
    rows = [[_text(c.a), _text(c.b), c.landmarks, _number(c.names)] for c in others]
    yield _table(["A", "B", "landmarks", "names"], rows, most=_MOST_CELLS)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], most: int | None = None) -> str:
    kinds = ["--:" if str(cell)[:1].isdigit() else ":--" for cell in rows[0]]
    shown = [" | ".join(map(str, row)) for row in ([*head], kinds, *rows[:most])]
    more = f"\n\n{len(rows) - most} more rows are left out here." if most is not None and len(rows) > most else ""
    return "\n".join(f"| {line} |" for line in shown) + more


def _text(text: str) -> str:
    """Return the text on one line, with the markup of Markdown and HTML escaped."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\>", "&gt;")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _figure(value: float) -> str:
    return f"{value:.3f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
