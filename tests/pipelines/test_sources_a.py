"""The adapters of SOP, iNaturalist, In-Shop and GLDv2, on fake releases in their real layouts."""

import hashlib
import json
import re
from pathlib import Path

import polars as pl
import pytest

from hgld.errors import ConfigError, HierarchyError, InputError, TableError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.cards import load_card
from hgld.pipelines.shards.catalog import Catalog
from hgld.pipelines.shards.config import SourceConfig
from hgld.pipelines.shards.sources import CARDS, OWN_DATA, SOURCES, source_name
from hgld.pipelines.shards.sources.release import (
    find_folder,
    read_bytes,
    read_csv,
    read_json,
    read_lines,
    read_words,
    relative_path,
    whole_number,
)
from tests.fake_releases import gldv2, inaturalist, inshop, sop
from tests.fake_releases.__main__ import main, maker

NAMES = ("sop", "inat-base", "inat-full", "inshop", "gldv2")
LISTS = {  # a list file of each release, and words of the error when it is missing
    "sop": ("Stanford_Online_Products/Ebay_test.txt", "hgld datasets sop"),
    "inat-base": ("Inat_dataset_splits/Inaturalist_test_set1.txt", "hgld datasets inat-base"),
    "inat-full": ("Inat_dataset_splits/Inaturalist_train_set1.txt", "hgld datasets inat-full"),
    "inshop": ("Eval/list_eval_partition.txt", "hgld datasets inshop"),
    "gldv2": ("metadata/train_clean.csv", "hgld datasets gldv2"),
}


def read(name: str, source: Path, **options) -> Catalog:
    return read_release(name, source, SourceConfig(**options))


@pytest.fixture(scope="session")
def releases(tmp_path_factory) -> dict[str, Path]:
    """One fake release of each; tests that change one make their own."""
    folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    for name, folder in folders.items():
        maker(name)(folder, 0)
    return folders


def made(name: str, folder: Path) -> Path:
    maker(name)(folder, 0)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode())


def present(table: pl.DataFrame | None) -> pl.DataFrame:
    assert table is not None
    return table


# -- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_levels_and_splits_are_those_of_the_card(releases, name):
    catalog, card = read(name, releases[name]), load_card(name)
    assert catalog.levels == card.levels
    assert set(card.splits) <= set(catalog.items["split"])
    assert card.obtain


@pytest.mark.parametrize("name", NAMES)
def test_reading_twice_gives_the_same(releases, name):
    first, second = read(name, releases[name]), read(name, releases[name])
    assert first.items.equals(second.items)
    assert first.sources == second.sources
    assert all(path.is_file() for path in first.sources)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gldv2"])
def test_every_item_is_a_file_of_the_release_and_every_image_an_item(releases, name):
    catalog = read(name, releases[name])
    stated = {catalog.root / file for file in catalog.items["file"]}
    there = {path for path in releases[name].rglob("*") if path.suffix.lower() == ".jpg"}
    assert stated == there


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_list_says_which_and_where_to_get_it(tmp_path, name):
    source = made(name, tmp_path)
    file, obtain = LISTS[name]
    (source / file).unlink()
    with pytest.raises(InputError, match=rf"{re.escape(Path(file).name)} is missing[\s\S]*{re.escape(obtain)}"):
        read(name, source)


