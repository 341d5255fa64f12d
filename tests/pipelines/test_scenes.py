"""Drawn landmarks: the same bytes every time, one's own shape in every picture, kinds that differ."""

import numpy as np
import polars as pl
import pytest

from hgld.errors import ConfigError
from hgld.pipelines.demo import painters
from hgld.pipelines.demo.drawings import PAINTERS, Place, choose_landmarks, draw, painter_of, write_drawings

KINDS = [words.split()[0] for words, _ in PAINTERS]


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_a_function_of_its_arguments(kind):
    place = Place(f"a {kind}", (kind,))
    first = draw(place, 0)
    assert first.shape == (64, 64, 3)
    assert first.dtype == np.uint8
    assert first.std() > 10
    assert np.array_equal(first, draw(place, 0))
    others = [draw(place, 1), draw(Place(f"another {kind}", (kind,)), 0), draw(place, 0, seed=1)]
    assert not any(np.array_equal(first, other) for other in others)
    assert draw(place, 0, size=32).shape == (32, 32, 3)


def test_the_finest_kind_that_is_known_decides():
    assert painter_of(("Lutheran church", "body of water")) is painters.church
    assert painter_of(("something odd", "body of water")) is painters.lake
    assert painter_of(("something odd",)) is painters.classical
    assert painter_of(("lighthouse",)) is painters.tower


@pytest.mark.parametrize(
    ("kind", "painter"),
    [
        ("canyon", painters.mountain),
        ("ice cap", painters.mountain),
        ("columnar basalt", painters.mountain),  # "column" is a part of its name, and no word of it
        ("hot spring", painters.lake),
        ("railway bridge (1884)", painters.bridge),
        ("sculpture", painters.statue),
        ("equestrian statue", painters.statue),
        ("triumphal arch", painters.arch),
        ("sculpture garden", painters.park),
        ("college of the University of Cambridge", painters.block),  # no bridge either
    ],
)
def test_a_kind_is_known_by_whole_words(kind, painter):
    assert painter_of((kind, "natural geographic entity")) is painter


def labels():
    groups = ["church", "lake", "castle"]
    return pl.DataFrame(
        {
            "landmark_id": range(12),
            "category": [f"http://commons.wikimedia.org/wiki/Category:Place_{i}" for i in range(12)],
            "supercategory": [groups[i % 3] for i in range(12)],
            "hierarchical_label": [groups[i % 3] for i in range(12)],
            "natural_or_human_made": [
                None if i == 11 else "natural" if i % 3 == 1 else "human-made" for i in range(12)
            ],
        }
    )


def test_landmarks_are_chosen_evenly_over_groups():
    chosen = choose_landmarks(labels(), 6)
    assert chosen.group_by("hierarchical_label").len()["len"].to_list() == [2, 2, 2]
    assert chosen["landmark_id"].is_sorted()
    assert chosen.equals(choose_landmarks(labels(), 6))
    with pytest.raises(ConfigError, match="12 landmarks are asked for, and 11"):
        choose_landmarks(labels(), 12)


def test_drawings_come_with_their_table(tmp_path):
    table = write_drawings(choose_landmarks(labels(), 6), tmp_path / "a", images=3)
    again = write_drawings(choose_landmarks(labels(), 6), tmp_path / "b", images=3)
    rows = pl.read_csv(table)
    assert rows.columns == ["path", "landmark", "hierarchical_label", "natural_or_human_made"]
    assert len(rows) == 18
    assert rows["landmark"][0].startswith("Place ")
    for path in rows["path"]:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    assert table.read_bytes() == again.read_bytes()
