"""Drawings of landmarks are reproducible, and differ by landmark, image and seed."""

import numpy as np
import polars as pl
import pytest

from hgld.errors import ConfigError
from hgld.pipelines.demo.dataset import DrawnConfig, choose_landmarks, write_drawings
from hgld.pipelines.demo.drawings import PAINTERS, draw
from hgld.pipelines.stage import silent


@pytest.mark.parametrize("kind", [words.split()[0] for words, _ in PAINTERS])
def test_drawing_depends_only_on_its_arguments(kind):
    first = draw(f"a {kind}", (kind,), 0)
    assert first.shape == (64, 64, 3)
    assert first.dtype == np.uint8
    assert first.std() > 10
    assert np.array_equal(first, draw(f"a {kind}", (kind,), 0))
    others = [draw(f"a {kind}", (kind,), 1), draw("another", (kind,), 0), draw(f"a {kind}", (kind,), 0, seed=1)]
    assert not any(np.array_equal(first, other) for other in others)
    assert draw(f"a {kind}", (kind,), 0, size=32).shape == (32, 32, 3)


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
    with pytest.raises(ConfigError, match="12 landmarks are asked for, and 11"):
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
