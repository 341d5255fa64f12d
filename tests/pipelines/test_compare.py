"""Comparison of two hierarchies: measures, joins, excluded rows and refused inputs."""

import csv
import json
from io import StringIO

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hgld.errors import TableError
from hgld.hierarchy import Hierarchy
from hgld.pipelines.hierarchy.compare import ancestor_agreement, compare
from hgld.pipelines.hierarchy.compare import summary as summary_parts
from tests.rows import each_row


def summary(comparison):
    out = StringIO()
    console = Console(width=400, file=out)
    for part in summary_parts(comparison):
        console.print(part)
    return out.getvalue()


GLDV2 = ("landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made")
BARE = ("landmark_id", "label")
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


def write(path, rows, header=GLDV2):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return path


def compared(folder, a, b, header_a=GLDV2, header_b=GLDV2):
    return compare(write(folder / "a.csv", a, header_a), write(folder / "b.csv", b, header_b))


# -- measures -----------------------------------------------------------------------------------------------------


def test_measures_match_a_worked_example(tmp_path):
    found = compared(tmp_path, enumerate("xxyz"), enumerate("ppqq"), BARE, BARE).finest
    assert (found.items.items, found.items.groups_a, found.items.groups_b) == (4, 3, 2)
    # Pairs of items in a common group: 1 in A, 2 in B, 1 in both; 1/3 is expected by chance.
    # The entropies are 1.5 ln 2 (A), ln 2 (B) and 1.5 ln 2 (joint).
    assert found.items.ari == pytest.approx((1 - 1 / 3) / (1.5 - 1 / 3))
    measured = (found.items.nmi, found.items.homogeneity, found.items.completeness)
    assert measured == pytest.approx((1 / 1.25, 1.0, 1 / 1.5))
    assert found.items.ami < found.items.nmi
    assert [(c.a, c.b, c.items) for c in found.confusion] == [("x", "p", 2), ("y", "q", 1), ("z", "q", 1)]


@given(st.lists(st.lists(st.none() | st.sampled_from("pqr"), min_size=4, max_size=4), min_size=1, max_size=9))
def test_hierarchical_precision_and_recall_match_the_definition(rows):
    columns = [pl.Series(column, dtype=pl.String) for column in zip(*rows, strict=True)]
    found = ancestor_agreement(columns[:2], columns[2:])
    sides = [row[:2] for row in rows], [row[2:] for row in rows]
    sets = [{(n, i, x) for n, row in enumerate(side) for i, x in enumerate(row) if x is not None} for side in sides]
    common, sizes = len(sets[0] & sets[1]), [len(each) for each in sets]
    assert (found.precision, found.recall) == tuple(common / size if size else None for size in sizes)
    assert found.f1 == (pytest.approx(2 * common / sum(sizes)) if sum(sizes) else None)


# -- reported values ----------------------------------------------------------------------------------------------


def test_coverage_counts_labelled_and_shared_items_per_table(tmp_path):
    found = compared(tmp_path, [*ROWS_A, ROWS_A[0]], ROWS_B)
    assert found.joined_on == ("landmark_id",)
    a, b = found.a, found.b
    assert (a.items, a.labelled, a.shared, a.groups) == (7, 6, 4, 4)
    assert (b.items, b.labelled, b.shared, b.groups) == (7, 6, 4, 3)
    assert found.finest.items.items == 4
    top = found.levels[1]
    assert (top.a, top.items.items, top.same) == ("natural_or_human_made", 5, 0.8)
    assert top.kappa == pytest.approx((0.8 - (3 * 2 + 2 * 3) / 25) / (1 - (3 * 2 + 2 * 3) / 25))
    assert json.loads(json.dumps(found.to_dict()))["levels"][0]["items"]["ari"] == 1


def test_name_belongs_to_the_group_of_most_of_its_landmarks(tmp_path):
    named = [("Lake ", "water"), ("lake", "water"), ("LAKE", "dam"), ("dam", "dam"), ("", "dam")]
    a = [(i, "c", name, group, "") for i, (name, group) in enumerate(named, 1)]
    b = [(i, "c", "other", "one" if i < 4 else "two", "") for i in range(1, 6)]
    found = compared(tmp_path, a, b).finest
    assert found.names is not None
    assert (found.names.items, found.names.ari, found.items.items) == (2, 1.0, 5)
    bare = [(row[0], row[3]) for row in ROWS_A]
    assert compared(tmp_path, bare, bare, BARE, BARE).finest.names is None


