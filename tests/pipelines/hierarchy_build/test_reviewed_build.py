"""A build under decisions that were made on the page: it has what the page showed, bit for bit each time."""

from dataclasses import replace

import polars as pl
import pytest

from hgld.pipelines.hierarchy.build import build_hierarchy
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig, ReviewConfig
from hgld.pipelines.stage import sha256_of, silent
from tests.pipelines.reviewed_build import opened


@pytest.mark.slow
def test_the_build_has_what_the_page_showed(tmp_path):
    config = BuildConfig("sample", embed=EmbedConfig("lexical"))
    build_hierarchy(tmp_path / "before", config, silent)
    review, file = opened(tmp_path / "before", learns=True), tmp_path / "before" / "ada.yaml"
    tables = review.tables
    for turn in range(6):
        labels = {row[0]: row[5] for row in review.snapshot()["names"]}
        one, two, *rest = [s for s in review.snapshot()["queue"] if len(s["names"]) > 1][turn % 3]["names"]
        said = [{"action": "accept", "names": [name], "group": labels[name]} for name in rest]
        said.append({"action": "move", "names": [one], "to": list(review.snapshot()["groups"])[3]})
        said.append({"action": "refuse", "names": [two], "group": labels[two]})
        review.decide([said], review.revision)
    rows = review.snapshot()["names"]
    names, touched = [row[0] for row in rows if row[7] is None], {row[5] for row in rows if row[7]}
    labels = [label for label in review.snapshot()["groups"] if label not in touched]
    (landmark,) = tables.landmarks(names[9], 0, 1)
    for last in (
        {"action": "new", "names": names[:3], "to": "made up"},
        {"action": "rename", "group": "made up", "to": "made"},
        {"action": "merge", "groups": labels[:2], "to": labels[1]},
        {"action": "item", "split": landmark["split"], "id": landmark["id"], "group": "made"},
    ):
        review.decide([[last]], review.revision)
    shown = {row[0]: row[5] for row in review.snapshot()["names"]}

    reviewed = replace(config, review=ReviewConfig((file,)))
    one, two = (build_hierarchy(tmp_path / name, reviewed, silent) for name in ("one", "two"))
    built = dict(pl.read_parquet(one.stages["review"].path("names.parquet")).select("name", "label").iter_rows())
    assert one.stages["review"].result.details["still_wrong"] == review.snapshot()["progress"]["still_wrong"]
    assert built == {name: label for name, label in shown.items() if label is not None}
    tops = pl.read_parquet(one.stages["review"].path("groups.parquet")).select("label", "top").rows()
    assert sorted(tops) == sorted((label, top) for label, (top, _) in review.snapshot()["groups"].items())
    assert one.stages["review"].result.counts["taught elsewhere"] > 0
    rows = pl.read_parquet(one.stages["export"].path("landmarks.parquet"))
    key = (pl.col("split") == landmark["split"]) & (pl.col("landmark_id") == landmark["landmark_id"])
    assert rows.filter(key)["hierarchical_label"].to_list() == ["made"]
    for name, path in one.files.items():
        if name.endswith((".csv", ".parquet", ".html")):
            assert sha256_of(path) == sha256_of(two.files[name]), name
