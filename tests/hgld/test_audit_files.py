"""The audit from input files to output files: page, exclusion list, decisions, JSON."""

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld import open_dataset
from hgld.errors import InputError, StorageError
from hgld.label_audit import AuditOptions
from hgld.label_audit.audit import Audited, audit
from hgld.label_audit.page import EXCLUDE, EXCLUSION_COLUMNS, PAGE, exclusion_text, write_audit
from hgld.pipelines.check.audit_decisions import HEADER, decision_texts
from hgld.pipelines.hierarchy.review.decisions import parse_decisions
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.test_audit_labels import TREE, clusters
from tests.rows import each_row

EVIL = "<script>alert(1)</script>\"'&amp;"
LEVELS = ("fine", "coarse", "top")
NAMES = ((EVIL, *(f"class {c}" for c in range(1, 7))), (EVIL, "b", "c", "d"), ("x", "y"))


@cache
def found():
    rows, classes = clusters(each=10)
    shown = TREE[classes]
    shown[5] = TREE[6]
    shown[45] = TREE[0]
    labels = {level: [names[i] for i in column] for level, names, column in zip(LEVELS, NAMES, shown.T, strict=True)}
    return audit(rows, labels, keys=[f"k/{item}" for item in range(len(rows))])


def test_wrong_labels_are_listed_with_level_and_evidence():
    result = found()
    rows = {row["item"]: row for row in result.images.iter_rows(named=True)}
    assert set(rows) == {5, 45}
    assert (rows[5]["level"], rows[5]["given"], rows[5]["proposed"]) == ("top", "y", "x")
    assert (rows[5]["given_finest"], rows[5]["proposed_finest"], rows[5]["key"]) == ("class 6", EVIL, "k/5")
    assert rows[5]["neighbors_proposed"] > rows[5]["neighbors_given"]
    assert set(rows[5]["near_proposed"]) <= set(range(10)) - {5}
    assert result.labels["top"][5] > 0.5 > result.labels["top"][6]
    assert result.rates["rate"][0] == pytest.approx(result.labels["fine"].mean())
    json.dumps(result.to_dict(), allow_nan=False)
    assert "there is only one split" in result.notes[-1]


def test_items_with_unknown_labels_are_not_audited():
    rows, classes = clusters(each=10)
    shown = TREE[classes].copy()
    shown[5] = TREE[6]
    shown[20:30] = -1
    shown[shown[:, 0] == 3, 1:] = -1
    result = audit(rows, shown, levels=LEVELS, splits=["a", "b"] * 35)
    assert "this needs the images of a dataset" in result.notes[-1]
    assert (result.judged, len(result.keys)) == (60, 70)
    assert "10 items without a known fine are not judged." in result.notes
    assert result.images["item"].to_list() == [5]
    assert not result.classes.height
    with pytest.raises(InputError, match="10 of 70 items have a known class at level 'fine'"):
        audit(rows, np.where(np.arange(70)[:, None] < 10, shown, -1), levels=LEVELS)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(module_path) -> tuple[Path, str]:
    result = found()
    row = {"kind": "parent", "level": "fine", "class": EVIL, "other": "b", "probability": 0.9, "items": 10}
    row |= {"evidence": "log odds: 3.00", "first_items": [0], "second_items": [20]}
    classes = pl.DataFrame([row, row | {"kind": "one", "other": "class 1"}], schema=result.classes.schema)
    result = replace(result, classes=classes)
    decisions = decision_texts(classes, LEVELS)
    write_audit(module_path, result, decisions, HEADER, None, {"embeddings": EVIL})
    return module_path, (module_path / PAGE).read_text()


def test_hostile_names_are_shown_as_text_and_page_loads_nothing(written):
    _, page = written
    assert page.count("<script") == 1
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    assert "&lt;script&gt;alert(1)" in page