def test_items_are_joined_on_split_and_id_if_both_tables_have_splits(tmp_path):
    header = ("split", "landmark_id", "label")
    a = [("train", 1, "x"), ("index", 1, "y"), ("train", 2, "x")]
    b = [("train", 1, "p"), ("index", 1, "q"), ("index", 2, "q")]
    found = compared(tmp_path, a, b, header, header)
    assert (found.joined_on, found.finest.items.items) == (("split", "landmark_id"), 2)
    one = compared(tmp_path, a[::2], [(1, "p"), (2, "q")], header, header[1:])
    assert (one.joined_on, one.finest.items.items) == (("landmark_id",), 2)
    with pytest.raises(TableError, match=r"1 occurs in the splits index and train, and .*b.csv has no"):
        compared(tmp_path, a, [(1, "p")], header, header[1:])


def test_parquet_and_csv_give_the_same_comparison(tmp_path):
    pl.DataFrame(ROWS_A, schema=list(GLDV2), orient="row").write_parquet(tmp_path / "a.parquet")
    one, other = compared(tmp_path, ROWS_A, ROWS_B), compare(tmp_path / "a.parquet", tmp_path / "b.csv")
    assert (one.levels, one.ancestors, one.b) == (other.levels, other.ancestors, other.b)


def test_summary_states_columns_measures_and_confusions(tmp_path):
    text = summary(compared(tmp_path, ROWS_A, ROWS_B))
    assert "Items are joined on landmark_id. Levels compared: hierarchical_label; natural_or_human_made (paired" in text
    rows = {" ".join(line.split()) for line in text.splitlines()}
    figures = "hierarchical_label items 4 2 2 1.000 1.000 1.000 1.000 1.000", "natural_or_human_made 0.800 0.615"
    assert {*figures, "labels 0.400 0.400 0.400"} <= rows
    assert text.endswith("None.\n")
    a = [(i, f"g{i % 50}" if i else "a\nb " + "z" * 60) for i in range(600)]
    text = summary(compared(tmp_path, a, [(i, f"h_{i % 7}") for i in range(600)], BARE, BARE))
    assert len([line for line in text[text.index("Largest") :].splitlines() if " h_" in line]) == 10
    assert "items: --json." in text
    assert "z" * 60 not in text
    equal = summary(compared(tmp_path, enumerate("xxxyyy"), enumerate("xyyxxy"), BARE, BARE))
    assert equal.endswith("None.\n"), "equal labels must not be listed as confusion"


# -- chosen columns --------------------------------------------------------------------------------------


def test_levels_without_common_names_are_paired_by_order(tmp_path):
    rows = [(1, "a", "apple", "Fruit", "Food"), (2, "b", "pear", "Fruit", "Food"), (3, "c", "oat", "Grain", "Food")]
    rows += [(4, "d", "bolt", "Metal", "Things")]
    header = ("id", "name", "item", "kind", "domain")
    found = compared(tmp_path, rows, rows, header, ("id", "name", "x", "y", "z"))
    assert ([level.b for level in found.levels], found.paired_by) == (["x", "y", "z"], "order")
    # the level with more labels counts as the finer level
    coarse_first = [(row[0], row[4], row[3], row[2]) for row in rows]
    found = compared(tmp_path, rows, coarse_first, header, ("id", "top", "mid", "fine"))
    assert [(level.a, level.b) for level in found.levels] == [("item", "fine"), ("kind", "mid"), ("domain", "top")]


def test_only_levels_in_both_tables_that_do_not_repeat_the_names_are_compared(tmp_path):
    rows = [(1, "x", "p", "s"), (2, "y", "q", "s"), (3, "y", "q", "t")]
    found = compared(
        tmp_path, rows, [row[:3] for row in rows], ("id", "kind", "family", "realm"), ("id", "kind", "sort")
    )
    assert ([level.b for level in found.levels], found.paired_by) == (["kind"], "name")
    assert (found.a.not_compared, found.b.not_compared) == (("family", "realm"), ("sort",))
    assert "Not compared, only in A: family, realm." in " ".join(summary(found).split())
    rows, header = [("1", "oak", "oak", "tree"), ("2", "cod", "cod", "fish")], ("id", "name", "item", "group")
    assert [level.a for level in compared(tmp_path, rows, rows, header, header).levels] == ["group"]


