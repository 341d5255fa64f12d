"""The files of a dataset are read back unchanged, and hostile files are refused."""

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.data import format as files
from hgld.data import index as index_file
from hgld.errors import InputError
from tests.rows import each_row, refused

LEVELS = ("species", "family")
SHA = "0" * 64


def index_rows(**columns):
    rows = {
        "key": ["a/1", "a/2", "b"],
        "shard": ["train-000000.tar", "train-000000.tar", "test-000000.tar"],
        "offset": [512, 2048, 512],
        "size": [100, 200, 300],
        "species": [0, 0, -1],
        "family": [0, 0, 1],
        "split": ["train", "train", "test"],
        "suffix": ["jpg", "png", "jpg"],
        "width": 10,
        "height": 20,
        "orientation": [1, 6, 1],
        "sha256": SHA,
        "duplicate_of": [None, "a/1", None],
        "class_run": 0,
    }
    return pl.DataFrame(rows | columns)


SPLIT = {"items": 1, "shards": 1, "unlabelled": 0, "classes": {"species": 1, "family": 1}}
SHARD = {"name": "x-000000.tar", "split": "x", "items": 1, "bytes": 1, "sha256": SHA}
BOXES = {"box_left": [0, None, 3], "box_top": [0, None, 3], "box_right": [9, None, 9], "box_bottom": [9, None, 9]}


def manifest():
    return files.Manifest(
        name="birds",
        levels=LEVELS,
        group_size=4,
        splits=index_file.split_facts(index_rows(), LEVELS),
        shards=(files.ShardFacts("test-000000.tar", "test", 1, 3072, SHA),),
        files={files.INDEX: {"bytes": 10, "sha256": SHA}},
        rejected={"truncated": 2},
        provenance={"seeds": {"seed": 0}},
    )


# -- names ------------------------------------------------------------------------------------------------------------


UNSAFE = ["", "/a", "a/", "a//b", "../a", "a/..", "a.jpg", "a b", "a\n", "é", "a\\b", "x" * 201, "a\0", "C:a", "\u0661"]


def test_keys_are_safe_as_file_names_or_refused():
    assert all(map(files.is_safe_key, ["a", "a/b/c", "A-b_c=1/2", "x" * 200]))
    assert not any(map(files.is_safe_key, UNSAFE))


test_level_names_that_cannot_be_columns_are_refused = refused(
    lambda levels: files.check_levels(levels, "here"),
    [[], ["a", "a"], ["key"], ["box_left"], [""], ["a\nb"]],
    InputError,
    "levels are",
)


# -- item JSON --------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(st.tuples(st.integers(-1, 2**24 - 1), TEXTS), min_size=1, max_size=5), TEXTS, st.booleans())
def test_item_json_is_read_back(classes, source, with_levels):
    labels, names = [label for label, _ in classes], [name for _, name in classes]
    levels = [f"level_{i}" for i in range(len(classes))] if with_levels else []
    facts = files.parse_item_json(files.item_json(labels, names, "train", source, levels), "x.json")
    assert facts == files.ItemFacts(tuple(labels), tuple(names), "train", source, tuple(levels))


@each_row(("box", "read"), [((1, 2, 3, 4), (1, 2, 3, 4)), ((), None)])
def test_item_json_keeps_the_box_and_writes_unknown_names_as_empty(box, read):
    data = files.item_json([-1], [None], "query", "", ["landmark"], box)
    facts = files.parse_item_json(data, "x.json")
    assert (facts.box, facts.boxed, facts.names) == (read, True, ("",))
    assert list(json.loads(data)) == ["labels", "names", "split", "source", "levels", "box"]


SOUND = {"labels": [1], "names": ["a"], "split": "train", "source": "", "levels": ["species"]}


test_item_json_with_invalid_fields_is_refused = refused(
    lambda change: files.parse_item_json(
        change if isinstance(change, bytes) else json.dumps(SOUND | change).encode(), "x.json"
    ),
    [
        ({"labels": [-2]}, "'labels'"),
        ({"labels": [True]}, "'labels'"),
        ({"names": ["a", "b"]}, "'names'"),
        ({"split": "../train"}, "'split'"),
        ({"names": ["\ud800"]}, "'names'"),
        ({"source": 3}, "'source'"),
        ({"levels": ["a", "b"]}, "'levels'"),
        ({"box": [0, 0, 0, 5]}, "'box'"),
        ({"levels": ["sha256"]}, "levels are"),
        (b"[]", "holds list"),
        (b"\xff", "not valid JSON"),
        (b" " * 70_000, "more than"),
    ],
    InputError,
)


# -- index ------------------------------------------------------------------------------------------------------------


@each_row("boxes", [{}, BOXES])
def test_index_is_read_back_without_excluded_columns(tmp_path, boxes):
    path = tmp_path / files.INDEX
    index_file.write_index(index_rows(**boxes), path, LEVELS)
    for source in (path, path.read_bytes()):
        frame, levels = index_file.read_index(source)
        assert levels == LEVELS
        assert frame.schema == index_file.index_schema(LEVELS, boxes=bool(boxes))
        assert frame.to_dicts() == index_rows(**boxes).to_dicts()
    part, _ = index_file.read_index(path, leave_out=("sha256", "duplicate_of"))
    assert set(frame.columns) - set(part.columns) == {"sha256", "duplicate_of"}


