"""Protocols in ``hgld evaluate``: values of small datasets and embeddings equal values computed by hand."""

import json
from typing import Any

import numpy as np
import polars as pl
import pytest

from hgld.data.index import TABLES
from hgld.evaluation import evaluate_files
from hgld.evaluation.protocols import PROTOCOLS, protocol_of, value_parts
from hgld.evaluation.protocols.benchmark import EmbeddedSplit, evaluate_protocol
from hgld.evaluation.protocols.by_labels import find_queries
from hgld.evaluation.report import RetrievalReport
from hgld.report_page.runs import read_runs
from tests.hgld.small_dataset import LEVELS, Item, write_dataset
from tests.interpreter import ROOT


def made(folder, protocol, rows, *, judgements=(), lists=(), levels=LEVELS, data=None):
    """Write a dataset without real images from rows of (split, labels); return folder and keys (SPLIT/ROW NUMBER)."""
    contents = data or [b"%d" % number for number in range(len(rows))]
    items = [Item(labels, split, content) for (split, labels), content in zip(rows, contents, strict=True)]
    tables: dict[str, Any] = {
        "judgements": pl.DataFrame(judgements, TABLES["judgements.parquet"], orient="row") if judgements else None,
        "lists": pl.DataFrame(lists, TABLES["lists.parquet"], orient="row") if lists else None,
    }
    write_dataset(folder, items, levels=levels, protocol=protocol, **tables)
    return folder, [f"{split}/{number:04d}" for number, (split, _) in enumerate(rows)]


def directions(degrees):
    """Return unit vectors in a plane; items with a small difference of angles are near."""
    angles = np.deg2rad(np.array(degrees, np.float64))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture
def measured(tmp_path, hgld):
    """Return a function that evaluates embeddings on a new dataset, and returns the command's JSON or its error.

    Its arguments are those of ``made`` and an angle per row; a row with None has no embedding.
    """

    def run(protocol, rows, angles, *flags, **tables):
        folder, keys = made(tmp_path / str(len([*tmp_path.iterdir()])), protocol, rows, **tables)
        known = {key: angle for key, angle in zip(keys, angles, strict=True) if angle is not None}
        np.save(folder / "e.npy", directions(list(known.values())))
        pl.DataFrame({"key": list(known)}).write_parquet(folder / "e.labels.parquet")
        code, out, err = hgld("evaluate", "--embeddings", folder / "e.npy", "--data", folder, "--json", *flags)
        if code == 0:
            return json.loads(out)
        assert (code, out) == (2, "")
        return err

    return run


def test_report_lists_its_files_if_their_items_are_in_the_order_of_the_dataset(tmp_path, output, monkeypatch):
    galleries = []

    def evaluate(name, benchmark, **given):
        galleries.append(benchmark["gallery"].vectors)
        return evaluate_protocol(name, benchmark, **given)

    monkeypatch.setattr(evaluate_files, "evaluate_protocol", evaluate)
    rows = [("query", (0, 0)), ("query", (1, 0)), ("gallery", (1, 0)), ("gallery", (0, 0)), ("gallery", (2, 1))]
    folder, keys = made(tmp_path / "d", "h-gldv2", rows)
    for name, items in {"query": [0, 1], "gallery": [2, 3, 4], "turned": [3, 2, 4]}.items():
        np.save(folder / f"{name}.npy", directions([10 * item for item in items]))
        labels = dict(zip(LEVELS, zip(*(rows[item][1] for item in items), strict=True), strict=True))
        pl.DataFrame({"key": [keys[item] for item in items], **labels}).write_parquet(folder / f"{name}.labels.parquet")
    ranked = []
    for gallery in ("gallery", "turned"):
        sides = ("--embeddings", folder / "query.npy", "--gallery-embeddings", folder / f"{gallery}.npy")
        output("evaluate", *sides, "--data", folder, "--out", folder / f"{gallery}.json")
        [run] = read_runs([folder / f"{gallery}.json"])
        ranked += [evaluation.ranked is not None for evaluation in run.evaluations.values()]
    # embeddings in the order of the dataset are not copied, and a report page can rank them
    assert [isinstance(vectors, np.memmap) for vectors in galleries] == ranked == [True, False]