@pytest.mark.parametrize("name", NAMES)
def test_options_that_do_not_belong_are_refused(releases, name):
    with pytest.raises(ConfigError, match=rf"{name} does not take --levels, --test-classes; its options are"):
        read(name, releases[name], levels=("a",), test_classes=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_splits_asked_for(releases, name):
    whole = read(name, releases[name])
    for split in whole.items["split"].unique():
        part = read(name, releases[name], splits=(split,))
        assert set(part.items["split"]) == {split}
        assert set(part.items["key"]) == set(whole.items.filter(pl.col("split") == split)["key"])
    with pytest.raises(ConfigError, match="has no split 'val'"):
        read(name, releases[name], splits=("val",))


def test_names_of_sources():
    assert source_name("h-gldv2") == "gldv2"
    assert set(CARDS) | set(OWN_DATA) < set(SOURCES)
    with pytest.raises(ConfigError, match=r"no dataset 'coco'\. There are gldv2, sop,"):
        source_name("coco")


def test_the_script_of_fake_releases(tmp_path, capsys):
    assert main(["sop", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "Stanford_Online_Products" / "Ebay_info.txt").is_file()
    assert main(["folders", str(tmp_path)]) == 2
    assert "the names are gldv2, sop" in capsys.readouterr().err


# -- SOP ------------------------------------------------------------------------------------------------------------


def test_sop(releases):
    catalog = read("sop", releases["sop"])
    products = catalog.items.group_by("split").agg(pl.col("product").n_unique()).rows()
    assert dict(products) == sop.PRODUCTS
    assert set(catalog.items["category"]) == set(sop.CATEGORIES)
    first = catalog.items.row(0, named=True)
    assert first == {
        "key": "bicycle_final/100000000001_0",
        "split": "train",
        "file": "bicycle_final/100000000001_0.JPG",
        "product": "00001",
        "category": "bicycle",
    }
    inside = read("sop", releases["sop"] / "Stanford_Online_Products")
    assert inside.items.equals(catalog.items)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("image_id class_id", "class_id image_id", "expected the header image_id class_id super_class_id path"),
        ("1 1 1 bicycle_final/", "1 1 1 ../evil/", "not a path inside the release"),
        ("1 1 1 bicycle_final/", "1 1 1 /etc/", "not a path inside the release"),
        ("1 1 1 bicycle_final/", "1 1 2 bicycle_final/", "expected one folder per category"),
        ("1 1 1 bicycle_final/", "1 x 1 bicycle_final/", "class_id is 'x'; expected a whole number"),
        ("1 1 1 bicycle_final/", "1 1 bicycle_final/", "3 words; expected image_id class_id super_class_id path"),
        ("\r\n2 1 1 ", "\r\n2 14 1 ", "13"),
    ],
)
def test_sop_with_a_bad_line(tmp_path, old, new, said):
    source = made("sop", tmp_path)
    edit(source / "Stanford_Online_Products" / "Ebay_train.txt", old, new)
    if said == "13":  # a class that is in train and test
        with pytest.raises(HierarchyError, match="are in train and in"):
            read("sop", source)
    else:
        with pytest.raises(TableError, match=said):
            read("sop", source)


def test_a_folder_that_is_no_release(tmp_path):
    with pytest.raises(InputError, match=r"neither Ebay_train\.txt nor Stanford_Online_Products/Ebay_train\.txt"):
        read("sop", tmp_path)


# -- iNaturalist ----------------------------------------------------------------------------------------------------


def test_inaturalist_full_is_a_tree_though_names_mean_two_things(releases):
    catalog = read("inat-full", releases["inat-full"])
    rows = {row["species"]: row for row in catalog.items.iter_rows(named=True)}
    assert rows["Prunella modularis"]["genus"] == "Prunella (Prunellidae)"
    assert rows["Prunella vulgaris"]["genus"] == "Prunella (Lamiaceae)"
    assert rows["Salvia pratensis"]["genus"] == "Salvia"
    for name, (_, *ranks) in inaturalist.SPECIES.items():
        assert [rows[name][rank] for rank in inaturalist.RANKS[1:]] == ranks[1:]
    assert catalog.hierarchy().num_classes == (8, 8, 5, 4, 4, 3, 2)


def test_inaturalist_base(releases):
    catalog = read("inat-base", releases["inat-base"])
    rows = set(catalog.items.select("species", "supercategory").iter_rows())
    assert rows == {(name, facts[0]) for name, facts in inaturalist.SPECIES.items()}
    assert catalog.items["key"].str.contains(r"^[A-Z][a-z]+/\d/[0-9a-f]{32}$").all()


def test_inaturalist_with_the_names_of_the_competition(tmp_path):
    source = made("inat-full", tmp_path)
    (source / "categories.json").unlink()
    catalog = read("inat-full", source)
    assert set(catalog.items["species"]) == {str(n) for n in range(len(inaturalist.SPECIES))}
    assert catalog.sources[-1].name == "train2018.json"


def test_inaturalist_with_split_files_elsewhere(tmp_path):
    source = made("inat-base", tmp_path / "release")
    expected = read("inat-base", source).items
    (source / "Inat_dataset_splits").rename(tmp_path / "splits")
    assert read("inat-base", source, labels=tmp_path / "splits").items.equals(expected)