def test_tables_without_common_id_are_joined_on_names(tmp_path):
    a = [(i, "c", name, group, "") for i, (name, group) in enumerate([("Lake ", "w"), ("lake", "w"), ("dam", "d")])]
    found = compared(tmp_path, a, [("lake", "water"), ("Dam", "built"), ("bay", "water")], GLDV2, ("name", "group"))
    assert (found.joined_on, found.finest.items.items, found.finest.names) == (("supercategory",), 2, None)
    assert found.finest.items.ari == 1.0


def test_build_folder_is_read_as_all_its_label_files(tmp_path):
    build = tmp_path / "build"
    build.mkdir()
    for split, rows in {"train": ROWS_A, "index": ROWS_A[:2]}.items():
        write(build / f"{split}_label_to_hierarchical.csv", rows)
    found = compare(build, build)
    assert (found.joined_on, found.a.items) == (("split", "landmark_id"), 9)
    assert found.a.files == ("index_label_to_hierarchical.csv", "train_label_to_hierarchical.csv")
    one = compare(build, build / "train_label_to_hierarchical.csv")  # the split is part of the file name
    assert (one.joined_on, one.b.items, one.b.shared) == (("split", "landmark_id"), 7, 6)
    with pytest.raises(TableError, match=r"1 occurs in the splits index and train"):
        compare(build, write(tmp_path / "b.csv", ROWS_B))


def test_items_of_a_hierarchy_file_are_its_finest_classes(tmp_path):
    landmarks = {
        "landmark": [f"train/{row[0]} Some place" for row in ROWS_A],
        "hierarchical_label": [row[3] for row in ROWS_A],
    }
    Hierarchy.from_columns(landmarks).to_parquet(tmp_path / "hierarchy.parquet")
    labels = write(tmp_path / "train_label_to_hierarchical.csv", ROWS_A)
    found = compare(tmp_path / "hierarchy.parquet", labels)
    assert (found.joined_on, found.finest.same) == (("split", "landmark_id"), 1.0)
    labels.unlink()
    classes = {"item": ["oak", "elm", "cod"], "group": ["tree", "tree", None], "top": ["plant", "plant", "animal"]}
    Hierarchy.from_columns(classes).to_parquet(tmp_path / "classes.parquet")
    write(tmp_path / "labels.csv", [(1, "oak", "t", "p"), (2, "elm", "t", "p")], ("id", "name", "group", "top"))
    found = compare(tmp_path / "classes.parquet", tmp_path / "labels.csv")
    assert (found.joined_on, [level.a for level in found.levels]) == (("name",), ["group", "top"])


# -- invalid input ----------------------------------------------------------------------------------------------------


@each_row(
    ("content", "message"),
    [
        (b"", "a.csv is empty; expected at least one row"),
        (b"landmark_id,hierarchical_label\n", "no rows below the header"),
        (
            b"id,hierarchical_label\n1,x\n",
            "no common column .*a.csv has 'id', 'hierarchical_label' and .*b.csv has 'landmark_id', 's",
        ),
        (b"landmark_id,title\n1,x\n", "has 0 columns of labels; found 'landmark_id', 'title'"),
        (b"landmark_id,label\n1,x\nseven,y\n", "line 3: landmark_id is 'seven'; expected a whole number"),
        (b"landmark_id,label\n,x\n", "line 2: landmark_id is ''"),
        (
            b"landmark_id,label\n1,x\n2,z\n1,y\n",
            "landmark_id 1 has different cells in line 2 and line 4; expected one row per item",
        ),
        (b"landmark_id,label\n1,unclassified\n", "1 items in common by landmark_id, but no item has a label in both"),
        (b"landmark_id,label\n8,x\n", "0 items in common.*The first ids are 8 and 1, 2, 3"),
    ],
)
def test_invalid_csvs_are_refused_with_line_and_column(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(TableError, match=message) as caught:
        compare(tmp_path / "a.csv", write(tmp_path / "b.csv", ROWS_B))
    assert str(tmp_path / "a.csv") in str(caught.value)


def test_unreadable_files_are_refused(tmp_path):
    b = write(tmp_path / "b.csv", ROWS_B)
    with pytest.raises(TableError, match=r"is a folder without \*_label_to_hierarchical.csv, labels.csv or"):
        compare(tmp_path, b)