def read_changed_index(change, *, tmp_path):
    path = tmp_path / files.INDEX
    index_file.write_index(index_rows(**change), path, LEVELS)
    index_file.read_index(path)


test_invalid_index_rows_are_refused = refused(
    read_changed_index,
    [
        ({"key": ["a", "../b", "c"]}, "row 1: 'key' is '../b'; expected letters"),
        ({"key": ["a", "a", "c"]}, "key 'a' is listed more than once"),
        ({"shard": ["train-000000.tar", "../train-000000.tar", "test-000000.tar"]}, "row 1: .*the name of a shard"),
        ({"offset": [0, 0, -1]}, "row 2: 'offset' is -1; expected at least 0"),
        ({"species": [0, -2, 1]}, "row 1: 'species' is -2; expected at least -1"),
        ({"orientation": [1, 9, 1]}, "row 1: 'orientation' is 9; expected EXIF's 1 to 8"),
        ({"split": ["train", "tr ain", "test"]}, "row 1: 'split' is 'tr ain'"),
        ({"species": [0, None, 1]}, "species have empty cells"),
    ],
    InputError,
)


STATED = {"schema_version": "3", "levels": '["species", "family"]'}


def read_index_with_metadata(metadata, *, tmp_path):
    index_rows().write_parquet(tmp_path / "x", metadata={f"hgld.{name}": text for name, text in metadata.items()})
    index_file.read_index(tmp_path / "x")


test_indexes_with_invalid_metadata_or_column_types_are_refused = refused(
    read_index_with_metadata,
    [
        ({"schema_version": "2", "levels": "[]"}, "schema version is '2'"),
        ({"schema_version": "3", "levels": "[1]"}, "not a JSON list of level names"),
        (STATED, r"'species' \(Int64\)"),
    ],
    InputError,
)


test_writing_an_index_needs_all_columns_and_values_in_range = refused(
    lambda index, *, tmp_path: index_file.write_index(index, tmp_path / "x", LEVELS),
    [
        (index_rows().drop("sha256", "class_run"), r"do not fit an index .*sha256"),
        (index_rows(species=[0, 0, 1 << 40]), "do not fit an index"),
    ],
    InputError,
)


def test_columns_of_lists_and_judgements_are_checked(tmp_path):
    path = tmp_path / files.LISTS
    pl.DataFrame({"list": ["small"], "key": ["a/1"]}).write_parquet(path)
    assert index_file.read_table(files.LISTS, path).to_dicts() == [{"list": "small", "key": "a/1"}]
    with pytest.raises(InputError, match="'query'"):
        index_file.read_table(files.JUDGEMENTS, path)


def test_class_runs_are_numbered_per_shard_and_duplicates_refer_to_the_first():
    index = pl.DataFrame(
        {
            "key": list("abcdefg"),
            "shard": ["x.tar"] * 5 + ["y.tar"] * 2,
            "species": [3, 3, -1, -1, 3, 3, 0],
            "sha256": ["p", "q", "p", "r", "s", "p", "t"],
        }
    )
    marked = index_file.with_runs(index, "species")
    assert marked["class_run"].to_list() == [0, 0, 1, 1, 2, 0, 1]
    assert marked["duplicate_of"].to_list() == [None, None, "a", None, None, "a", None]


# -- manifest ---------------------------------------------------------------------------------------------------------


def test_split_facts_count_items_shards_and_classes():
    assert index_file.split_facts(index_rows(), LEVELS) == {
        "test": {"items": 1, "shards": 1, "classes": {"species": 0, "family": 1}, "unlabelled": 1},
        "train": {"items": 2, "shards": 1, "classes": {"species": 1, "family": 1}, "unlabelled": 0},
    }


def test_manifest_is_read_back():
    text = manifest().to_json()
    assert files.Manifest.from_json(text) == files.Manifest.from_json(text.encode()) == manifest()
    assert json.loads(text)["schema_version"] == files.SCHEMA_VERSION


test_manifests_with_invalid_fields_are_refused = refused(
    lambda change: files.Manifest.from_json(
        change if isinstance(change, str) else json.dumps(json.loads(manifest().to_json()) | change)
    ),
    [
        ({"name": 3}, "'name'"),
        ({"protocol": "../up"}, "'protocol'"),
        ({"levels": []}, "levels are"),
        ({"group_size": -1}, "'group_size'"),
        ({"splits": []}, "'splits'"),
        ({"splits": {"a/b": SPLIT}}, "a split has the name 'a/b'"),
        ({"splits": {"train": SPLIT | {"classes": {"species": 1}}}}, "counts classes of the levels"),
        ({"shards": [{"name": "../x-000000.tar", "split": "x"}]}, "'../x-000000.tar'; expected a plain name"),
        ({"shards": [SHARD | {"sha256": "Z"}]}, "'sha256'"),
        ({"files": {"../x": {"bytes": 1, "sha256": SHA}}}, "file name without folders"),
        ({"rejected": {"truncated": "2"}}, "'truncated'"),
        ({"schema_version": 3}, "schema version is 3"),
        ({"shards": [SHARD] * 2}, "listed twice"),
        ("", "not valid JSON"),
    ],
    InputError,
)
