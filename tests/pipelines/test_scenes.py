"""The landmarks of the demo are sampled evenly over the groups."""

import polars as pl
import pytest

from hgld.errors import ConfigError
from hgld.pipelines.demo.dataset import choose_landmarks


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
