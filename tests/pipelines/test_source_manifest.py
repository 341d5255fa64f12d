"""The user's own images in a table or in folders, and their class-disjoint splits."""

import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.data.format import is_safe_key
from hgld.errors import ConfigError, HierarchyError, InputError, TableError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.config import SourceConfig
from hgld.pipelines.shards.sources.own_images import keys_of_paths, read_own_images
from tests.rows import each_row, refused

ROWS = [
    ("img/a 1.jpg", "tabby", "cat", "pet"),
    ("img/a2.jpg", "siamese", "cat", "pet"),
    ("img/b1.png", "poodle", "dog", "pet"),
    ("img/b2.jpg", "husky", "dog", "pet"),
    ("img/c1.jpg", "", "cow", "farm"),
]
LEVELS = ("fine", "coarse", "kind")


def read(source, name="manifest", **options):
    return read_release(name, source, SourceConfig(**options))


def write_csv(path, rows, columns=("path", *LEVELS)):
    pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row").write_csv(path)
    return path


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "labels.csv", ROWS)


def present(frame: pl.DataFrame | None) -> pl.DataFrame:
    assert frame is not None
    return frame


# -- manifest -------------------------------------------------------------------------------------------------------


def test_table_gives_a_catalog_with_one_column_per_level(table):
    catalog = read(table, levels=LEVELS)
    assert catalog.items.rows() == [
        ("img/a_1", "train", "img/a 1.jpg", "tabby", "cat", "pet"),
        ("img/a2", "train", "img/a2.jpg", "siamese", "cat", "pet"),
        ("img/b1", "train", "img/b1.png", "poodle", "dog", "pet"),
        ("img/b2", "train", "img/b2.jpg", "husky", "dog", "pet"),
        ("img/c1", "train", "img/c1.jpg", None, "cow", "farm"),
    ]
    assert (catalog.root, catalog.sources, present(catalog.dropped).height) == (table.parent, (table,), 0)
    assert read(table, levels=("kind",)).levels == ("kind",)
    assert read(table, levels=LEVELS, images=Path("elsewhere")).root == Path("elsewhere").absolute()


def test_parquet_table_gives_the_same_catalog(table):
    frame = pl.read_csv(table, infer_schema=False).with_columns(number=pl.int_range(pl.len()))
    frame.write_parquet(table.with_suffix(".parquet"))
    one, other = read(table, levels=LEVELS), read(table.with_suffix(".parquet"), levels=LEVELS)
    assert one.items.equals(other.items)
    assert read(table.with_suffix(".parquet"), levels=("number",)).items["number"].to_list() == list("01234")


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@each_row("separator", SEPARATORS)
def test_any_separator_and_encoding_gives_the_same_catalog(tmp_path, separator):
    """Headers have any case, paths may have backslashes, and several words mean unknown."""
    lines = [
        ("File", "Product", "SPLIT"),
        ("a.jpg", "äpfel", "train"),
        ("b\\b.jpg", "nan", "train"),
        (f"{tmp_path}/c.jpg", "", "test"),
        ("d.jpg", "NA", "test"),
        ("e.jpg", "Birne", "test"),
    ]
    text = "\r\n".join(separator.join(cells) for cells in lines)
    for encoding, form in (
        ("utf-8-sig", "UTF-8 with a byte order mark"),
        ("utf-16", "UTF-16"),
        ("latin-1", "Windows-1252"),
        ("utf-8", "UTF-8"),
    ):
        (tmp_path / "t.csv").write_text(text, encoding=encoding)
        catalog = read(tmp_path / "t.csv", levels=("product",))
        assert catalog.items.select("file", "product", "split").rows() == [
            ("a.jpg", "äpfel", "train"),
            ("b/b.jpg", None, "train"),
            ("c.jpg", None, "test"),
            ("d.jpg", None, "test"),
            ("e.jpg", "Birne", "test"),
        ]
        found = read_own_images("manifest", tmp_path / "t.csv", SourceConfig())
        assert found.levels == ("Product",)
        assert found.form == f"{SEPARATORS[separator]} between cells, {form}, paths in 'File'"
    assert read(tmp_path / "t.csv", levels=("fruit=PRODUCT",)).levels == ("fruit",)


def test_path_column_is_found_by_its_name_or_by_existing_files(tmp_path):
    for file in ("b1.jpg", "b2.jpg"):
        (tmp_path / file).touch()
    for columns, rows in (
        (("photo", "shot", "k"), [("a1.jpg", "b1.jpg", "x"), ("a2.jpg", "b2.jpg", "y")]),
        (("size", "File Name", "k"), [("1", "2", "x"), ("3", "4", "y")]),
    ):
        source = write_csv(tmp_path / "t.csv", rows, columns)
        found = read_own_images("manifest", source, SourceConfig(levels=("k",)))
        assert f"paths in {columns[1]!r}" in found.form
    with pytest.raises(ConfigError, match="has the columns path, file, each of which could be"):
        read(write_csv(tmp_path / "t.csv", [("a.jpg", "b.jpg", "x")], ("path", "file", "k")), levels=("k",))


