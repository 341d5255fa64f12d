"""Levels of a hierarchy build are joined with the classes of any dataset."""

import pytest

from hgld.errors import ConfigError, TableError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.config import SourceConfig
from tests.rows import each_row

LABELS = """id,name,group,top
n1,red apple,apple,plant
n2,green apple,apple,plant
7,oak,tree,plant
n4,Blue  Whale,whale,
c1,crane,bird,animal
c2,crane,machine,tool
"""


def written(folder, text, name="labels.csv"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def images(folder, *classes):
    rows = [f"{i}.jpg,{name},old" for i, name in enumerate(classes)]
    return written(folder, "\n".join(["path,kind,coarse", *rows]), "table.csv") / "table.csv"


def read(tmp_path, *classes, labels=LABELS, **options):
    given = {"levels": ("kind",), **options}
    table = images(tmp_path / "images", *classes)
    return read_release("manifest", table, SourceConfig(labels=written(tmp_path / "build", labels), **given))


def test_classes_get_the_levels_of_a_build_by_id_or_name(tmp_path):
    found = read(tmp_path, "red apple", "n2", "7", "blue_whale", "RED APPLE", "")
    assert found.levels == ("kind", "group", "top")
    assert found.items.select(found.levels).rows() == [
        ("red apple", "apple", "plant"),
        ("n2", "apple", "plant"),
        ("7", "tree", "plant"),
        ("blue_whale", "whale", None),
        ("RED APPLE", "apple", "plant"),
        (None, None, None),
    ]
    assert not found.notes
    assert found.sources[-1].name == "labels.csv"


def test_classes_that_the_build_lacks_are_kept_and_reported(tmp_path):
    found = read(tmp_path, "oak", "zebra", "zebra", "okapi", "crane", "c2")
    assert found.items["group"].to_list() == ["tree", None, None, None, None, "machine"]
    assert found.notes == (
        "2 of 5 classes with 3 images have no labels from labels.csv (not in the build): okapi, zebra.",
        (
            "1 of 5 classes with 1 images have no labels from labels.csv (names several items with different labels): "
            "crane."
        ),
    )


@each_row(
    ("options", "error", "said"),
    [
        ({"labels": "id,name\n1,oak\n"}, TableError, "has the columns id, name; expected id, name and levels"),
        ({"labels": "id,name,group\n1,elm\n"}, TableError, "2 cells where the header has 3"),
        ({"labels": "id,name,group\n1,elm,tree\n"}, TableError, "none of its ids and names is one of the 1 classes"),
        ({"labels": "id,name,kind\n1,oak,tree\n"}, ConfigError, "are both called 'kind'"),
    ],
)
def test_labels_of_another_build_are_refused(tmp_path, options, error, said):
    with pytest.raises(error) as refused:
        read(tmp_path, "oak", **options)
    assert said in str(refused.value)
