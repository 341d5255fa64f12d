"""The command ``hgld build-shards``: its text, JSON and errors."""

import json
from pathlib import Path

import polars as pl
import pytest

from hgld import Hierarchy
from hgld.data.format import CARD, CROISSANT, HIERARCHY
from hgld.pipelines.shards.cards import remake_card
from tests.fake_releases.__main__ import maker
from tests.pipelines.tiny_shards import findings
from tests.pipelines.toy_release import LEVELS, ToyRelease


@pytest.fixture
def labels(tmp_path):
    release = ToyRelease.make()
    release.write(tmp_path / "images")
    table = release.items().select("file", *LEVELS).rename({"file": "path"})
    table.write_csv(tmp_path / "labels.csv")
    return tmp_path / "labels.csv"


def given(labels: Path, out: Path) -> list[object]:
    levels = ",".join(LEVELS)
    images = labels.parent / "images"
    arguments = ["manifest", "--source", labels, "--images", images, "--levels", levels]
    return [*arguments, "--test-classes", 0.4, "--seed", 1, "--workers", 1, "--out", out]


def test_name_licence_and_level_names_are_in_card_and_croissant(labels, tmp_path, output, refusal):
    table = pl.read_csv(labels).rename({LEVELS[0]: "sku", LEVELS[1]: "size"})
    table.write_csv(labels)
    own = ["manifest", "--source", labels, "--images", labels.parent / "images", "--workers", 1]
    own += ["--name", "fruit 2026", "--license", "CC-BY-4.0", "--description", "Fruit of *our* garden."]
    said = refusal("build-shards", *own, "--levels", "sku,size", "--out", tmp_path / "out")
    assert "levels are ['sku', 'size']; expected" in said
    shown = output("build-shards", *own, "--levels", "fine=sku,group=size", "--out", tmp_path / "out", "--json")
    assert (json.loads(shown)["name"], json.loads(shown)["levels"]) == ("fruit 2026", ["fine", "group"])
    hierarchy = Hierarchy.from_parquet(tmp_path / "out" / HIERARCHY)
    assert (hierarchy.levels, {*hierarchy.names[1]}) == (("fine", "group"), {*table["size"].drop_nulls()})
    for remade in (False, True):  # hgld card uses the options that the build stored
        if remade:
            remake_card(tmp_path / "out")
        card = (tmp_path / "out" / CARD).read_text()
        assert "pretty_name: fruit 2026\n" in card
        assert "license: cc-by-4.0\n" in card
        assert "\n# fruit 2026, as shards\n\nFruit of \\*our\\* garden\\.\n" in card
        described = json.loads((tmp_path / "out" / CROISSANT).read_text())
        assert (described["license"], described["description"]) == ("CC-BY-4.0", "Fruit of *our* garden.")
    assert findings(tmp_path / "out").is_empty()


def test_levels_named_like_internal_columns_can_be_built(labels, tmp_path, output):
    names = ("group", "len", "first", "member", "label")
    table = pl.read_csv(labels)
    table.with_columns(table[LEVELS[0]].alias(f"of {name}") for name in names).write_csv(labels)
    own = ["manifest", "--source", labels, "--images", labels.parent / "images", "--workers", 1, "--test-classes", 0.4]
    levels = ",".join([f"{name}=of {name}" for name in names] + [f"parent={LEVELS[1]}"])
    output("build-shards", *own, "--levels", levels, "--out", tmp_path / "out", said="")
    assert findings(tmp_path / "out").is_empty()


def test_counts_that_differ_from_the_card_are_shown(tmp_path, output):
    maker("sop")(tmp_path / "sop", 0)
    shown = output("build-shards", "sop", "--source", tmp_path / "sop", "--out", tmp_path / "out", "--workers", 1)
    assert "differences from the published counts:" in shown
    assert "train, items: 59,551 published" in shown


REFUSED = [  # (option, value, expected words of the error)
    ("--workers", "-1", "--workers is -1"),
    ("--name", "a/b", "--name is 'a/b'; expected"),
    ("--license", "a\x1b[2J", "--license is 'a\\x1b[2J'; expected"),
    ("--description", "a\nb", "--description is 'a\\nb'; expected"),
    ("--levels", f"file={LEVELS[0]}", "a level cannot be called file"),
]


@pytest.mark.parametrize(("option", "value", "said"), REFUSED)
def test_invalid_option_exits_with_code_2_and_writes_nothing(labels, tmp_path, hgld, option, value, said):
    arguments = given(labels, tmp_path / "out")
    if option in arguments:
        arguments[arguments.index(option) + option.startswith("--")] = value
    else:
        arguments += [option, value]
    code, _, errors = hgld("build-shards", *arguments)
    assert (code, (tmp_path / "out").exists()) == (2, False)
    assert said in errors