def test_two_species_of_one_name_stay_two(tmp_path):
    source = made("inat-base", tmp_path)
    edit(source / "categories.json", "Canis latrans", "Vulpes vulpes")
    names = set(read("inat-base", source).items.filter(pl.col("supercategory") == "Mammalia")["species"])
    assert names == {"Vulpes vulpes (6)", "Vulpes vulpes (7)"}


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("Inat_dataset_splits/Inaturalist_train_set1.txt", "train_val2018/Aves/0/", "elsewhere/Aves/0/", "line 1 is"),
        ("Inat_dataset_splits/Inaturalist_train_set1.txt", "Aves/0/", "../../", "not a path inside the release"),
        ("Inat_dataset_splits/Inaturalist_train_set1.txt", "Aves/0/", "Aves/77/", "of the category 77, which"),
        ("Inat_dataset_splits/Inaturalist_train_set1.txt", "Aves/0/", "Fungi/0/", "lies under 'Fungi'"),
        ("categories.json", '"genus": "Prunella", ', "", "category '0' lacks genus; expected id, name"),
        ("categories.json", '"id": 1', '"id": 0', "two categories have the same id"),
        ("categories.json", '"id": 1', '"id": "1"', "lacks a number as id"),
        ("categories.json", "[{", "[3, {", "expected a list of categories"),
        ("categories.json", "[{", "[[{", "not valid JSON"),
    ],
)
def test_inaturalist_with_a_bad_file(tmp_path, file, old, new, said):
    source = made("inat-full", tmp_path)
    edit(source / file, old, new)
    with pytest.raises(InputError, match=said):
        read("inat-full", source)


# -- In-Shop --------------------------------------------------------------------------------------------------------


def test_inshop(releases):
    catalog = read("inshop", releases["inshop"])
    assert dict(catalog.items.group_by("split").len().iter_rows()) == {"train": 16, "query": 8, "gallery": 8}
    tree = catalog.hierarchy()
    assert tree.names[1] == tuple(sorted(inshop.CATEGORIES))
    assert tree.names[2] == ("MEN", "WOMEN")
    items = {split: set(catalog.items.filter(pl.col("split") == split)["item"]) for split in ("train", "query")}
    assert not items["train"] & items["query"]
    assert catalog.items["key"][0] == "WOMEN/Blouses_Shirts/id_00000001/01_1_front"


def test_inshop_without_the_outer_folders(tmp_path):
    source = made("inshop", tmp_path)
    expected = read("inshop", source)
    (source / "Img" / "img").rename(source / "img")
    (source / "Img").rmdir()
    (source / "Eval" / "list_eval_partition.txt").rename(source / "list_eval_partition.txt")
    found = read("inshop", source)
    assert found.items.equals(expected.items)
    assert (found.root / found.items["file"][0]).is_file()


def test_an_item_of_two_categories_has_none(tmp_path):
    source = made("inshop", tmp_path)
    edit(
        source / "Eval" / "list_eval_partition.txt",
        "img/WOMEN/Blouses_Shirts/id_00000001/",
        "img/MEN/Denim/id_00000001/",
    )
    catalog = read("inshop", source)
    torn = catalog.items.filter(pl.col("item") == "id_00000001")
    assert torn["category"].null_count() == torn["department"].null_count() == len(torn) == 4
    assert catalog.items.filter(pl.col("item") != "id_00000001")["category"].null_count() == 0
    assert catalog.notes[0] == "1 items lie under more than one category, so it is unknown; the first is id_00000001."


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("32\n", "33\n", "33"),
        (" id_00000001 train", " id_00000001 val", "expected an image, an item and a split"),
        (
            "img/WOMEN/Blouses_Shirts/id_00000001/",
            "img/Blouses_Shirts/id_00000001/",
            "expected img/DEPARTMENT/CATEGORY",
        ),
        ("img/WOMEN/Blouses_Shirts/id_00000001/", "img/WOMEN/../../id_00000001/", "not a path inside the release"),
    ],
)
def test_inshop_with_a_bad_line(tmp_path, old, new, said):
    source = made("inshop", tmp_path)
    edit(source / "Eval" / "list_eval_partition.txt", old, new)
    with pytest.raises(TableError, match=said):
        read("inshop", source)


