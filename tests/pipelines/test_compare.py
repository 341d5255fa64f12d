"""Comparing two label files: measures against slow twins, joins, exclusions, and what cannot be compared."""

import csv
import json
import math
import os
from collections import Counter
from itertools import combinations
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import TableError
from hgld.pipelines import csv_rows
from hgld.pipelines.hierarchy.compare import Comparison, compare

GLDV2 = ("landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made")
ROWS_A = [
    (1, "c", "church building", "religious building", "human-made"),
    (2, "c", "cathedral", "religious building", "human-made"),
    (3, "c", "lake", "lake", "natural"),
    (4, "c", "reservoir", "lake", "human-made"),
    (5, "c", "list", "unclassified", "unclassified"),
    (6, "c", "hill", "mountain", "natural"),
    (9, "c", "dam", "dam", "human-made"),
]
ROWS_B = [
    (1, "d", "church building", "church", "human-made"),
    (2, "d", "cathedral", "church", "human-made"),
    (3, "d", "lake", "water", "natural"),
    (4, "d", "reservoir", "water", "natural"),
    (5, "d", "list", "list", ""),
    (6, "d", "hill", "", "natural"),
    (7, "d", "bay", "water", "natural"),
]


def write(path: Path, rows, header=GLDV2) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return path


def compared(folder: Path, a, b, header_a=GLDV2, header_b=GLDV2) -> Comparison:
    return compare(write(folder / "a.csv", a, header_a), write(folder / "b.csv", b, header_b))


# -- slow twins: from the definitions, over all pairs and all cells -----------------------------------------------


def slow_ari(a: list[str], b: list[str]) -> float:
    pairs = list(combinations(range(len(a)), 2))
    together_a = sum(a[i] == a[j] for i, j in pairs)
    together_b = sum(b[i] == b[j] for i, j in pairs)
    both = sum(a[i] == a[j] and b[i] == b[j] for i, j in pairs)
    expected = together_a * together_b / len(pairs) if pairs else 0.0
    largest = (together_a + together_b) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def entropy(values: list) -> float:
    return -sum(n / len(values) * math.log(n / len(values)) for n in Counter(values).values())


def slow_v(a: list[str], b: list[str]) -> tuple[float, float, float, float]:
    """NMI, homogeneity, completeness, V-measure with b as the reference."""
    joint = entropy(list(zip(a, b, strict=True)))
    homogeneity = 1.0 if entropy(b) == 0 else 1 - (joint - entropy(a)) / entropy(b)
    completeness = 1.0 if entropy(a) == 0 else 1 - (joint - entropy(b)) / entropy(a)
    total = homogeneity + completeness
    v = 2 * homogeneity * completeness / total if total > 1e-12 else 0.0
    mutual, mean = entropy(a) + entropy(b) - joint, (entropy(a) + entropy(b)) / 2
    return (1.0 if mean == 0 else mutual / mean), homogeneity, completeness, v


labels = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz")), min_size=1, max_size=12)


@given(labels)
def test_measures_equal_their_slow_twins(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    header = ("landmark_id", "label")
    found = compared(tmp_path_factory.mktemp("c"), enumerate(a), enumerate(b), header, header).landmarks
    assert (found.items, found.groups_a, found.groups_b) == (len(a), len(set(a)), len(set(b)))
    assert found.ari == pytest.approx(slow_ari(a, b), abs=1e-9)
    figures = (found.nmi, found.homogeneity, found.completeness, found.v_measure)
    assert figures == pytest.approx(slow_v(a, b), abs=1e-9)
    assert found.nmi == pytest.approx(found.v_measure, abs=1e-9)


@given(labels)
def test_swapping_the_files_swaps_the_sides(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]):
    folder, header = tmp_path_factory.mktemp("c"), ("landmark_id", "label")
    a = write(folder / "a.csv", [(i, x) for i, (x, _) in enumerate(pairs)], header)
    b = write(folder / "b.csv", [(i, y) for i, (_, y) in enumerate(pairs)], header)
    one, other = compare(a, b), compare(b, a)
    assert (one.a, one.b, one.matches_a, one.matches_b) == (other.b, other.a, other.matches_b, other.matches_a)
    assert one.landmarks.ari == pytest.approx(other.landmarks.ari, abs=1e-9)
    assert one.landmarks.homogeneity == pytest.approx(other.landmarks.completeness, abs=1e-9)
    assert sum(cell.landmarks for cell in one.confusion) == len(pairs)