def test_columns_that_form_the_longest_tree_become_levels(tmp_path):
    rows = [
        (f"{i}.jpg", f"kind {i % 12}", f"{i % 12}", f"group {i % 12 // 3}", f"top {i % 12 // 6}", *more)
        for i in range(60)
        for more in [(str(i), f"{i % 12 * 7}", f"{i * 0.25}", f"by {i % 5}", "all", "x" * 100 + str(i % 4), "")]
    ]
    more = ("id", "price", "weight", "photographer", "world", "remark", "empty")
    source = write_csv(tmp_path / "t.csv", rows, ("path", "Species", "number", "Group", "Top", *more))
    found = read_own_images("manifest", source, SourceConfig())
    assert found.levels == ("Species", "Group", "Top")
    assert found.unused == ("number", *more)
    with pytest.raises(ConfigError, match=r"no column of .* looks like classes.*Columns: id, world\..*--levels A,B"):
        read(write_csv(tmp_path / "t.csv", [(r[0], r[5], r[9]) for r in rows], ("path", "id", "world")))
    taken = write_csv(tmp_path / "t.csv", [(r[0], r[1]) for r in rows], ("path", "size"))
    assert read(taken).levels == ("size_level",)


def test_spelling_variants_are_found_and_merged_only_on_request(tmp_path):
    names = ["Granny_Smith", "granny smith", "granny smith", "Gala", "Gala", "gala "]
    source = write_csv(tmp_path / "t.csv", [(f"{i}.jpg", name) for i, name in enumerate(names)], ("path", "apple"))
    found = read_own_images("manifest", source, SourceConfig(levels=("apple",)))
    spellings = [("apple", {"Gala": 2, "gala": 1}), ("apple", {"granny smith": 2, "Granny_Smith": 1})]
    assert sorted(found.spellings, key=str) == spellings
    assert found.items["apple"].n_unique() == 4
    merged = read(source, levels=("apple",), merge_spellings=True)
    assert merged.items["apple"].to_list() == ["granny smith"] * 3 + ["Gala"] * 3


def test_splits_come_from_the_column_split(tmp_path):
    rows = [(*row, split) for row, split in zip(ROWS, ("train", "query", "gallery", "query", "val"), strict=True)]
    source = write_csv(tmp_path / "t.csv", rows, ("path", *LEVELS, "split"))
    assert read(source, levels=LEVELS).items["split"].to_list() == ["train", "query", "gallery", "query", "val"]
    assert len(read(source, levels=LEVELS, splits=("query",)).items) == 2
    with pytest.raises(ConfigError, match="omit --test-classes"):
        read(source, levels=LEVELS, test_classes=0.5)
    with pytest.raises(ConfigError, match="no split 'test'; its splits are gallery, query, train, val"):
        read(source, levels=LEVELS, splits=("test",))


def test_unusable_rows_are_dropped_with_their_line(tmp_path):
    bad = [("", "x", "cat", "pet"), ("../evil.jpg", "x", "cat", "pet"), ("/etc/passwd", "x", "cat", "pet"), ROWS[1]]
    source = write_csv(tmp_path / "t.csv", [*ROWS, *bad])
    catalog = read(source, levels=LEVELS)
    assert len(catalog.items) == len(ROWS)
    assert present(catalog.dropped).rows() == [
        ("", "train", "no path", "row 7"),
        ("../evil.jpg", "train", "unsafe-path", "row 8"),
        ("/etc/passwd", "train", "unsafe-path", "row 9"),
        ("img/a2.jpg", "train", "repeats an earlier row", "row 10"),
    ]


BAD_ROWS = [  # (columns, rows added to ROWS, expected words of the error)
    (LEVELS, [("img/d.jpg", "poodle", "cat", "pet")], r"'poodle' under 'cat' and 'dog'"),
    (
        LEVELS,
        [("./img/a2.jpg", "tabby", "cat", "pet")],
        r"'img/a2\.jpg' has the fine 'siamese' in row 3 and 'tabby' in row 7",
    ),
    *(
        ((*LEVELS, "split"), [(*ROWS[1], split)], r"row 2: split is .* expected a name of letters")
        for split in ("", "../x")
    ),
]


def read_rows(columns, rows, *, tmp_path):
    before = [] if "split" in columns else ROWS
    read(write_csv(tmp_path / "t.csv", [*before, *rows], ("path", *columns)), levels=LEVELS)


