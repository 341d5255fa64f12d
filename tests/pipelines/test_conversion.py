"""Datasets for other tools: what is written, with and without decisions. docs/loops has programs that read it."""

import json
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import hgld
from hgld.cli import main
from hgld.data.index import HIERARCHY
from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy
from hgld.pipelines.conversion import label_studio
from hgld.pipelines.conversion.convert import FORMATS, convert
from hgld.pipelines.conversion.fiftyone import field_names
from hgld.pipelines.conversion.reviewed import verdicts
from hgld.pipelines.hierarchy.review.decisions.decision_files import append_decision, read_decisions
from hgld.pipelines.hierarchy.review.decisions.decisions import Drop, GiveItem, Move, New, Rename, SetTop
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, write_dataset

EVIL = "</script>\"'<&\x07 Chartres"
NAMES = ((EVIL, "moat", "lake", "pond"), ("church", "castle", "water"), ("human-made", "natural"))
TREE = Hierarchy(("fine", "group", "top.of all"), NAMES, (np.array([0, 1, 2, 2]), np.array([0, 0, 1])))
PATHS = [[EVIL, "church", "human-made"], ["moat", "castle", "human-made"], ["lake", "water", "natural"]]
SHOWN = EVIL.replace("\x07", "\N{REPLACEMENT CHARACTER}")
NOW = {"who": "ada", "when": datetime(2026, 11, 22, tzinfo=UTC)}


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Five items: of three classes, one turned and a part of its picture, one without any label."""
    rng = np.random.default_rng(0)
    facts = [
        ((0, 0, 0), {}),
        ((1, 1, 0), {"orientation": 6, "box": (4, 0, 20, 40)}),
        ((2, 2, 1), {}),
        ((-1, -1, -1), {}),
    ]
    items = [Item(labels, "train", jpeg(rng), **more) for labels, more in facts] + [Item((2, 2, 1), "test", jpeg(rng))]
    folder = tmp_path / "data set"
    monkeypatch.setattr(Hierarchy, "from_labels", lambda *_: TREE)
    write_dataset(folder, items, levels=TREE.levels)
    assert Hierarchy.from_parquet(folder / HIERARCHY) == TREE
    return folder


def decided(folder, *decisions):
    for decision in decisions:
        append_decision(folder / "ada.yaml", decision)
    return verdicts(TREE, read_decisions([folder / "ada.yaml"]))


def samples(folder):
    return json.loads((folder / "samples.json").read_text(encoding="utf-8"))["samples"]


def tasks(folder):
    return [task for file in sorted(folder.glob("tasks-*.json")) for task in json.loads(file.read_text("utf-8"))]


def test_fiftyone_gets_a_field_a_level_and_the_pictures(dataset, tmp_path):
    opened, out = hgld.open_dataset(dataset), tmp_path / "out"
    made = convert(opened, out, "fiftyone")
    assert (made.items, made.pictures, made.decided) == (5, 5, 0)
    found = {sample["key"]: sample for sample in samples(out)}
    assert set(found) == set(opened.keys)
    for position, key in enumerate(opened.keys):
        assert (out / found[key]["filepath"]).read_bytes() == opened.read(position)
    first, turned, unlabelled = (found[f"train/000{i}"] for i in (0, 1, 3))
    assert [first[field]["label"] for field in ("fine", "group", "top_of_all")] == PATHS[0]
    assert first["tags"] == ["train"]
    assert not {"fine", "group", "box"} & set(unlabelled)
    assert (turned["metadata"]["width"], turned["metadata"]["height"]) == (32, 40)  # upright
    assert turned["box"]["bounding_box"] == [4 / 32, 0, 16 / 32, 1]
    assert json.loads((out / "metadata.json").read_text())["info"]["fields"]["top.of all"] == "top_of_all"


def test_an_earlier_conversion_is_replaced_when_the_new_one_is_whole(dataset, tmp_path, monkeypatch):
    opened, out = hgld.open_dataset(dataset), tmp_path / "out"
    convert(opened, out, "fiftyone", at="")
    before = (out / "samples.json").read_bytes()
    monkeypatch.setattr(label_studio, "MOST_CHOICES", 1)
    with pytest.raises(ConfigError, match="classes are more than"):
        convert(opened, out, "label-studio", at="")
    assert (out / "samples.json").read_bytes() == before
    monkeypatch.undo()
    convert(opened, out, "label-studio", at="")
    assert sorted(path.name for path in out.iterdir()) == [".hgld-conversion", "config.xml", "tasks-00000.json"]


def test_label_studio_gets_the_tree_and_a_task_an_item(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(label_studio, "_TASKS_A_FILE", 2)
    made = convert(hgld.open_dataset(dataset, "train"), tmp_path / "out", "label-studio", at="https://a.example/x y/")
    assert (made.items, made.pictures) == (4, 0)
    assert not (tmp_path / "out" / "data").exists()
    assert len(list((tmp_path / "out").glob("tasks-*.json"))) == 2
    [taxonomy] = ET.parse(tmp_path / "out" / "config.xml").getroot().iter("Taxonomy")
    paths = {tuple(path) for path in _leaves(taxonomy)}
    assert paths == {("human-made", "church", SHOWN), ("human-made", "castle", "moat")} | {
        ("natural", "water", name) for name in ("lake", "pond")
    }
    first, *_, unlabelled = tasks(tmp_path / "out")
    assert first["data"]["image"] == "https://a.example/x y/train/0000.jpg"
    [answer] = first["predictions"][0]["result"]
    assert answer["value"]["taxonomy"] == [["human-made", "church", SHOWN]]
    assert not {"predictions", "annotations"} & set(unlabelled)


def _leaves(node, path=()):
    for choice in node.findall("Choice"):
        here = (*path, choice.get("value"))
        yield from _leaves(choice, here) if len(choice) else [here]


def test_decisions_stand_beside_what_the_dataset_says(dataset, tmp_path):
    found = decided(
        tmp_path,
        Move(names=("moat",), to="water", **NOW),
        Rename(group="church", to="house of God", **NOW),
        SetTop(group="house of God", top="natural", **NOW),
        GiveItem(split="test", id="test/0004", name="pond", **NOW),
        GiveItem(split="test", id="elsewhere", group="water", **NOW),
        Move(names=("nothing",), to="water", **NOW),
    )
    assert {label: verdict.path for label, verdict in found.of_class.items()} == {
        0: (EVIL, "house of God", "natural"),
        1: ("moat", "water", "natural"),
    }
    assert [miss.entry.number for miss in found.settlement.unmatched] == [6]
    opened = hgld.open_dataset(dataset)
    made = convert(opened, tmp_path / "fo", "fiftyone", at="/pictures/", verdicts=found)
    assert (made.decided, made.dropped, made.elsewhere) == (3, 0, 1)
    by_key = {sample["key"]: sample for sample in samples(tmp_path / "fo")}
    moat, item, other = by_key["train/0001"], by_key["test/0004"], by_key["train/0002"]
    assert moat["filepath"] == "/pictures/train/0001.jpg"
    assert (moat["group"]["label"], moat["reviewed_group"]["label"], moat["decided_by"]) == ("castle", "water", "ada")
    assert "reviewed_fine" not in moat
    assert (item["fine"]["label"], item["reviewed_fine"]["label"], item["tags"]) == (
        "lake",
        "pond",
        ["test", "decided"],
    )
    assert not [name for name in other if name.startswith(("reviewed", "decided"))]
    convert(opened, tmp_path / "ls", "label-studio", at="/pictures/", verdicts=found)
    [task] = [task for task in tasks(tmp_path / "ls") if task["data"]["key"] == "train/0001"]
    assert task["predictions"][0]["result"][0]["value"]["taxonomy"] == [["human-made", "castle", "moat"]]
    assert task["annotations"][0]["result"][0]["value"]["taxonomy"] == [["natural", "water", "moat"]]
    assert "house of God" in (tmp_path / "ls" / "config.xml").read_text()


def test_classes_that_are_dropped_or_form_a_new_group(dataset, tmp_path):
    found = decided(tmp_path, Drop(names=("moat",), **NOW), New(names=("lake", "pond"), to="still water", **NOW))
    assert {label: verdict.path for label, verdict in found.of_class.items()} == {
        1: None,
        2: ("lake", "still water", "natural"),  # as all of its names were
        3: ("pond", "still water", "natural"),
    }
    opened = hgld.open_dataset(dataset)
    assert convert(opened, tmp_path / "fo", "fiftyone", at="", verdicts=found).dropped == 1
    [dropped] = [sample for sample in samples(tmp_path / "fo") if "dropped" in sample["tags"]]
    assert dropped["fine"]["label"] == "moat"
    convert(opened, tmp_path / "ls", "label-studio", at="", verdicts=found)
    assert [task["annotations"] for task in tasks(tmp_path / "ls") if task["data"]["key"] == "train/0001"] == [
        [{"result": [], "was_cancelled": True}]
    ]


def test_the_names_of_a_build_become_texts(tmp_path, capsys):
    build = tmp_path / "build"
    build.mkdir()
    TREE.to_parquet(build / HIERARCHY)
    decided(tmp_path, Move(names=("moat",), to="water", **NOW), Drop(names=("lake",), **NOW))

    def verb(*words):
        with pytest.raises(SystemExit) as stop:
            main(["convert", str(build), "--out", str(tmp_path / "out"), *words])
        return (stop.value.code, *capsys.readouterr())

    code, said, _ = verb("--to", "label-studio", "--decisions", str(tmp_path / "ada.yaml"))
    assert code == 0
    assert "4 names, without pictures" in said
    assert "2 items were decided about, 1 of them dropped" in said
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".hgld-conversion",
        "config.xml",
        "tasks-00000.json",
    ]
    interface = ET.parse(tmp_path / "out" / "config.xml").getroot()
    text, taxonomy = interface
    assert (text.tag, text.attrib) == ("Text", {"name": "text", "value": "$text"})
    assert (taxonomy.tag, taxonomy.get("toName")) == ("Taxonomy", "text")
    groups = {("human-made", "church"), ("human-made", "castle"), ("natural", "water")}
    assert {tuple(path) for path in _leaves(taxonomy)} == groups
    cathedral, moat, lake, pond = tasks(tmp_path / "out")
    assert cathedral["data"] == {"text": EVIL}
    [answer] = cathedral["predictions"][0]["result"]
    assert answer == {
        "from_name": "classes",
        "to_name": "text",
        "type": "taxonomy",
        "value": {"taxonomy": [["human-made", "church"]]},
    }
    assert moat["data"] == {"text": "moat", "decided_by": "ada"}
    assert moat["predictions"][0]["result"][0]["value"] == {"taxonomy": [["human-made", "castle"]]}
    assert moat["annotations"][0]["result"][0]["value"] == {"taxonomy": [["natural", "water"]]}
    assert lake["annotations"] == [{"result": [], "was_cancelled": True}]
    assert "annotations" not in pond

    for words, told in (
        (("--to", "fiftyone"), "holds names and no pictures, and fiftyone shows pictures"),
        (("--to", "label-studio", "--at", "https://a.example/"), "leave --split and --at out"),
        (("--to", "label-studio", "--levels", "fine"), "has one level, fine"),
    ):
        code, _, err = verb(*words)
        assert code == 2
        assert told in " ".join(err.split())


def test_names_keep_what_xml_holds():
    name = "میان\u200cرود \u200eX"  # a zero-width non-joiner, and a mark of the direction
    assert label_studio.taxonomy_path([name, "\ud800\ufffe"]) == ["\ufffd\ufffd", name]


def test_fiftyone_takes_a_folder_of_pictures_and_no_address(dataset, tmp_path, monkeypatch):
    opened = hgld.open_dataset(dataset)
    monkeypatch.chdir(tmp_path)
    convert(opened, tmp_path / "out", "fiftyone", at="pictures")  # of the working directory, not of tmp_path/out
    assert samples(tmp_path / "out")[0]["filepath"] == f"{tmp_path}/pictures/{opened.keys[0]}.jpg"
    with pytest.raises(ConfigError, match="reads pictures from a disk"):
        convert(opened, tmp_path / "out", "fiftyone", at="https://a.example/")


def test_what_cannot_be_converted_is_told(dataset, tmp_path, monkeypatch):
    opened = hgld.open_dataset(dataset)
    with pytest.raises(ConfigError, match="data set is not empty"):
        convert(opened, dataset, "fiftyone")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigError, match="the working directory is in it"):
        convert(opened, Path(), "fiftyone")
    with pytest.raises(ConfigError, match=r"levels a\.b, a b would make the fields a_b, a_b"):
        field_names(("a.b", "a b"))
    one = Hierarchy(("fine",), (("a",),), ())
    with pytest.raises(ConfigError, match="the dataset has one level, fine"):
        verdicts(one, [])
    monkeypatch.setattr(label_studio, "MOST_CHOICES", 8)
    with pytest.raises(ConfigError, match=r"9 classes are more than the 8 .*: --levels group,top\.of all"):
        convert(opened, tmp_path / "out", "label-studio", at="")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tool", FORMATS)
def test_the_verb_says_what_became_of_decisions_and_what_comes_next(dataset, tmp_path, tool, capsys):
    decided(tmp_path, Move(names=("moat",), to="water", **NOW), Move(names=("nothing",), to="water", **NOW))
    out = tmp_path / "out"
    command = ["convert", str(dataset), "--to", tool, "--out", str(out), "--decisions", str(tmp_path / "ada.yaml")]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert not stop.value.code
    told = capsys.readouterr().out
    assert "5 items; 5 pictures written" in told
    assert "1 applied" in told
    assert "ada.yaml entry 2 fits nothing" in told
    assert "Next" in told
    with pytest.raises(SystemExit):
        main([*command[:5], str(tmp_path / "again"), "--json"])
    assert json.loads(capsys.readouterr().out)["items"] == 5