# -- GLDv2 ----------------------------------------------------------------------------------------------------------


def test_gldv2_joins_images_with_labels(releases):
    catalog = read("gldv2", releases["gldv2"])
    labelled = sum(landmark[1] is not None for landmark in gldv2.LANDMARKS)
    assert catalog.name == "h-gldv2"
    assert dict(catalog.items.group_by("split").len().iter_rows()) == {
        "train": labelled * gldv2.IMAGES["train"],
        "gallery": labelled * gldv2.IMAGES["index"],
        "query": 4,
    }
    assert "train/100 Chartres Cathedral" in catalog.hierarchy().names[0]
    assert 'index/5 Lago di Garda, "Benaco"' in catalog.hierarchy().names[0]
    reasons = dict(present(catalog.dropped).group_by("split", "reason").len().select("split", "len").iter_rows())
    assert reasons == {"train": gldv2.IMAGES["train"], "gallery": gldv2.IMAGES["index"], "query": 3}


def test_gldv2_names_all_tars_and_their_checksums(releases):
    catalog = read("gldv2", releases["gldv2"])
    assert len(catalog.containers) == 620
    for container in (catalog.containers[0], catalog.containers[-1]):
        assert container.md5 == hashlib.md5(container.path.read_bytes()).hexdigest()
    assert {container.role for container in catalog.containers} == {"train", "index", "test"}
    assert {c.role for c in read("gldv2", releases["gldv2"], splits=("gallery",)).containers} == {"index"}


def test_gldv2_tars_that_are_not_there_are_named_all_the_same(tmp_path):
    source = made("gldv2", tmp_path)
    (source / "index" / "images_003.tar").unlink()
    (source / "md5sum" / "index" / "md5.images_004.txt").rename(source / "index" / "md5.images_004.txt")
    containers = read("gldv2", source, splits=("gallery",)).containers
    assert not containers[3].path.exists()
    assert containers[4].md5 == hashlib.md5(containers[4].path.read_bytes()).hexdigest()
    (source / "index" / "md5.images_004.txt").write_text("<html>")
    with pytest.raises(InputError, match=r"expected 32 hex digits and images_004\.tar"):
        read("gldv2", source, splits=("gallery",))


def test_gldv2_queries_have_the_labels_of_the_first_image_that_is_listed(releases):
    catalog = read("gldv2", releases["gldv2"])
    halves = present(catalog.lists)
    assert dict(halves.group_by("list").len().iter_rows()) == {"public": 2, "private": 2}
    labels = {row["key"]: tuple(row[level] for level in catalog.levels) for row in catalog.items.iter_rows(named=True)}
    assert set(present(catalog.judgements)["verdict"]) == {"relevant"}
    solution = pl.read_csv(releases["gldv2"] / "ground_truth/retrieval_solution_v2.1.csv", infer_schema=False)
    listed = {query: images.split() for query, images, usage in solution.iter_rows() if usage != "Ignored"}
    found = {query: labels[query] for query in listed}
    assert found == {query: labels.get(images[0], (None,) * 3) for query, images in listed.items()}
    assert sorted(map(str, found.values())) == [
        "('index/0 Chartres Cathedral', 'church', 'human-made')",
        "('index/1 Notre-Dame de Paris', 'church', 'human-made')",
        "('index/2 Neuschwanstein', 'castle', 'human-made')",
        "(None, None, None)",
    ]
    assert any(note.startswith("2 queries have relevant images of several landmarks") for note in catalog.notes)


def test_gldv2_with_the_whole_gallery_has_every_judgement(releases):
    part, whole = read("gldv2", releases["gldv2"]), read("gldv2", releases["gldv2"], distractors=True)
    unlabelled = whole.items.filter((pl.col("split") == "gallery") & pl.col("hierarchical_label").is_null())
    assert len(unlabelled) == gldv2.IMAGES["index"]
    assert set(unlabelled["landmark"]) == {"index/4"}
    assert len(present(whole.judgements)) == len(present(part.judgements)) + gldv2.IMAGES["index"]