def test_leave_one_out_protocols_give_hand_computed_values(measured, tmp_path):
    """Items are at 0, 10, 25 and 90 degrees. The nearest items are 1 for item 0, 0 for 1, 1 for 2, and 2 for 3."""
    plain = protocol_of("leave-one-out")
    for name in ("sop", "inat-base", "inat-full", "cub", "cars196"):
        other = protocol_of(name)
        assert (other.function(), other.splits, other.further) == (plain.function(), ("test",), plain.further)
    task = "sop", [("test", labels) for labels in [(0, 0), (0, 0), (1, 0), (1, 0)]], [0, 10, 25, 90]
    found = measured(*task)
    values = found["values"]
    assert values["R@1/fine"] == pytest.approx(3 / 4)
    assert values["AP/fine"] == pytest.approx((1 + 1 + 1 / 3 + 1) / 4)
    assert values["AP/coarse"] == 1
    assert {"H-AP", "ASI", "NDCG"} <= set(values)
    assert (found["settings"]["protocol"], found["settings"]["dataset"]) == ("sop", "small")
    assert set(found["settings"]["printed"]) <= set(values)
    np.save(tmp_path / "d.npy", np.eye(3))
    assert "expected two tables of the same dimension" in measured(*task, "--distractors", tmp_path / "d.npy")


def test_landmarks_clean_evaluates_its_val_split(measured):
    task = "landmarks-clean", [("val", (label, -1)) for label in (0, 0, 1, 1)], [0, 10, 25, 90]
    found = measured(*task)
    assert found["values"]["AP/fine"] == pytest.approx((1 + 1 + 1 / 3 + 1) / 4)
    assert not [name for name in found["values"] if name.endswith("/coarse")]  # no item has a label at this level
    assert found["settings"]["levels_without_labels"] == ["coarse"]
    said = measured(*task, "--metrics", "AP/coarse,AP/fine")
    assert "the metrics AP/coarse need labels that the queries or the gallery lack (coarse)" in said


def test_query_gallery_protocols_give_hand_computed_values(measured):
    """The first query has its relevant item at rank 2. The second query has none, and the third has no label."""
    plain = protocol_of("query-gallery")
    for name in ("inshop", "h-gldv2"):
        other = protocol_of(name)
        assert (other.function(), other.splits) == (plain.function(), plain.splits)
    rows = [("query", (0, 0)), ("query", (2, 1)), ("query", (-1, -1))]
    rows += [("gallery", (1, 0)), ("gallery", (0, 0)), ("distractors", (0, 0))]
    metrics = ["--metrics", "R@1/fine,AP/fine,mAP@100/fine,R@1/coarse"]
    found = measured("h-gldv2", rows, [0, 5, 6, 10, 20, 90], *metrics)
    half = {"R@1/fine": 0, "AP/fine": 1 / 2, "mAP@100/fine": 1 / 2, "R@1/coarse": 1}
    assert found["values"] == pytest.approx(half)
    assert found["undefined"] == dict.fromkeys(half, 2)
    assert found["settings"]["distractors"] == 1
    # a distractor is a negative, even if its label equals the query's
    nearer = measured("h-gldv2", rows, [0, 5, 6, 10, 20, 1], *metrics)
    assert nearer["values"]["AP/fine"] == pytest.approx(1 / 3)


def test_vehicleid_protocols_give_hand_computed_values(measured):
    """Vehicles far apart are found in every draw. Two vehicles with similar angles are found for half their images."""
    rows = [("test", (vehicle, -1)) for vehicle in (0, 0, 1, 1, 2, 2, 3, 3)]
    lists = [("small", f"test/{i:04d}") for i in range(4)] + [("medium", f"test/{i:04d}") for i in range(4, 8)]
    lists += [("large", f"test/{i:04d}") for i in range(8)] + [("large", "test/9999")]
    task = "vehicleid", rows, [0, 1, 40, 41, 100, 140, 102, 138]
    drawn = measured(*task, lists=lists)
    assert drawn["settings"]["listed_without_embedding"] == {"large": 1}
    assert drawn["values"]["R@1/small"] == drawn["values"]["R@5/large"] == 1
    assert len(drawn["settings"]["draws"][0]["R@1/vehicle"]) == 10
    assert set(drawn["settings"]["draws"][1]["R@1/vehicle"]) <= {0.0, 0.5, 1.0}
    others = measured(*task, "--protocol", "vehicleid-leave-one-out", lists=lists)
    expected = {"R@1/small": 1, "R@1/medium": 0, "R@1/large": 1 / 2}
    assert {name: others["values"][name] for name in expected} == pytest.approx(expected)
    assert "in the list 'medium'" in measured(*task, lists=lists[:2])
    assert "no vehicle has two images" in measured("vehicleid", rows[::2], range(4), lists=lists)