def test_exclusion_list_contains_every_image_once_and_decisions_the_expressible_findings(written):
    folder, page = written
    table = pl.read_csv(folder / EXCLUDE, infer_schema=False)
    assert sorted(table["key"]) == ["k/45", "k/5"]
    assert set(table["reason"]) == {"wrong-label"}
    result = found()
    without = replace(result, images=result.images.clear())
    assert exclusion_text(without).splitlines() == [",".join(EXCLUSION_COLUMNS)]
    file = folder / "decisions.yaml"
    assert len(parse_decisions(file.read_text(), file)) == 1
    assert "No decisions file can express this" in page  # no decision merges two finest classes


@each_row(
    ("kind", "level", "expected"),
    [
        ("parent", "fine", ("move", {"names": (EVIL,), "to": "b"})),
        ("parent", "coarse", ("set", {"group": EVIL, "top": "b"})),
        ("one", "coarse", ("merge", {"groups": (EVIL, "b"), "to": EVIL})),
    ],
)
def test_each_type_of_finding_becomes_the_matching_decision(kind, level, expected):
    row = {"kind": kind, "level": level, "class": EVIL, "other": "b", "probability": 0.9, "evidence": "e"}
    faults = pl.DataFrame([row])
    (entry,) = parse_decisions(HEADER + decision_texts(faults, LEVELS)[0], Path("d.yaml"))
    assert entry.decision.who == "hgld audit"
    assert (entry.decision.action, {k: vars(entry.decision)[k] for k in expected[1]}) == expected
    odd = faults.with_columns(pl.col("class") + "\n")
    assert decision_texts(odd, LEVELS) == [""]  # a name with a newline cannot be in a decision


def test_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Choose another --out"):
        write_audit(tmp_path / "file", found(), [], HEADER, None, {"embeddings": "e"})


# -- inputs -----------------------------------------------------------------------------------------------------------


def test_label_files_are_read_with_their_keys_splits_and_levels(tmp_path):
    np.save(tmp_path / "e.npy", np.eye(4))
    table = pl.DataFrame({"key": list("pqrs"), "split": ["a", "b"] * 2, "fine": [0, 0, 1, 1], "coarse": ["x"] * 4})
    table.write_parquet(tmp_path / "e.labels.parquet")
    read = Audited.of_files(tmp_path / "e.npy", None, None)
    assert (read.levels, read.splits, read.keys) == (("fine", "coarse"), ["a", "b"] * 2, list("pqrs"))
    table.select("fine", "coarse").write_csv(tmp_path / "labels.csv")
    read = Audited.of_files(tmp_path / "e.npy", tmp_path / "labels.csv", ("fine",))
    assert (read.levels, read.splits, read.keys) == (("fine",), None, None)


def test_items_of_a_dataset_are_matched_by_key(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([5] * 6, ["train", "test"]))
    dataset, rng = open_dataset(tmp_path / "data"), np.random.default_rng(0)
    order = rng.permutation(30)[:25]
    np.save(tmp_path / "e.npy", rng.standard_normal((25, 6), np.float32))
    keys = dataset.keys.gather(order)
    pl.DataFrame({"key": keys}).write_parquet(tmp_path / "e.labels.parquet")
    read = Audited.of_files(tmp_path / "e.npy", None, dataset=dataset)
    assert read.keys == keys.to_list()
    names = dataset.hierarchy.names[0]
    assert read.labels[dataset.levels[0]] == [names[i] for i in dataset.labels[order, 0].tolist()]
    result = read.audit(AuditOptions())
    assert len(result.keys) == 25
    files = write_audit(tmp_path / "out", result, [""] * len(result.classes), HEADER, read.dataset, {"dataset": "x"})
    assert all(Path(file).is_file() for file in files.values())
    pl.DataFrame({"key": ["strange", *keys[1:]]}).write_parquet(tmp_path / "e.labels.parquet")
    with pytest.raises(InputError, match=r"1 of its keys are not in .*the first is 'strange'"):
        Audited.of_files(tmp_path / "e.npy", None, dataset=dataset)
