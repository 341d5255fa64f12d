"""Two label files side by side: how one judges a regenerated hierarchy against another.

Landmarks that both files label are compared as two partitions. All measures that have a direction take B for the
reference: A's homogeneity is how far each group of A holds landmarks of one group of B.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from sklearn.metrics import adjusted_rand_score, homogeneity_completeness_v_measure, normalized_mutual_info_score

from hgld.errors import TableError
from pipelines.agreement import cohens_kappa
from pipelines.compare_text import markdown
from pipelines.label_files import LabelFile


@dataclass(frozen=True)
class Coverage:
    """What one file has, and how much of it the other file has too.

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
    """How alike two partitions of the same items are.

    Attributes:
        items: how many landmarks or names.
        groups_a, groups_b: how many groups they are in.
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
    """A group and the other file's group most like it (by Jaccard, then by label), over shared landmarks.

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
    """What :func:`compare` found.

    Attributes:
        joined_on: the columns that make a landmark the same.
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
        """All of it, ready for JSON."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Tables for people; long lists are cut short and say so."""
        return markdown(self)


def compare(a: Path, b: Path) -> Comparison:
    """Compare two label files, joined on the landmark id.

    Where both files have a column ``split``, a landmark is (split, landmark_id). Where one or none has it, it is the
    landmark_id alone, which then must not occur in two splits of a file.

    Args:
        a: the file to judge: CSV or parquet as :meth:`pipelines.label_files.LabelFile.read` takes it.
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
    """The partitions of the distinct names, and how many names each file puts into several groups."""
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


def _matches(confusion: pl.DataFrame, own: str, other: str) -> tuple[GroupMatch, ...]:
    sizes = confusion.with_columns(
        size=pl.col("landmarks").sum().over(own), match_size=pl.col("landmarks").sum().over(other)
    )
    union = pl.col("size") + pl.col("match_size") - pl.col("landmarks")
    best = (
        sizes.with_columns(
            precision=pl.col("landmarks") / pl.col("size"),
            recall=pl.col("landmarks") / pl.col("match_size"),
            f1=2 * pl.col("landmarks") / (pl.col("size") + pl.col("match_size")),
            jaccard=pl.col("landmarks") / union,
        )
        .sort(own, "jaccard", other, descending=[False, True, False])
        .unique(own, keep="first", maintain_order=True)
        .sort("size", own, descending=[True, False])
        .select(own, other, "size", "match_size", "landmarks", "precision", "recall", "f1", "jaccard")
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