# -- what it reports ----------------------------------------------------------------------------------------------


def test_coverage_both_ways_and_what_is_left_out(tmp_path: Path):
    found = compared(tmp_path, [*ROWS_A, ROWS_A[0]], ROWS_B)
    assert found.joined_on == ("landmark_id",)
    a, b = found.a, found.b
    assert (a.landmarks, a.repeats, a.labelled, a.in_other, a.shared, a.groups, a.names) == (7, 1, 6, 5, 4, 4, 7)
    assert (b.landmarks, b.repeats, b.labelled, b.in_other, b.shared, b.groups, b.names) == (7, 0, 6, 5, 4, 3, 7)
    assert (a.share, b.share) == (pytest.approx(4 / 6), pytest.approx(4 / 6))
    assert found.landmarks.items == 4


def test_best_matches_and_confusion(tmp_path: Path):
    a = [(i, "x" if i < 6 else "y") for i in range(10)]
    b = [(i, "p" if i < 4 else "q") for i in range(10)]
    header = ("landmark_id", "label")
    found = compared(tmp_path, a, b, header, header)
    x, y = found.matches_a
    assert (x.group, x.match, x.landmarks, x.match_landmarks, x.shared) == ("x", "p", 6, 4, 4)
    assert (x.precision, x.recall, x.f1, x.jaccard) == pytest.approx((4 / 6, 1.0, 0.8, 4 / 6))
    assert (y.group, y.match, y.shared, y.precision, y.recall) == ("y", "q", 4, 1.0, pytest.approx(4 / 6))
    assert [m.group for m in found.matches_b] == ["q", "p"]
    assert [(c.a, c.b, c.landmarks, c.names) for c in found.confusion] == [
        ("x", "p", 4, None),
        ("y", "q", 4, None),
        ("x", "q", 2, None),
    ]


def test_ties_of_best_matches_go_by_label(tmp_path: Path):
    header = ("landmark_id", "label")
    found = compared(tmp_path, [(1, "x"), (2, "x")], [(1, "q"), (2, "p")], header, header)
    assert [(m.group, m.match) for m in found.matches_a] == [("x", "p")]


def test_natural_and_human_made(tmp_path: Path):
    tops = compared(tmp_path, ROWS_A, ROWS_B).tops
    assert tops is not None
    assert (tops.landmarks, tops.undecided, tops.accuracy) == (5, 1, 0.8)
    assert tops.kappa == pytest.approx((0.8 - (3 * 2 + 2 * 3) / 25) / (1 - (3 * 2 + 2 * 3) / 25))
    assert [(c.a, c.b, c.landmarks) for c in tops.cells] == [
        ("human-made", "human-made", 2),
        ("human-made", "natural", 1),
        ("natural", "natural", 2),
    ]


def test_tops_where_a_file_has_none_or_decides_nothing(tmp_path: Path):
    assert compared(tmp_path, ROWS_A, [row[:4] for row in ROWS_B], GLDV2, GLDV2[:4]).tops is None
    tops = compared(tmp_path, ROWS_A, [(*row[:4], "") for row in ROWS_B]).tops
    assert tops is not None
    assert (tops.landmarks, tops.undecided, tops.accuracy, tops.kappa) == (0, 6, None, None)


def test_distinct_names_go_with_most_of_their_landmarks(tmp_path: Path):
    a = [
        (1, "c", "Lake ", "water", ""),
        (2, "c", "lake", "water", ""),
        (3, "c", "LAKE", "dam", ""),
        (4, "c", "dam", "dam", ""),
        (5, "c", "", "dam", ""),
    ]
    b = [(i, "c", "other", "one" if i < 4 else "two", "") for i in range(1, 6)]
    found = compared(tmp_path, a, b)
    assert found.names is not None
    assert (found.names.items, found.names.ari, found.names_from) == (2, 1.0, "A")
    assert (found.mixed_a, found.mixed_b) == (1, 0)
    assert found.landmarks.items == 5
    assert found.confusion[0].names == 1