def test_gldv2_labels_of_a_build_of_ones_own(tmp_path, releases):
    own = tmp_path / "own"
    own.mkdir()
    for name in ("train", "index"):
        lines = (releases["gldv2"] / "metadata" / f"{name}_label_to_hierarchical.csv").read_text().splitlines()
        (own / f"{name}_label_to_hierarchical.csv").write_text("\n".join(lines[:2]) + "\n")
    catalog = read("gldv2", releases["gldv2"], labels=own, splits=("train",))
    assert set(catalog.items["landmark"]) == {"train/100 Chartres Cathedral"}


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("metadata/train_clean.csv", "landmark_id,images", "landmark,images", "no column landmark_id"),
        ("metadata/index_image_to_landmark.csv", ",0\n", "\n", r"row \d+: landmark_id is empty"),
        ("metadata/train_label_to_hierarchical.csv", "\n101,", "\n100,", "landmark 100 has two rows"),
        ("ground_truth/retrieval_solution_v2.1.csv", "Public", "Open", "Usage is 'Open'"),
    ],
)
def test_gldv2_with_a_bad_list(tmp_path, file, old, new, said):
    source = made("gldv2", tmp_path)
    edit(source / file, old, new)
    with pytest.raises(TableError, match=said):
        read("gldv2", source)


def test_gldv2_ids_are_checked(tmp_path):
    source = made("gldv2", tmp_path)
    path = source / "metadata" / "train_clean.csv"
    path.write_text(re.sub(r"[0-9a-f]{16}", "../../../../evil", path.read_text(), count=1))
    with pytest.raises(TableError, match=r"the train list has the image '\.\./.*expected ids of 16 hex digits"):
        read("gldv2", source)


# -- reading lists --------------------------------------------------------------------------------------------------


def test_lists_are_bounded_and_errors_name_the_line(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfa b\r\n\r\nc d\n")
    assert list(read_words(path, ("x", "y"))) == [(f"{path}, line 1", ["a", "b"]), (f"{path}, line 3", ["c", "d"])]
    with pytest.raises(TableError, match="more than 5 bytes"):
        read_bytes(path, most=5)
    for data, read, said in (
        (b"a b\n\xff\n", read_lines, "line 2: not UTF-8"),
        (b"a" * (1 << 21), read_lines, "line 1: 2,097,152 bytes"),
        (b"[" * 100_000, read_json, "not valid JSON"),
        (b"a,b\n1,\xff\xfe\n", lambda path: read_csv(path, ["a"]), "not UTF-8"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=said):
            list(read(path))
    with pytest.raises(InputError, match="is a folder; expected a file of the release"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match="holds neither marker nor inside/marker"):
        find_folder(tmp_path, "inside", "marker")


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../../b", "a\\b", "a\x00b", "a\nb", "a" * 2000])
def test_paths_that_lead_out(path):
    with pytest.raises(TableError, match=r"here: .* is not a path inside the release"):
        relative_path(path, "here")


def test_plain_paths_and_numbers():
    assert relative_path("./a//b/./c.jpg", "") == "a/b/c.jpg"
    assert whole_number("007", "", "") == 7
    for text in ("", "-1", "1.0", "²", "9" * 19):
        with pytest.raises(TableError, match="whole number"):
            whole_number(text, "here", "id")


def test_the_real_list_of_inaturalist(real_data, tmp_path):
    """The official validation list, as if it were the test split: real paths and super-categories."""
    folder = real_data / "inat2018_lists"
    if not folder.is_dir():
        pytest.skip("the lists of iNaturalist 2018 are not in HGLD_DATA")
    paths = [line.split()[0] for line in (folder / "iNaturalist18_val.txt").read_text().splitlines()]
    (tmp_path / "Inaturalist_train_set1.txt").write_text("")
    (tmp_path / "Inaturalist_test_set1.txt").write_text("\n".join(paths))
    stated = pl.read_csv(folder / "class_supercategory.csv").rows()
    named = [{"id": number, "name": f"species {number}", "supercategory": group} for number, group in stated]
    (tmp_path / "categories.json").write_text(json.dumps(named))
    catalog = read("inat-base", tmp_path)
    assert len(catalog.items) == 24_426
    assert catalog.hierarchy().num_classes == (8_142, 14)
