import hashlib
import json

import pytest

from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig, ReviewConfig, ScrapeConfig
from hgld.pipelines.hierarchy.provenance import (
    complete_provenance,
    provenance,
    read_provenance,
)

ENCODER = {"name": "lexical", "key": "k", "dim": 5, "templates": []}


def facts_of(root, tiny_stages, table, **options):
    config = BuildConfig("landmarks", (("train", table),), embed=EmbedConfig("lexical"), **options)
    stages = list(tiny_stages(root).values())
    return stages, provenance(stages, [("landmarks/train", table)], config, ENCODER)


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "somewhere" / "train.csv"
    file.parent.mkdir()
    file.write_text("landmark_id,category\n")
    return file


def test_inputs_outputs_and_counts_are_stated(tmp_path, tiny_stages, table):
    stages, facts = facts_of(tmp_path / "a", tiny_stages, table)
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    assert facts["inputs"] == [{"role": "landmarks/train", "file": "train.csv", "bytes": 21, "sha256": digest}]
    assert facts["stages"]["clean"]["dropped"] == {"missing": 1, "no-item": 1, "several-names": 1}
    assert facts["seeds"] == {"cluster": 0}
    whole = complete_provenance(facts, stages, {"x.csv": table})
    assert whole["outputs"]["x.csv"]["sha256"] == digest
    assert set(whole["times"]) == {"scrape", "clean", "embed", "cluster", "toplevel", "review"}


def test_only_times_differ_between_two_builds_and_no_place_is_told(tmp_path, tiny_stages, table):
    private = {
        "scrape": ScrapeConfig(contact="me@example.org", rate=1.0),
        "review": ReviewConfig((tmp_path / "decisions.yaml",)),
    }
    one, two = (
        complete_provenance(facts, stages, {})
        for stages, facts in (
            facts_of(tmp_path / "a", tiny_stages, table),
            facts_of(tmp_path / "b", tiny_stages, table, **private),
        )
    )
    del one["times"], two["times"]
    assert json.dumps(one) == json.dumps(two)
    assert str(tmp_path) not in json.dumps(two)
    assert "example.org" not in json.dumps(two)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_torn_provenance_is_none(tmp_path, text):
    (tmp_path / "provenance.json").write_text(text)
    assert read_provenance(tmp_path) is None
    assert read_provenance(tmp_path / "nowhere") is None