def test_names_come_from_the_file_that_has_them(tmp_path: Path):
    header = ("landmark_id", "hierarchical_label")
    a = [(row[0], row[3]) for row in ROWS_A]
    found = compared(tmp_path, a, ROWS_B, header, GLDV2)
    assert found.names_from == "B"
    assert found.names is not None
    assert found.names.items == 4
    b = [(row[0], row[3]) for row in ROWS_B]
    found = compared(tmp_path, a, b, header, header)
    assert (found.names, found.names_from, found.a.names) == (None, None, None)


def test_split_and_id_make_a_landmark_where_both_files_have_splits(tmp_path: Path):
    header = ("split", "landmark_id", "label")
    a = [("train", 1, "x"), ("index", 1, "y"), ("train", 2, "x")]
    b = [("train", 1, "p"), ("index", 1, "q"), ("index", 2, "q")]
    found = compared(tmp_path, a, b, header, header)
    assert (found.joined_on, found.landmarks.items) == (("split", "landmark_id"), 2)
    one = compared(tmp_path, a[::2], [(1, "p"), (2, "q")], header, header[1:])
    assert (one.joined_on, one.landmarks.items) == (("landmark_id",), 2)
    with pytest.raises(TableError, match=r"a.csv: landmark 1 occurs in the splits index and train, and .*b.csv has no"):
        compared(tmp_path, a, [(1, "p")], header, header[1:])


def test_parquet_and_csv_say_the_same(tmp_path: Path):
    table = pl.DataFrame(ROWS_A, schema=list(GLDV2), orient="row")
    table.write_parquet(tmp_path / "a.parquet")
    b = write(tmp_path / "b.csv", ROWS_B)
    from_csv = compare(write(tmp_path / "a.csv", ROWS_A), b).to_dict()
    from_parquet = compare(tmp_path / "a.parquet", b).to_dict()
    assert from_parquet.pop("a") | {"file": "a.csv"} == from_csv.pop("a")
    assert from_parquet == from_csv


def test_every_landmark_a_group_of_its_own(tmp_path: Path):
    header = ("landmark_id", "label")
    rows = [(i, f"g{i}") for i in range(30)]
    assert compared(tmp_path, rows, rows, header, header).landmarks.ari == 1.0


def test_the_dictionary_is_json_and_the_text_is_markdown(tmp_path: Path):
    found = compared(tmp_path, ROWS_A, ROWS_B)
    assert json.loads(json.dumps(found.to_dict()))["landmarks"]["items"] == 4
    text = found.to_markdown()
    assert "| landmarks | 4 | 2 | 2 | 1.000 |" in text
    assert "Accuracy 80.0 %, Cohen's kappa 0.615 over 5 landmarks; 1 more" in text
    assert "| religious building | church | 2 | 2 | 2 | 1.000 |" in text
    assert "None beside the best matches." in text