DYML = ("fine", "middle", "coarse")


def dyml_rows():
    """Return per level one query of class 0, and gallery items of classes 1 and 0."""
    rows = []
    for level, name in enumerate(DYML):
        labels = [(-1,) * level + (c,) + (-1,) * (2 - level) for c in (0, 1)]
        rows += [(f"query_{name}", labels[0]), (f"gallery_{name}", labels[1]), (f"gallery_{name}", labels[0])]
    return rows


def test_dyml_gives_hand_computed_values(tmp_path, measured):
    """The relevant item is at rank 2 at the fine level, and at rank 1 at the other levels."""
    task, kept = ("dyml", dyml_rows(), [0, 10, 20, 0, 20, 10, 0, 20, 10]), tmp_path / "kept.json"
    found = measured(*task, "--out", kept, levels=DYML)
    values = found["values"]
    assert [values[f"AP/{level}"] for level in DYML] == pytest.approx([1 / 2, 1, 1])
    assert values["AP/average"] == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert values["R@1/average"] == pytest.approx(2 / 3)
    assert values["ASI"] == pytest.approx(2 / 3)  # with one positive, ASI is 1 if it is at rank 1, otherwise 0
    assert found["settings"]["overlap"].startswith("none:")
    assert found["undefined"]["AP/average"] == 0
    assert {*RetrievalReport.load_json(kept).query_metrics} == {n for n in values if not n.endswith("/average")}
    assert found["settings"]["printed"] == ["AP/average", "ASI", "R@1/average"]
    np.save(tmp_path / "d.npy", directions([0]))
    said = measured(*task, "--distractors", tmp_path / "d.npy", levels=DYML)
    assert "does not use the splits distractors" in said


def side(paths, contents, split):
    keys = pl.Series([f"{split}/{path}" for path in paths], dtype=pl.String)
    return EmbeddedSplit(np.eye(len(paths)), keys, np.zeros((len(paths), 1)), lambda: pl.Series(contents))


def test_queries_are_found_in_gallery_by_path_and_by_content():
    query = side(["a", "b", "c", "d"], ["1", "2", "3", "4"], "query_fine")
    gallery = side(["x", "b", "a", "c"], ["3", "2", "9", "9"], "gallery_fine")
    index, counts = find_queries(query, gallery, "query_fine", "gallery_fine")
    assert index.tolist() == [-1, 1, 0, -1]
    assert counts == {"left out": 2, "by path": 1, "by content alone": 1, "other content": 2}


def test_dyml_excludes_queries_that_are_in_the_gallery(measured):
    """The gallery contains the query, which is excluded. Then the other item of its class is at rank 2."""
    rows = dyml_rows()
    rows += [(split.replace("query", "gallery"), labels) for split, labels in rows[::3]]
    data = [b"%d" % number for number in (*range(9), 0, 3, 6)]
    found = measured("dyml", rows, [0, 10, 20] * 3 + [0, 0, 0], levels=DYML, data=data)
    assert found["values"]["R@1/average"] == 0
    assert found["values"]["AP/average"] == pytest.approx(1 / 2)
    assert found["settings"]["overlap"].startswith("all:")
    assert found["settings"]["queries_in_gallery"]["fine"]["left out"] == 1


def test_dyml_product_gives_hand_computed_values(measured):
    rows = [("test", labels) for labels in [(0, 0), (0, 0), (1, 0), (1, 0)]]
    values = measured("dyml-product", rows, [0, 10, 25, 90])["values"]
    assert values["AP/average"] == pytest.approx(((1 + 1 + 1 / 3 + 1) / 4 + 1) / 2)
    assert 0 < values["ASI"] < 1


