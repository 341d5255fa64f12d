"""A build under decisions that were made on the page: it has what the page showed, bit for bit each time."""

from dataclasses import replace

import polars as pl
import pytest

from hgld.pipelines.hierarchy.build import build_hierarchy
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig, ReviewConfig
from hgld.pipelines.hierarchy.review.decisions.journal import Journal
from hgld.pipelines.hierarchy.review.learning.teaching import Teacher
from hgld.pipelines.hierarchy.review.state import Review
from hgld.pipelines.hierarchy.review.tables import BuildTables
from hgld.pipelines.hierarchy.review.thumbnails import Thumbnails
from hgld.pipelines.stage import sha256_of, silent


@pytest.mark.slow
def test_the_build_has_what_the_page_showed(tmp_path):
    config = BuildConfig("sample", embed=EmbedConfig("lexical", cache=tmp_path / "cache"))
    build_hierarchy(tmp_path / "before", config, silent)
    tables, file = BuildTables(tmp_path / "before"), tmp_path / "ada.yaml"
    journal = Journal(file, "ada", "annotator")
    review = Review(tables, journal, (), Thumbnails(None), Teacher.of(tmp_path / "before"))
    for turn in range(6):
        proposal = [p for p in review.queue(0, 10)["proposals"] if len(p["names"]) > 1][turn % 3]
        one, two = proposal["names"][:2]
        elsewhere = {"action": "move", "names": [one], "to": review.groups(0)["rows"][3][0]}
        review.decide([review.answer(proposal["id"], "accept", [one, two], [elsewhere])], review.revision)
    names, labels = [row[0] for row in review.names(0)["rows"]], [row[0] for row in review.groups(0)["rows"]]
    (landmark,) = tables.landmarks(names[9], 0, 1)
    for last in (
        {"action": "new", "names": names[:3], "to": "made up"},
        {"action": "rename", "group": "made up", "to": "made"},
        {"action": "merge", "groups": labels[:2], "to": labels[1]},
        {"action": "item", "split": landmark["split"], "id": landmark["id"], "group": "made"},
    ):
        review.decide([[last]], review.revision)
    shown = {row[0]: row[5] for row in review.names(0)["rows"]}

    reviewed = replace(config, review=ReviewConfig((file,)))
    one, two = (build_hierarchy(tmp_path / name, reviewed, silent) for name in ("one", "two"))
    built = dict(pl.read_parquet(one.stages["review"].path("names.parquet")).select("name", "label").iter_rows())
    assert one.stages["review"].result.details["still_wrong"] == review.snapshot()["progress"]["still_wrong"]
    assert built == {name: label for name, label in shown.items() if label is not None}
    tops = pl.read_parquet(one.stages["review"].path("groups.parquet")).select("label", "top").rows()
    assert sorted(tops) == sorted((label, top) for label, top, _ in review.groups(0)["rows"])
    assert one.stages["review"].result.counts["taught elsewhere"] > 0
    rows = pl.read_parquet(one.stages["assign"].path("landmarks.parquet"))
    key = (pl.col("split") == landmark["split"]) & (pl.col("landmark_id") == landmark["landmark_id"])
    assert rows.filter(key)["hierarchical_label"].to_list() == ["made"]
    for name, path in one.files.items():
        if name.endswith((".csv", ".parquet", ".html")):
            assert sha256_of(path) == sha256_of(two.files[name]), name