def test_markdown_disarms_labels_and_says_what_it_leaves_out(tmp_path: Path):
    header = ("landmark_id", "label")
    hostile = "<script>a|b</script>\n[x](y)"
    a = [(i, hostile if i == 0 else f"g{i % 50}") for i in range(600)]
    text = compared(tmp_path, a, [(i, f"h{i % 7}") for i in range(600)], header, header).to_markdown()
    assert "<script" not in text
    assert "&lt;script&gt;a\\|b&lt;/script&gt; \\[x\\](y)" in text
    assert "more rows are left out here." in text


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.csv is empty; expected a header"),
        (b" \n\n", "a.csv is empty"),
        (b"landmark_id,hierarchical_label\n", "no rows below the header"),
        (b"id,hierarchical_label\n1,x\n", "lacks the column landmark_id; found 'id', 'hierarchical_label'"),
        (b"landmark_id,group\n1,x\n", "lacks the column hierarchical_label or label; found 'landmark_id', 'group'"),
        (b"landmark_id,label,label\n1,x,y\n", "has the column 'label' twice"),
        (b"landmark_id,label\n1,x\nseven,y\n", "line 3: landmark_id is 'seven'; expected a whole number"),
        (b"landmark_id,label\n1.0,x\n", "line 2: landmark_id is '1.0'"),
        (b"landmark_id,label\n,x\n", "line 2: landmark_id is ''"),
        (b"landmark_id,label\n99999999999999999999,x\n", "expected a whole number"),
        (b"landmark_id,label\n1,x\n2,x,y\n", "line 3: 3 cells where the header has 2"),
        (b'landmark_id,label\n1,"x\n', "line 2: not valid CSV"),
        (b"landmark_id,label\n1,caf\xe9\n", r"line 2: not UTF-8 \(byte 0xe9\).*iconv"),
        (
            b"landmark_id,label\n1,x\n2,z\n1,y\n",
            "landmark 1 has the label 'x' in line 2 and 'y' in line 4; expected one row a landmark",
        ),
        (b"landmark_id,label,supercategory\n1,x,a\n1,x,b\n", "landmark 1 has the name 'a' in line 2 and 'b' in line 3"),
        (b"landmark_id,label\n1," + b"x" * 200_000 + b"\n", "line 2: not valid CSV"),
        (b"landmark_id,label\n1,unclassified\n", "1 landmarks in common, none of which both label"),
        (b"landmark_id,label\n8,x\n", "0 landmarks in common.*Ids begin with 8 in the one and 1, 2, 3 in the other"),
    ],
)
def test_bad_csvs_are_named(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(TableError, match=message) as caught:
        compare(tmp_path / "a.csv", write(tmp_path / "b.csv", ROWS_B))
    assert str(tmp_path / "a.csv") in str(caught.value)


def test_quoted_cells_may_hold_commas_quotes_and_line_ends(tmp_path: Path):
    rows = [(1, 'a "b", c\nd'), (2, "x")]
    found = compared(tmp_path, rows, [(1, "p"), (2, "q")], ("landmark_id", "label"), ("landmark_id", "label"))
    assert found.landmarks.ari == 1.0
    with pytest.raises(TableError, match="line 4: landmark_id is 'odd'"):
        compared(tmp_path, [*rows[:1], ("odd", "x")], rows, ("landmark_id", "label"), ("landmark_id", "label"))


def test_files_that_are_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    b = write(tmp_path / "b.csv", ROWS_B)
    with pytest.raises(TableError, match=r"none.csv cannot be read \(No such file"):
        compare(tmp_path / "none.csv", b)
    with pytest.raises(TableError, match="cannot be read"):
        compare(tmp_path, b)
    for bad in (b"", b"PAR1 not really"):
        (tmp_path / "a.parquet").write_bytes(bad)
        with pytest.raises(TableError, match=r"a.parquet cannot be read as a parquet table"):
            compare(tmp_path / "a.parquet", b)
    pl.DataFrame({"landmark_id": [1], "label": [["x"]]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(TableError, match=r"a.parquet cannot be read as a parquet table of numbers and text"):
        compare(tmp_path / "a.parquet", b)
    monkeypatch.setattr(csv_rows, "MAX_BYTES", 10)
    with pytest.raises(TableError, match="more than 10 bytes"):
        compare(b, b)


# -- real data ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif("HGLD_DATA" not in os.environ, reason="HGLD_DATA names no folder of real data")
def test_real_landmarks_against_a_coarser_grouping(tmp_path: Path):
    real = Path(os.environ["HGLD_DATA"]) / "gldv2_washington_landmarks" / "landmarks.csv"
    same = compare(real, real)
    assert (same.a.landmarks, same.a.labelled, same.landmarks.groups_a) == (844, 828, 37)
    assert (same.landmarks.ari, same.landmarks.nmi) == (pytest.approx(1.0), pytest.approx(1.0))
    assert same.names is not None
    assert same.names.items == 221
    assert all(m.group == m.match and m.jaccard == 1.0 for m in same.matches_a)
    assert same.tops is not None
    assert (same.tops.accuracy, same.tops.kappa) == (1.0, pytest.approx(1.0))
    with real.open(encoding="utf-8", newline="") as file:
        coarse = [(row["landmark_id"], row["natural_or_human_made"]) for row in csv.DictReader(file)]
    against = compare(write(tmp_path / "coarse.csv", coarse, ("landmark_id", "label")), real)
    assert against.landmarks.completeness > against.landmarks.homogeneity
    assert against.landmarks.groups_a == 2
