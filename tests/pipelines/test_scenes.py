"""Drawings of landmarks are reproducible, and differ by landmark, image and seed."""

import polars as pl
import pytest

from hgld.errors import ConfigError
from hgld.pipelines.demo.dataset import DrawnConfig, choose_landmarks, write_drawings
from hgld.pipelines.stage import silent


def labels():
    groups = ["church", "lake", "castle"]
    tops = ["human-made", "natural", "human-made"]
    return pl.DataFrame(
        {
            "landmark_id": range(12),
            "category": [f"http://commons.wikimedia.org/wiki/Category:Place_{i}" for i in range(12)],
            "supercategory": groups * 4,
            "hierarchical_label": groups * 4,
            "natural_or_human_made": [*tops * 3, *tops[:2], None],
        }
    )


def test_landmarks_are_sampled_evenly_over_groups():
    chosen = choose_landmarks(labels(), 6)
    assert chosen.group_by("hierarchical_label").len()["len"].to_list() == [2, 2, 2]
    assert chosen["landmark_id"].is_sorted()
    assert chosen.equals(choose_landmarks(labels(), 6))
    with pytest.raises(ConfigError, match="12 landmarks were requested, but only 11"):
        choose_landmarks(labels(), 12)


def test_drawings_and_their_table_are_reproducible(tmp_path):
    for name in ("a", "b"):
        write_drawings(choose_landmarks(labels(), 6), tmp_path / name, DrawnConfig(images=3), silent)
    rows = pl.read_csv(tmp_path / "a" / "labels.csv")
    assert rows.columns == ["path", "landmark", "hierarchical_label", "natural_or_human_made"]
    assert len(rows) == 18
    assert rows["landmark"][0].startswith("Place ")
    for path in ("labels.csv", *rows["path"]):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
