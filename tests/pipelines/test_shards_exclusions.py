"""``hgld build-shards --exclude`` drops, counts and lists the excluded items."""

from dataclasses import replace

import polars as pl
import pytest

from hgld.errors import TableError
from hgld.pipelines.shards.catalog import Catalog
from hgld.pipelines.shards.catalog_changes import without_excluded
from tests.pipelines.toy_release import LEVELS, ToyRelease


@pytest.fixture
def catalog(tmp_path) -> Catalog:
    release = ToyRelease.make()
    return Catalog("toy", LEVELS, release.items(), release.write(tmp_path / "images"))


def listed(tmp_path, text: str):
    path = tmp_path / "exclude.csv"
    path.write_text(text)
    return path


def test_excluded_items_are_dropped_with_their_reason_and_counted(catalog, tmp_path):
    file = listed(tmp_path, 'probability,key,reason\n0.9,2/1,"wrong-label, perhaps"\n.8,0/0,\n.7,9/9,x\n.6,2/1,again\n')
    judged = pl.DataFrame({"query": ["2/1", "1/0"], "item": ["1/1", "1/2"], "verdict": ["good", "good"]})
    lists = pl.DataFrame({"list": ["a", "a"], "key": ["0/0", "1/0"]})
    made = without_excluded(replace(catalog, judgements=judged, lists=lists), file)
    assert set(catalog.items["key"]) - set(made.items["key"]) == {"2/1", "0/0"}
    assert file in made.sources
    assert made.lists is not None
    assert made.judgements is not None
    assert made.dropped is not None
    assert made.lists["key"].to_list() == ["1/0"]
    assert made.judgements["query"].to_list() == ["1/0"]
    assert set(made.dropped.select("reason", "detail").rows()) == {
        ("excluded", "2/1: wrong-label, perhaps"),
        ("excluded", "0/0"),
    }
    assert made.notes == (
        "2 items are excluded because exclude.csv lists them.",
        "1 keys of exclude.csv are not items of this build: '9/9'.",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("item\n2/1\n", "lacks the column 'key'"),
        ("key,reason\n2/1,x\n ,y\n", "line 3: an empty key"),
        ("key\nmine/1\n", "none of its 1 keys is an item of 'toy'; expected keys such as '0/0'"),
        ("key\n" + "\n".join(ToyRelease.make().items()["key"]), "excludes all"),
    ],
)
def test_invalid_exclusion_list_is_refused(catalog, tmp_path, text, said):
    with pytest.raises(TableError) as refused:
        without_excluded(catalog, listed(tmp_path, text))
    assert said in str(refused.value)
    assert "exclude.csv" in str(refused.value)