def test_gldv2_gives_hand_computed_values(measured):
    """The public query has its two relevant images at ranks 1 and 3, the private query its only one at rank 2."""
    rows = [("query", (-1, -1))] * 2 + [("gallery", (-1, -1))] * 3
    judged = [(f"query/000{q}", f"gallery/000{g}", "relevant") for q, g in ((0, 2), (0, 4), (1, 3), (1, 9))]
    lists = [("public", "query/0000"), ("private", "query/0001")]
    found = measured("gldv2", rows, [0, 26, 10, 20, 30], judgements=judged, lists=lists)
    assert found["values"] == pytest.approx({"mAP@100/public": (1 + 2 / 3) / 2, "mAP@100/private": 1 / 2})
    assert (found["settings"]["public"], found["settings"]["private"]) == (1, 1)
    assert found["settings"]["judgements_left_out"] == 1


def test_h_gldv2_agreed_gives_hand_computed_values(measured):
    """The relevant images show two landmarks of one group. h-gldv2 uses the first, h-gldv2-agreed only the group."""
    rows = [("query", (0, 0)), ("gallery", (0, 0)), ("gallery", (1, 0)), ("gallery", (2, 1))]
    judged = [("query/0000", f"gallery/000{g}", "relevant") for g in (1, 2)]
    task = "h-gldv2", rows, [0, 20, 10, 15]
    assert measured(*task, judgements=judged)["values"]["mAP@100/fine"] == pytest.approx(1 / 3)
    agreed = measured(*task, "--protocol", "h-gldv2-agreed", "--metrics", "AP", judgements=judged)
    assert agreed["values"] == {"AP/coarse": pytest.approx((1 + 2 / 3) / 2)}
    assert agreed["settings"]["queries_without_landmark"] == 1


def test_copydays_gives_hand_computed_values(measured):
    """The original of one copy is at rank 2, after a distractor. The other copy has no original."""
    rows = [("query", (0, -1)), ("query", (5, -1)), ("gallery", (0, -1)), ("gallery", (1, -1))]
    found = measured("copydays", [*rows, ("distractors", (-1, -1))], [0, 50, 20, 80, 10])
    assert found["values"] == {"mAP": pytest.approx((0 + 1 / 2) / 2)}
    assert found["undefined"] == {"mAP": 1}
    assert found["settings"]["queries_without_original"] == 1


def test_faces_protocol_gives_hand_computed_values(measured):
    """Identity 0 has five instances, one of them a template of two frames; identity 1 has four, of five frames."""
    rows = [("test", (identity, -1)) for identity in (*[0] * 6, *[1] * 5, *[2] * 5)]
    lists = [("template/t", "test/0004"), ("template/t", "test/0005")]
    lists += [("template/u", "test/0006"), ("template/u", "test/0007")]
    # the template, the mean of 80 and 100, is at 90 degrees
    found = measured("faces", rows, [0, 1, 2, 2.5, 80, 100, *[3] * 5, 60, 61, 62, 63, 64], lists=lists)
    settings = found["settings"]
    assert (settings["identities_dropped"], settings["instances_dropped"], settings["templates"]) == (1, 4, 2)
    assert settings["queries"] == 5 + 5
    ap_of_four = (1 + 1 + 1 + 4 / 9) / 4  # the template is ranked after the five images of identity 2
    ap_of_template = (1 / 6 + 2 / 7 + 3 / 8 + 4 / 9) / 4
    assert found["values"]["AP/fine"] == pytest.approx((4 * ap_of_four + ap_of_template + 5) / 10)


def test_revisited_gives_hand_computed_values(measured):
    """One query is at 0 degrees. Its ranking is junk, easy, negative, hard. The other query has only junk."""
    rows = [(split, (-1, -1)) for split in ("query", *["gallery"] * 4, "distractors", "query")]
    judged = [("query/0000", f"gallery/{i:04d}", verdict) for i, verdict in ((1, "junk"), (2, "easy"), (4, "hard"))]
    judged.append(("query/0006", "gallery/0001", "junk"))
    found = measured("revisited", rows, [0, 5, 10, 20, 30, 8, 60], judgements=judged)
    values = found["values"]
    assert set(found["undefined"].values()) == {1}
    assert values["mAP/easy"] == values["mP@1/easy"] == 1
    assert values["mAP/hard"] == pytest.approx((0 + 1 / 2) / 2)
    assert values["mAP/medium"] == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    assert values["mP@5/medium"] == pytest.approx(2 / 3)
    assert values["mAP/easy+distractors"] == pytest.approx((0 + 1 / 2) / 2)
    assert found["settings"]["distractors"] == 1
    lacking = measured("revisited", rows, [0, 5, 10, 20, None, None, 60], judgements=judged)
    assert "mAP/hard" not in lacking["values"] or lacking["values"]["mAP/hard"] is None
    assert lacking["settings"]["judgements_left_out"] == 1
    assert lacking["settings"]["without_embeddings"] == {"gallery": 1, "distractors": 1}


