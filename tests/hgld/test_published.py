"""Published results: the keys of the rows, the papers' tables, and the search for a table or a row."""

import csv
import math
import operator
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hgld.errors import ConfigError
from hgld.published import PAPERS, OwnResults, find_table, lay_out, published_values, search_values
from hgld.published.results import belongs, fold
from tests.rows import each_row, refused

VALUES = published_values()


def test_all_published_rows_are_shipped_with_unique_keys():
    counts = Counter(value.paper for value in VALUES)
    papers = {"smooth-ap": 123, "listwise": 164, "pnp": 227, "suprank": 643, "multigrain": 163}
    assert {paper: counts[paper] for paper in papers} == papers
    assert set(counts) == set(PAPERS)
    assert len({replace(value, text="", unit="", note="") for value in VALUES}) == len(VALUES)
    metrics = Counter(value.metric for value in VALUES)
    assert (metrics["H-AP"], metrics["ASI"], metrics["NDCG"]) == (45, 70, 42)
    assert all("arXiv:" in paper.source for paper in PAPERS.values())


@pytest.mark.skipif("HGLD_DATA" not in os.environ, reason="needs the collected tables")
def test_shipped_values_equal_the_collected_table():
    with open(Path(os.environ["HGLD_DATA"]) / "published" / "published_results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    five = list(PAPERS)[:5]
    shipped = Counter((value.table, value.text, value.dim) for value in VALUES if value.paper in five)
    assert shipped == Counter((row["table"], row["value"], row["embedding_dim"]) for row in rows)


def test_values_are_numbers_in_the_range_of_their_unit():
    most = {"%": 100.0, "1": 1.0, "of 4": 4.0, "ms": 1000.0}
    for value in VALUES:
        if value.unit:
            assert value.number is not None, value
            assert 0 < value.number <= most[value.unit], value
            assert value.in_unit(0.5) == (50 if value.unit == "%" else 0.5)


@each_row(
    ("spelling", "paper", "tables"),
    [
        ("SupRank Table V", "suprank", ["Table V"]),
        ("arXiv:2309.08250 Table 5", "suprank", ["Table V"]),
        ("suprank fig. 6", "suprank", ["Figure 6"]),
        ("Smooth-AP Table 3", "smooth-ap", ["Table 3 (left)", "Table 3 (right)"]),
        ("smoothap table III left", "smooth-ap", ["Table 3 (left)"]),
        ("Revaud et al. Table 2", "listwise", ["Table 2"]),
        ("Berman 2019 section 3.5", "multigrain", ["Section 3.5"]),
        ("ROADMAP", "roadmap", ["Papers with Code"]),
    ],
)
def test_table_is_found_by_common_spellings(spelling, paper, tables):
    _, values = find_table(spelling)
    assert {value.paper for value in values} == {paper}
    assert list(dict.fromkeys(value.table for value in values)) == tables
    assert values == [value for value in VALUES if value.paper == paper and value.table in tables]


def test_every_table_is_found_by_its_name_and_shows_each_value_once():
    for key, paper in PAPERS.items():
        for table in dict.fromkeys(value.table for value in VALUES if value.paper == key):
            title, values = find_table(f"{paper.name} {table}")
            laid = lay_out(title, values)
            shown = [cell for block in laid.blocks for row in block.rows for cell in row.cells if cell]
            assert Counter(shown) == Counter(value.text for value in values), table
            assert all(len(row.cells) == len(block.columns) for block in laid.blocks for row in block.rows)
            assert all(len(row.details) == len(block.details) for block in laid.blocks for row in block.rows)


HAPPIER = tuple(v for v in VALUES if (v.method, v.dataset, v.table) == ("HAPPIER", "sop", "Table V"))


def test_own_runs_are_rows_with_differences_to_their_recipe():
    own = [
        OwnResults("mine", "sop", {"R@1/product": 0.8162, "AP/product": 0.5, "H-AP": 0.6}, HAPPIER),
        OwnResults("renamed", "sop", {"R@1/fine": 0.1, "mAP/fine": 0.2}, levels=("fine", "coarse")),
        OwnResults("other", "cub", {"R@1/species": 0.9}),
        OwnResults("else", "sop", {"P@4/product": 0.9, "H-AP": math.nan}),
    ]
    table = lay_out(*find_table("SupRank Table V"), own)
    block = next(block for block in table.blocks if "sop" in block.title)
    assert block.title == "Table V, sop: ResNet-50, 512 dimensions; per cent"
    assert block.columns == (("R@1",), ("AP",), ("H-AP",), ("ASI",), ("NDCG",))
    rows = {row.label: row for row in block.rows}
    assert rows["mine"].cells == ("81.6", "50.0", "60.0", "", "")
    assert rows["mine"].differences == ("+0.6", "-10.4", "+0.6", "", "")
    assert rows["mine"].against == "HAPPIER"
    assert rows["renamed"].cells == ("10.0", "20.0", "", "", "")
    assert [row.label for row in block.rows if row.own] == ["mine", "renamed"]
    assert table.own == 2
    assert "other is of cub; the table is of sop, inat-base, inat-full." in table.notes
    assert any(note.startswith("else has none of the table's metrics: R@1/product") for note in table.notes)


def own_rows(title, *own):
    """Return the rows of own results in a published table."""
    return [row for block in lay_out(*find_table(title), own).blocks for row in block.rows if row.own]


@each_row(("size", "difference"), [(224, "-0.4"), (500, "-1.6"), (0, "-0.4")])
def test_difference_is_taken_from_the_published_row_with_the_same_image_size(size, difference):
    grains = search_values(dataset="imagenet", method="MultiGrain")
    rows = tuple(v for v in grains if "lambda=0.5, aug=full, train p=3" in v.setting)
    mine = OwnResults("mine", "imagenet", {"top-1": 0.77}, rows, image_size=size)
    [row] = own_rows("MultiGrain Table 2", mine)
    assert (row.cells[0], row.differences[0]) == ("77.0", difference)


def test_parts_of_a_protocol_are_columns_with_the_names_of_reports():
    own = [OwnResults("mine", "roxford", {"mAP/medium": 0.675, "AP/hard": 0.5}), OwnResults("v", "vehicleid", {})]
    oxford, paris = lay_out(*find_table("Listwise Table 2"), own).blocks
    parts = ("medium", "medium+distractors", "hard", "hard+distractors")
    assert oxford.columns == paris.columns == tuple((part, "mAP") for part in parts)
    assert oxford.rows[-1].cells == ("67.5", "", "50.0", "")
    assert not any(row.own for row in paris.rows)
    [row] = own_rows("Smooth-AP Table 4", OwnResults("mine", "vggface2", {"AP/identity": 0.8514}))
    assert row.cells[0] == "0.851"


def test_species_values_hold_for_both_inaturalist_datasets():
    full = [value for value in VALUES if belongs("inat-full", value) and value.dataset == "inat-base"]
    assert "Table IV" in {value.table for value in full}
    assert {value.level for value in full} == {"species"}
    [row] = own_rows("SupRank Table II", OwnResults("mine", "inat-full", {"R@1/species": 0.7, "H-AP": 0.4}))
    assert row.cells == ("", "", "70.0", "")


@each_row(
    ("asked", "found"),
    [
        ({"dataset": "SOP", "method": "HAPPIER"}, {("sop", "HAPPIER"), ("sop", "HAPPIER_F")}),
        ({"dataset": "gldv2", "method": "csl"}, {("h-gldv2", "CSL")}),
        ({"dataset": "dyml-animal", "method": "norm softmax"}, {("dyml-animal", "NSM"), ("dyml-animal", "Sigma NSM")}),
        ({"dataset": "iNaturalist", "metric": "AP/kingdom", "method": "CSL"}, {("inat-full", "CSL")}),
        ({"dataset": "roxford", "metric": "AP", "method": "DELF"}, {("roxford", "DELF-ASMK + SP")}),
    ],
)
def test_rows_are_found_by_common_spellings(asked, found):
    assert {(value.dataset, value.method) for value in search_values(**asked)} == found


test_unknown_row_error_lists_known_names = refused(
    operator.call,
    [
        (lambda: find_table("SupRank Table XIV"), r"SupRank has no values of 'Table XIV'; it has Table I, .*VII"),
        (lambda: find_table("Nobody 2020 Table 1"), r"no paper is called .*SupRank \(suprank\)"),
        (lambda: search_values(dataset="cubs"), "no published row has dataset 'cubs'; there are .*cub"),
        (lambda: search_values(dataset="cub", method="HAPPIER"), "no published row has method 'HAPPIER'"),
        (lambda: search_values(metric="R@3"), "no published row has metric 'R@3'.*R@"),
    ],
    ConfigError,
)


def test_published_command_prints_tables_and_json_rows(output, json_of):
    out = output("published")
    lines = out.splitlines()
    assert max(len(line) for line in lines if "arXiv" not in line) <= 110
    assert {fold(v.method) for v in VALUES} <= {fold(line)[:n] for line in lines for n in range(1, 60)}
    narrow = ("published", "--dataset", "sop", "--method", "HAPPIER", "--metric", "H-AP")
    assert re.search("Table V, sop.*HAPPIER_F", output(*narrow), re.DOTALL)
    rows = json_of(*narrow)["rows"]
    assert [(row["method"], row["table"], row["value"]) for row in rows] == [
        ("HAPPIER", "Table V", "59.4"),
        ("HAPPIER_F", "Table V", "52.0"),
    ]