test_tables_with_contradictory_rows_are_refused = refused(read_rows, BAD_ROWS, (HierarchyError, TableError))


test_options_that_contradict_the_columns_of_the_table_are_refused = refused(
    lambda columns, options, *, tmp_path: read(write_csv(tmp_path / "t.csv", ROWS, columns), **options),
    [
        (("path", *LEVELS), {"levels": ("fine", "genus")}, "Columns: fine, coarse, kind"),
        (("path", *LEVELS), {"levels": ("fine", "fine")}, "expected different columns"),
        (("path", *LEVELS), {"levels": LEVELS, "labels": Path("x")}, "holds no labels.csv"),
        (("path", *LEVELS), {"levels": LEVELS, "protocol": "chess"}, "no protocol 'chess'"),
        (("path", *LEVELS), {"levels": LEVELS, "protocol": "revisited"}, "needs the columns split .*; easy .*; junk "),
    ],
    ConfigError,
)


def read_content(content, *, tmp_path):
    path = tmp_path / ("t.parquet" if content.startswith(b"PAR1") else "t.csv")
    path.write_bytes(content)
    read(path, levels=("fine",))


test_unreadable_tables_are_refused = refused(
    read_content,
    [
        (b"path,fine\n", "no rows below the header"),
        (b"path,fine\n,x\n", "none of its 1 rows names an image; the first: no path"),
        (b"path,fine\na.jpg\n", "line 2: 1 cells where the header has 2"),
        (b"\xff\xfep\0\xff", "begins like UTF-16"),
        (b"path,path\na.jpg,x\n", "has the column 'path' twice"),
        (b"PK\x03\x04\x14\0", "is a spreadsheet or an archive; .* Save it as CSV"),
        ("path,fine\na.jpg,x\n".encode("utf-32"), "is not text in UTF-8"),
        (b" \n", "is empty"),
        (b"seen,fine\n1,x\n", "has no column that names the image files"),
        (b"PAR1 no", "not a readable parquet file"),
    ],
    (ConfigError, TableError),
)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), unique=True, max_size=20))
def test_keys_made_from_any_paths_are_distinct_and_safe(paths):
    keys = keys_of_paths(paths)
    assert len(set(keys)) == len(paths)
    assert all(map(is_safe_key, keys))
    assert keys == list(reversed(keys_of_paths(paths[::-1])))


# -- folders --------------------------------------------------------------------------------------------------------

TREE = (
    *("farm/cow/zebu/1.jpg", "pet/cat/tabby/1.jpg", "pet/cat/tabby/2.PNG", "pet/dog/husky/1.webp"),
    "pet/dog/poodle/1.jpg",
)


def plant(root, files=TREE):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"not opened here")
    return root


def test_nested_folders_become_levels(tmp_path):
    catalog = read(plant(tmp_path), "folders", levels=LEVELS)
    assert catalog.items.rows()[0] == ("farm/cow/zebu/1", "train", "farm/cow/zebu/1.jpg", "zebu", "cow", "farm")
    assert catalog.items["file"].to_list() == sorted(TREE)
    assert catalog.hierarchy().num_classes == (4, 3, 2)
    assert read(tmp_path, "folders").levels == ("level0", "level1", "level2")


def test_folders_of_uneven_depth_give_unknown_labels_at_missing_levels(tmp_path):
    files = (
        *(f"farm/cow/zebu/{i}.jpg" for i in range(40)),
        *("farm/cow/1.jpg", "farm/pig/1.jpg", "pet/1.jpg", "0.jpg", "a/b/c/d/e/1.jpg"),
    )
    found = read_own_images("folders", plant(tmp_path, files), SourceConfig())
    assert dict(zip(found.items["file"], found.items.select(found.levels).rows(), strict=True)).items() >= {
        ("farm/cow/zebu/0.jpg", ("zebu", "cow", "farm")),
        ("farm/cow/1.jpg", (None, "cow", "farm")),
        ("farm/pig/1.jpg", ("pig", None, "farm")),
        ("pet/1.jpg", ("pet", None, None)),
        ("0.jpg", (None, None, None)),
        ("a/b/c/d/e/1.jpg", ("c", "b", "a")),
    }
    shallow, beside, deep = (
        "2 images in fewer folders, without labels at the levels in between",
        "2 images beside folders of images, without labels at the finest levels",
        "1 images in more folders, of which the inner ones are not levels",
    )
    assert found.form == f"3 folders deep; {shallow}; {beside}; {deep}"
    assert read(tmp_path, "folders", levels=tuple("edcba")).items.filter(file="a/b/c/d/e/1.jpg")["e"][0] == "e"