def test_holidays_gives_hand_computed_values(measured):
    """Queries 0 and 3 belong to two groups; each query is also a gallery item of the other query."""
    rows = [("test", labels) for labels in [(0, -1), (0, -1), (0, -1), (1, -1), (1, -1)]] + [("distractors", (-1, -1))]
    queries = [("queries", "test/0000"), ("queries", "test/0003")]
    found = measured("holidays", rows, [0, 5, 30, 10, 80, 170], lists=queries)
    # query 0 is followed by 1, 3 (the other query), 2; query 3 by 1, 0, 2 and then its relevant item 4
    first, second = (1 + (1 / 2 + 2 / 3) / 2) / 2, (0 + 1 / 4) / 2
    assert found["values"]["mAP"] == pytest.approx((first + second) / 2)
    assert found["settings"]["protocol"] == "holidays"
    alone = measured("holidays", rows, [None, 5, 30, 10, 80, None], lists=queries)  # a corrupt query has no embedding
    assert alone["values"]["mAP"] == pytest.approx((0 + 1 / 3) / 2)
    assert alone["settings"]["without_embeddings"] == {"test": 1, "distractors": 1}


def test_ukbench_gives_hand_computed_values(measured):
    """There are two objects. The last image of the first object is near the images of the second object."""
    found = measured("ukbench", [("test", (i // 4, -1)) for i in range(8)], [0, 1, 2, 83, 80, 81, 82, 84.5])
    first = (3 + 3 + 3 + 1) / 4
    second = 3  # each of 80, 81, 82 and 84.5 has 83 in its first four, instead of its farthest image
    assert found["values"] == {"N-S": pytest.approx((first + second) / 2)}


# -- refusals ---------------------------------------------------------------------------------------------------------

PAIR = [("query", (-1, -1)), ("gallery", (-1, -1))]
ODD = [("query/0000", "gallery/0001", "good")]
TWICE = [("query/0000", "gallery/0001", verdict) for verdict in ("easy", "hard")]


@pytest.mark.parametrize(
    ("protocol", "rows", "judgements", "flags", "said"),
    [
        ("leave-one-out", [("test", (0, 0))], (), (), "no query has a relevant item"),
        ("query-gallery", [("query", (0, 0)), ("gallery", (1, 1))], (), (), "no query has a relevant item"),
        ("query-gallery", PAIR, (), (), "have no labelled level in common"),
        ("revisited", [("query", (0, 0)), ("test", (0, 0))], (), (), "needs the split gallery"),
        ("revisited", PAIR, (), (), "reads judgements.parquet"),
        ("revisited", PAIR, ODD, (), "verdict 'good'"),
        ("revisited", PAIR, TWICE, (), "twice"),
        ("copydays", PAIR, (), ("--protocol", "chess"), "no protocol 'chess'"),
        ("copydays", PAIR, (), ("--levels", "fine"), "a protocol determines the levels"),
        ("copydays", PAIR, (), ("--metrics", "AP"), "measures only"),
        ("", PAIR, (), (), "names no protocol"),
        ("classification", PAIR, (), (), "needs the split val"),
        ("faces", [("test", (0, -1))] * 4, (), (), "has 5 instances"),
        ("vehicleid", [("test", (0, -1))] * 2, (), (), "reads lists.parquet"),
    ],
)
def test_command_refuses_dataset_without_the_data_that_its_protocol_needs(
    measured, protocol, rows, judgements, flags, said
):
    assert said in measured(protocol, rows, range(len(rows)), *flags, judgements=judgements)


def test_command_refuses_embeddings_without_a_split_of_the_protocol(measured):
    assert "no embedding of the split gallery" in measured("copydays", PAIR, [0, None])


def test_every_protocol_is_documented_and_complete():
    guide = (ROOT / "docs/reference/protocols.md").read_text(encoding="utf-8")
    for name in PROTOCOLS:
        protocol = protocol_of(name)
        assert callable(protocol.function())
        assert protocol.printed
        assert f"`{name}`" in guide
        assert set(protocol.searched(protocol.wanted([*protocol.splits, *protocol.further])))
        for value in protocol.printed:
            value_parts(value)
