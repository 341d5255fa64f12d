"""The subcommands ``datasets`` and ``card``: text for people and JSON for machines."""

import json

import pytest

from hgld.data.format import Manifest
from hgld.pipelines.shards.cards import load_card, remake_card
from hgld.pipelines.shards.sources import OWN_DATA, SOURCES
from hgld.pipelines.stage import sha256_of
from tests.pipelines.toy_release import bytes_of


def manifest(root):
    return Manifest.from_json((root / "dataset.json").read_bytes())


def rename(root, **facts):
    path = root / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_datasets_command_lists_published_counts(output, json_of):
    out = output("datasets")
    for name in set(SOURCES) - set(OWN_DATA):
        assert f"\n{name} " in out
    assert "train: 59,551 images" in out
    facts = {entry["name"]: entry for entry in json_of("datasets")["datasets"]}
    assert list(facts) == [name for name in SOURCES if name not in OWN_DATA]
    assert facts["sop"]["splits"]["test"] == {"items": "60502", "classes": {"product": "11316", "category": "12"}}
    assert [name for name, entry in facts.items() if entry["download"]] == ["gldv2"]


def test_datasets_command_prints_card_and_download_steps_of_a_dataset(output, refusal, json_of):
    for name in set(SOURCES) - set(OWN_DATA):
        card = load_card(name)
        out = output("datasets", name)
        assert [step for step in card.obtain if step not in out] == []
        assert "## Known problems" in out
        assert "pretty_name" not in out
        assert f"hgld build-shards {name} --source DIR --out OUT" in out
    assert json_of("datasets", "sop")["card"] == load_card("sop").text
    assert "your own images" in refusal("datasets", "manifest")


def test_card_command_rewrites_the_card_and_updates_its_checksum_in_the_manifest(hgld, output, root):
    facts = json.loads((root / "dataset.json").read_text())
    rename(root, provenance=facts["provenance"] | {"notes": ["the release <b>lacks</b> a list"]})
    before = manifest(root).files
    out = output("card", root)
    assert out == f"{root}: wrote README.md, croissant.json.\n"
    after = manifest(root).files
    written = {name: after[name] for name in ("README.md", "croissant.json")}
    assert after == {**before, **written}
    assert all(facts["sha256"] == sha256_of(root / name) for name, facts in written.items())
    assert r"the release \<b\>lacks\</b\> a list" in (root / "README.md").read_text()
    files = bytes_of(root)
    hgld("card", root)
    output("verify", root)
    assert bytes_of(root) == files
    rename(root, name="sop")
    assert remake_card(root) is None  # the levels are not those of the card of sop


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda root: (root / "dataset.json").unlink(), "has no dataset.json"),
        (lambda root: rename(root, files={}), "does not list index.parquet"),
        (lambda root: (root / "index.parquet").write_bytes(b"PAR1"), "not a readable parquet file"),
    ],
)
def test_card_of_a_damaged_dataset_is_refused_and_changes_nothing(refusal, root, damage, said):
    damage(root)
    before = bytes_of(root)
    assert said in refusal("card", root)
    assert bytes_of(root) == before