def test_folders_with_equal_names_under_two_parents_are_two_classes(tmp_path):
    catalog = read(plant(tmp_path, (*TREE, "farm/cow/tabby/1.jpg")), "folders", levels=LEVELS)
    assert set(catalog.items["fine"]) >= {"farm/cow/tabby", "pet/cat/tabby"}
    assert set(catalog.items["coarse"]) == {"cat", "cow", "dog"}


def test_folders_named_like_splits_become_splits(tmp_path):
    plant(tmp_path, [f"{split}/{file}" for split in ("train", "test") for file in TREE])
    catalog = read(tmp_path, "folders", levels=LEVELS)
    assert dict(catalog.items.group_by("split").len().iter_rows()) == {"train": 5, "test": 5}
    assert set(catalog.items["kind"]) == {"farm", "pet"}
    with pytest.raises(ConfigError, match="already has folders of splits"):
        read(tmp_path, "folders", test_classes=0.5)


def test_hidden_files_links_and_files_that_are_not_images_are_dropped_with_a_reason(tmp_path):
    plant(tmp_path, (*TREE, ".DS_Store", "pet/cat/notes.txt", "pet/.hidden/1.jpg"))
    (tmp_path / "pet" / "link").symlink_to(tmp_path / "farm")
    plant(Path(os.fsdecode(os.fsencode(tmp_path) + b"/pet/\xff")), ("1.jpg", "tabby/1.jpg", "tabby/2.jpg"))
    catalog = read(tmp_path, "folders", levels=LEVELS)
    assert len(catalog.items) == len(TREE)
    assert set(present(catalog.dropped).select("file", "reason").iter_rows()) == {
        (".DS_Store", "hidden"),
        ("pet/.hidden", "hidden"),
        ("pet/cat/notes.txt", "not an image"),
        ("pet/link", "link to a folder"),
        *((f"pet/\ufffd/{name}", "name is not UTF-8") for name in ("1.jpg", "tabby/1.jpg", "tabby/2.jpg")),
    }


test_folders_without_a_valid_class_structure_are_refused = refused(
    lambda files, options, *, tmp_path: read(plant(tmp_path, files), "folders", **options),
    [
        (("1.jpg", "2.jpg"), {}, InputError, "are in no subfolder"),
        (("a/1.txt",), {}, InputError, r"no images in it \(1 other files\)"),
        (TREE, {"levels": ("fine",)}, ConfigError, "--levels names 1 levels, but .* are in 3 nested folders"),
        (TREE, {"images": Path("x")}, ConfigError, "folders does not use --images"),
        (("/".join("abcdefghijklmnopqrst") + "/1.jpg",), {}, InputError, "more than 16 folders deep"),
    ],
)


# -- protocols --------------------------------------------------------------------------------------------------------


def test_table_without_the_splits_or_levels_of_its_protocol_is_refused(tmp_path, table):
    with pytest.raises(InputError, match="needs the split test, but the dataset has train"):
        read(table, levels=LEVELS, protocol="sop")
    split = write_csv(tmp_path / "split.csv", [("a.jpg", "x", "train")], ("path", "fine", "split"))
    with pytest.raises(InputError, match="needs the levels fine, middle, coarse"):
        read(split, levels=("fine",), protocol="dyml")
    assert read(table, levels=LEVELS, protocol="sop", test_classes=0.5).protocol == "sop"


def test_columns_template_and_list_become_item_lists(tmp_path):
    rows = [("a.jpg", "1", "test", "t1"), ("b.jpg", "1", "test", "t1"), ("c.jpg", "2", "test", "")]
    faces = write_csv(tmp_path / "faces.csv", rows, ("path", "identity", "split", "template"))
    catalog = read(faces, levels=("identity",), protocol="faces")
    assert present(catalog.lists).rows() == [("template/t1", "a"), ("template/t1", "b")]
    rows = [("a.jpg", "1", "test", "small; large"), ("b.jpg", "1", "test", "large")]
    vehicles = write_csv(tmp_path / "vehicles.csv", rows, ("path", "vehicle", "split", "list"))
    catalog = read(vehicles, levels=("vehicle",), protocol="vehicleid")
    assert sorted(present(catalog.lists).rows()) == [("large", "a"), ("large", "b"), ("small", "a")]


def test_folders_support_only_protocols_that_need_nothing_but_splits(tmp_path):
    for split in ("query", "gallery", "distractors"):
        (tmp_path / split / "x").mkdir(parents=True)
        (tmp_path / split / "x" / f"{split}.jpg").write_bytes(b"")
    assert set(read(tmp_path, "folders", protocol="copydays").items["split"]) == {"query", "gallery", "distractors"}
    with pytest.raises(InputError, match="needs the split test"):
        read(tmp_path, "folders", protocol="sop")
    with pytest.raises(
        ConfigError, match=r"needs judgements, which a folder tree cannot express.*build-shards manifest"
    ):
        read(tmp_path, "folders", protocol="revisited")
