"""Adapters of all releases, tested on fake releases in their real layouts."""

import hashlib
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.io import savemat

from hgld.data.format import BOX
from hgld.errors import ConfigError, InputError, TableError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.cards import load_card
from hgld.pipelines.shards.catalog import Catalog
from hgld.pipelines.shards.config import SourceConfig
from hgld.pipelines.shards.sources import CARDS, OWN_DATA, SOURCES, source_name
from hgld.pipelines.shards.sources.fine_grained import read_taxonomy
from hgld.pipelines.shards.sources.gldv2 import TARS
from hgld.pipelines.shards.sources.release import (
    find_folder,
    read_bytes,
    read_csv,
    read_lines,
    read_words,
    relative_path,
    whole_number,
)
from tests.fake_releases import (
    cars196,
    gldv2,
    imagenet,
    inaturalist,
    landmarks_clean,
    revisited,
)
from tests.fake_releases.__main__ import maker
from tests.rows import each_row, refused

pytestmark = pytest.mark.usefixtures("mat_files_here")

TARS_OF_GLDV2 = dict(TARS)
NAMES = [name for name in SOURCES if name not in OWN_DATA]
INSIDE = {  # folder that unpacking the release's archive creates
    "sop": "Stanford_Online_Products",
    "dyml-vehicle": "dyml_vehicle",
    "dyml-animal": "dyml_animal",
    "dyml-product": "dyml_product",
    "cub": "CUB_200_2011",
    "vehicleid": "VehicleID_V1.0",
    "roxford": "roxford5k",
    "rparis": "rparis6k",
    "holidays": "jpg",
    "ukbench": "full",
}


def read(name, source, **options):
    return read_release(name, source, SourceConfig(**options))


def made(name, folder):
    folder.mkdir(exist_ok=True)
    maker(name)(folder, 0)
    return folder


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Return the folder of one fake release per dataset; tests that change a release make a copy."""
    with pytest.MonkeyPatch.context() as patch:
        gldv2.leave_empty_tars_out(patch)
        yield {name: made(name, tmp_path_factory.mktemp(name)) for name in NAMES}


def labels(catalog: Catalog) -> dict[str, tuple]:
    return {row[0]: row[1:] for row in catalog.items.select("key", *catalog.levels).iter_rows()}


def counts(table: pl.DataFrame | None, column: str) -> dict[str, int]:
    return dict(present(table).group_by(column).len().iter_rows())


def present(table: pl.DataFrame | None) -> pl.DataFrame:
    assert table is not None
    return table


def edit(path, old, new):
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode())


# -- rules for every source -------------------------------------------------------------------------------------------


@each_row("name", NAMES)
def test_catalog_agrees_with_its_card_and_lists_existing_files(releases, name, tmp_path):
    source = releases[name]
    catalog, card = read(name, source), load_card(name)
    assert (catalog.name, catalog.levels) == (card.name, card.levels)
    assert set(card.splits) <= set(catalog.items["split"])
    assert catalog.items.columns[:3] == ["key", "split", "file"]
    assert all(path.is_file() for path in catalog.sources)
    if not catalog.containers:
        assert all((catalog.root / file).is_file() for file in catalog.items["file"])
    again = read(name, made(name, tmp_path))
    for table in ("items", "lists", "judgements", "dropped"):
        mine, theirs = getattr(again, table), getattr(catalog, table)
        assert mine is theirs is None or mine.equals(theirs)
    if name in INSIDE:
        within = read(name, source / INSIDE[name])
        assert within.items.drop("file").equals(catalog.items.drop("file"))
        assert all((within.root / file).is_file() for file in within.items["file"])


@each_row("name", NAMES)
def test_single_splits_can_be_read_and_options_of_other_sources_are_refused(releases, name):
    source = releases[name]
    whole = read(name, source)
    for split in whole.items["split"].unique():
        part = read(name, source, splits=(split,))
        assert part.items.equals(whole.items.filter(pl.col("split") == split))
        assert part.lists is None or set(part.lists["key"]) <= set(part.items["key"])
        assert part.judgements is None or set(part.judgements["item"]) <= set(part.items["key"])
    with pytest.raises(ConfigError, match="no split 'dev'"):
        read(name, source, splits=("dev",))
    with pytest.raises(ConfigError, match=rf"{name} does not use --levels, --test-classes; its options are"):
        read(name, source, levels=("a",), test_classes=0.5)


@each_row("name", NAMES)
def test_missing_or_damaged_list_is_reported_with_its_path(releases, name, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=f"hgld datasets {name}") as caught:
        read(name, tmp_path / "empty")
    assert str(tmp_path) in str(caught.value)
    copy = shutil.copytree(releases[name], tmp_path / "copy", symlinks=True)
    for number, path in enumerate(read(name, releases[name]).sources):
        file = copy / path.relative_to(releases[name])
        sound = file.read_bytes()
        file.write_bytes(b"\xff\xfe\x00\x01" * 9)
        with pytest.raises(InputError) as caught:
            read(name, copy)
        assert str(file) in str(caught.value)
        file.unlink()
        # iNaturalist's third list can be replaced by another category list
        if not (name.startswith("inat") and number == 2):
            with pytest.raises(InputError, match=f"hgld datasets {name}"):
                read(name, copy)
        file.write_bytes(sound)


INAT, PKU = "Inat_dataset_splits/Inaturalist_train_set1.txt", "VehicleID_V1.0"
SOP, CUB, EVAL = "Stanford_Online_Products/Ebay_train.txt", "CUB_200_2011", "Eval/list_eval_partition.txt"
DYML, KIT = "dyml_vehicle/train/label.csv", "ILSVRC2012_devkit_t12/data"
CLEAN = "annotations_landmarks/annotation_clean_val.txt"
OF_SHOP = "img/WOMEN/Blouses_Shirts/id_00000001/"
DAMAGED = [  # (source, list file, old text, new text, expected words of the error)
    ("sop", SOP, "image_id class_id", "class_id image_id", "expected the header image_id class_id super_class_id path"),
    ("sop", SOP, "1 1 1 bicycle_final/", "1 1 2 bicycle_final/", "expected one folder per category"),
    ("sop", SOP, "1 1 1 bicycle_final/", "1 1 bicycle_final/", "3 words; expected image_id class_id"),
    ("inat-full", INAT, "train_val2018/Aves/0/", "elsewhere/Aves/0/", "line 1 is"),
    ("inat-full", INAT, "Aves/0/", "Aves/77/", "of the category 77, which"),
    ("inat-full", INAT, "Aves/0/", "Fungi/0/", "is in 'Fungi'"),
    ("inat-full", "categories.json", '"genus": "Prunella", ', "", "category '0' lacks genus; expected id, name"),
    ("inat-full", "categories.json", '"id": 1', '"id": 0', "two categories have the same id"),
    ("inat-full", "categories.json", "[{", "[3, {", "expected a list of categories"),
    ("inshop", EVAL, " id_00000001 train", " id_00000001 val", "expected an image, an item and a split"),
    ("inshop", EVAL, OF_SHOP, "img/Blouses_Shirts/id_00000001/", "expected img/DEPARTMENT/CATEGORY"),
    ("gldv2", "metadata/index_image_to_landmark.csv", ",0\n", "\n", r"row \d+: landmark_id is empty"),
    ("gldv2", "metadata/train_label_to_hierarchical.csv", "\n101,", "\n100,", "landmark 100 has two rows"),
    ("gldv2", "md5sum/index/md5.images_001.txt", "images_001", "images_002", r"expected 32 hex digits and images_001"),
    ("cub", f"{CUB}/classes.txt", "Laysan", "Layman", "class 2 is 'Layman Albatross'; expected 'Laysan Albatross'"),
    ("cub", f"{CUB}/image_class_labels.txt", "2 1\n", "2 2\n", "is of class 2"),
    ("cub", f"{CUB}/image_class_labels.txt", "2 1\n", "2 1\n2 1\n", "occurs twice"),
    ("cub", f"{CUB}/image_class_labels.txt", "2 1\n", "2 1\n999 1\n", "image 999 is not in images.txt"),
    (
        "vehicleid",
        f"{PKU}/train_test_split/train_list.txt",
        "0000010 1",
        "0000010 1\n0000010 2",
        "vehicle 2 here and 1 in an earlier line",
    ),
    ("landmarks-clean", CLEAN, "\n", "\n../../etc/passwd 1\n", "line 2: .*not a path inside"),
    ("landmarks-clean", CLEAN, "\n", "\nhttp://a/b.jpg\n", "line 2 is .*expected a URL"),
    ("imagenet", f"{KIT}/{imagenet.TRUTH}", "2", "9", "line 1 is '9'; expected the number of a synset in"),
    ("dyml-vehicle", DYML, "fname, coarse_id", "name, coarse_id", "line 1 .*expected the header 'fname, coarse_id"),
    ("dyml-vehicle", DYML, "\n1.jpg, 0, 0, 0", "\n1.jpg, 0, 0", "line 2 .*3 cells"),
]


def annotated(**fields):
    """Return a function that changes Cars196: one annotation entry, or a whole array."""

    def change(source):
        entry = np.empty((1, 1), dtype=[(name, object) for name in fields])
        entry[0, 0] = tuple(fields.values())
        names = np.array([[model for model, _ in read_taxonomy("cars196_taxonomy.csv").values()]], dtype=object)
        savemat(source / "cars_annos.mat", {"annotations": entry, "class_names": names})

    return change


def judged(image="a", box=(0.0, 0.0, 9.0, 9.0)):
    """Return a function that gives revisited Oxford a ground truth of one query and one image."""

    def change(source):
        entry = {"bbx": list(box), "easy": [0], "hard": [], "junk": []}
        truth = {"imlist": [image], "qimlist": ["b"], "gnd": [entry]}
        (source / "roxford5k" / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth))

    return change


def with_unsafe_id(source):
    path = source / "metadata" / "train_clean.csv"
    path.write_text(re.sub(r"[0-9a-f]{16}", "../../../../evil", path.read_text(), count=1))


def with_folder_of_no_synset(source):
    (source / VAL / "cat").mkdir()
    (source / VAL / "cat" / "a.png").touch()


CAR, VAL = {"relative_im_path": "a.jpg", "test": 0}, "ILSVRC2012_img_val"
CHANGED = [  # (source, function that changes its files, expected words of the error)
    ("cars196", annotated(**CAR), "lack 'class'"),
    ("cars196", annotated(**CAR, **{"class": 1.5}), "expected one whole number"),
    ("cars196", annotated(**CAR, **{"class": 197}), "class is 197; expected 1 to 196"),
    ("roxford", judged(box=(5.0, 2.0, 5.2, 9.0)), "query 'b': .*is empty"),
    ("roxford", judged(box=(5.0, 2.0, float("nan"), 9.0)), "query 'b': .*cannot be in an image"),
    ("roxford", judged(image="../../a"), "not a path inside"),
    ("imagenet", lambda source: shutil.rmtree(source / KIT), "00001.JPEG: the synset of this image is unknown"),
    ("imagenet", lambda source: (source / VAL).rename(source / "v"), "holds no val or ILSVRC2012_img_val"),
    ("imagenet", with_folder_of_no_synset, "is not a WordNet id"),
    ("landmarks-clean", lambda source: shutil.rmtree(source / "images"), "none of the 20 listed images is there"),
    ("gldv2", with_unsafe_id, r"the train list has the image '\.\./.*expected ids of 16 hex digits"),
    ("holidays", lambda source: (source / "jpg" / "125000.jpg").unlink(), "The first is 1250: 125000.jpg is missing"),
    (
        *("ukbench", lambda source: (source / "full" / "ukbench00006.jpg").unlink()),
        "objects without exactly 4 images: 1. The first has 3 images; expected ukbench00004.jpg to",
    ),
]


def read_damaged(name, change, *texts, releases, tmp_path):
    source = shutil.copytree(releases[name], tmp_path / "copy")
    change(source) if callable(change) else edit(source / change, *texts)
    read(name, source)


test_damaged_contradictory_or_hostile_releases_are_refused = refused(read_damaged, [*DAMAGED, *CHANGED], InputError)


def test_source_is_found_by_its_name_or_the_name_of_a_card():
    assert source_name("h-gldv2") == "gldv2"
    assert set(CARDS) | set(OWN_DATA) < set(SOURCES)
    with pytest.raises(ConfigError, match=r"no dataset 'coco'\. Datasets: gldv2, sop,"):
        source_name("coco")


def test_lists_have_a_size_limit_and_errors_contain_the_line(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfa b\r\n\r\nc d\n")
    assert list(read_words(path, ("x", "y"))) == [(f"{path}, line 1", ["a", "b"]), (f"{path}, line 3", ["c", "d"])]
    with pytest.raises(TableError, match="more than 5 bytes"):
        read_bytes(path, most=5)
    for data, read, said in (
        (b"a b\n\xff\n", read_lines, "line 2: not UTF-8"),
        (b"a" * (1 << 21), read_lines, "line 1: 2,097,152 bytes"),
        (b"a,b\n1,\xff\xfe\n", lambda path: read_csv(path, ["a"]), "not UTF-8"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=said):
            list(read(path))
    with pytest.raises(InputError, match="is a folder; expected a file of the release"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match="holds neither marker nor inside/marker"):
        find_folder(tmp_path, "inside", "marker")


def test_paths_are_normalised_and_numbers_parsed():
    for path in ("", "/a", "a/../../b", "a\\b", "a\x00b", "a" * 2000):
        with pytest.raises(TableError, match=r"here: .* is not a path inside the release"):
            relative_path(path, "here")
    assert relative_path("./a//b/./c.jpg", "") == "a/b/c.jpg"
    assert whole_number("007", "", "") == 7
    for text in ("", "-1", "1.0", "²", "9" * 19):
        with pytest.raises(TableError, match="whole number"):
            whole_number(text, "here", "id")


def test_official_inaturalist_list_is_read_completely(real_data, tmp_path):
    """The official validation list serves as test split, with real paths and super-categories."""
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


SIDES = {"query_fine": 6, "gallery_fine": 12} | {"query_middle": 4, "gallery_middle": 8}
SIDES |= {"query_coarse": 4, "gallery_coarse": 8}
DYML = {  # labels of some images; the first image shares a line with the header
    "train/0": ("train/0", "train/0", "train/0"),
    "train/11": ("train/3", "train/2", "train/1"),
    "query_middle/0": (None, "test/0", None),
    "gallery_coarse/4": (None, None, "test/1"),
}
ALBATROSS = "001_Black_footed_Albatross/Black_Footed_Albatross_0001_700001"
# (images per split, images per list, labels of some images)
FACTS: dict[str, tuple[dict[str, int], dict[str, int], dict[str, tuple]]] = {
    "sop": (
        *({"train": 38, "test": 36}, {}),
        {
            "bicycle_final/100000000001_0": ("00001", "bicycle"),
            "toaster_final/100000000025_3": ("00025", "toaster"),
        },
    ),
    "inshop": (
        *({"train": 16, "query": 8, "gallery": 8}, {}),
        {"WOMEN/Blouses_Shirts/id_00000001/01_1_front": ("id_00000001", "WOMEN/Blouses_Shirts", "WOMEN")},
    ),
    "cub": (
        *({"train": 12, "test": 9}, {"classification-train": 7, "classification-test": 14}),
        {ALBATROSS: ("Black footed Albatross", "Diomedeidae", "Procellariiformes")},
    ),
    "cars196": (
        *({"train": 12, "test": 12}, {"classification-train": 12, "classification-test": 12}),
        {
            "car_ims/000001": ("AM General Hummer SUV 2000", "SUV"),
            "car_ims/000024": ("smart fortwo Convertible 2012", "convertible"),
        },
    ),
    "vehicleid": (
        *({"train": 18, "test": 18}, {"small": 6, "medium": 12, "large": 18}),
        {"0000010": ("00001", "001"), "0000020": ("00002", None)},
    ),
    "landmarks-clean": ({"train": 11, "val": 6}, {}, {"0_1": ("000",), "7/7_4": ("007",)}),
    "dyml-vehicle": ({"train": 12, **SIDES}, {}, DYML),
    "dyml-product": (
        *({"train": 12, "test": 12}, {}),
        {"test/11": ("test/3", "test/2", "test/1"), "train/11": ("train/3", "train/2", "train/1")},
    ),
    "roxford": ({"query": 3, "gallery": 12}, {}, {"all_souls_000000": (None,)}),
    "holidays": ({"test": 10}, {"queries": 4}, {"100000": ("1000",), "149902": ("1499",)}),
    "ukbench": ({"test": 12}, {}, {"ukbench00003": ("0000",), "ukbench00004": ("0001",)}),
    "imagenet": ({"train": 9, "val": 6}, {}, {"train/n01440764/n01440764_1": ("n01440764",)}),
    "gldv2": ({"train": 20, "gallery": 15, "query": 4}, {"public": 2, "private": 2}, {}),
}


@each_row("name", FACTS)
def test_catalog_has_the_splits_lists_and_labels_of_the_release(releases, name):
    splits, lists, some_labels = FACTS[name]
    catalog = read(name, releases[name])
    assert counts(catalog.items, "split") == splits
    assert (catalog.lists is None) == (not lists)
    assert not lists or counts(catalog.lists, "list") == lists
    assert labels(catalog).items() >= some_labels.items()


def test_inaturalist_names_with_two_meanings_get_their_parent_appended(releases):
    catalog = read("inat-full", releases["inat-full"])
    rows = {row["species"]: row for row in catalog.items.iter_rows(named=True)}
    assert rows["Prunella modularis"]["genus"] == "Prunella (Prunellidae)"
    assert rows["Prunella vulgaris"]["genus"] == "Prunella (Lamiaceae)"
    assert rows["Salvia pratensis"]["genus"] == "Salvia"
    for name, (_, *ranks) in inaturalist.SPECIES.items():
        assert [rows[name][rank] for rank in inaturalist.RANKS[1:]] == ranks[1:]
    assert catalog.hierarchy().num_classes == (8, 8, 5, 4, 4, 3, 2)


def test_inaturalist_reads_competition_categories(tmp_path):
    source = made("inat-full", tmp_path)
    (source / "categories.json").unlink()
    catalog = read("inat-full", source)
    assert set(catalog.items["species"]) == {str(n) for n in range(len(inaturalist.SPECIES))}
    assert catalog.sources[-1].name == "train2018.json"


def test_inshop_is_read_without_its_outer_folders(tmp_path):
    source = made("inshop", tmp_path)
    expected = read("inshop", source)
    (source / "Img" / "img").rename(source / "img")
    (source / "Img").rmdir()
    (source / "Eval" / "list_eval_partition.txt").rename(source / "list_eval_partition.txt")
    found = read("inshop", source)
    assert found.items.equals(expected.items)
    assert (found.root / found.items["file"][0]).is_file()


def test_inshop_item_of_two_categories_has_an_unknown_category(tmp_path):
    source = made("inshop", tmp_path)
    edit(source / EVAL, OF_SHOP, "img/MEN/Denim/id_00000001/")
    catalog = read("inshop", source)
    torn = catalog.items.filter(pl.col("item") == "id_00000001")
    assert torn["category"].null_count() == torn["department"].null_count() == len(torn) == 4
    assert catalog.items.filter(pl.col("item") != "id_00000001")["category"].null_count() == 0
    assert catalog.notes[0] == "1 items are in more than one category, so it is unknown; the first is id_00000001."


def test_gldv2_catalog_has_all_tars_with_checksums(releases):
    assert sum(TARS_OF_GLDV2.values()) == 620
    catalog = read("gldv2", releases["gldv2"])
    assert len(catalog.containers) == sum(gldv2.FULL_TARS.values())
    for container in (catalog.containers[0], catalog.containers[-1]):
        assert container.md5 == hashlib.md5(container.path.read_bytes()).hexdigest()
    assert {container.role for container in catalog.containers} == {"train", "index", "test"}
    assert {c.role for c in read("gldv2", releases["gldv2"], splits=("gallery",)).containers} == {"index"}


def test_gldv2_query_gets_the_label_of_its_first_listed_image(releases):
    catalog = read("gldv2", releases["gldv2"])
    assert counts(catalog.dropped, "split") == {"train": 4, "gallery": 3, "query": 3}
    of = labels(catalog)
    assert set(present(catalog.judgements)["verdict"]) == {"relevant"}
    solution = pl.read_csv(releases["gldv2"] / "ground_truth/retrieval_solution_v2.1.csv", infer_schema=False)
    listed = {query: images.split() for query, images, usage in solution.iter_rows() if usage != "Ignored"}
    found = {query: of[query] for query in listed}
    assert found == {query: of.get(images[0], (None,) * 3) for query, images in listed.items()}
    assert sorted(map(str, found.values())) == [
        "('index/0 Chartres Cathedral', 'church', 'human-made')",
        "('index/1 Notre-Dame de Paris', 'church', 'human-made')",
        "('index/2 Neuschwanstein', 'castle', 'human-made')",
        "(None, None, None)",
    ]
    assert any(note.startswith("2 queries have relevant images of several landmarks") for note in catalog.notes)


def test_gldv2_with_distractors_has_every_judgement(releases):
    part, whole = read("gldv2", releases["gldv2"]), read("gldv2", releases["gldv2"], distractors=True)
    unlabelled = whole.items.filter((pl.col("split") == "gallery") & pl.col("hierarchical_label").is_null())
    assert len(unlabelled) == gldv2.IMAGES["index"]
    assert set(unlabelled["landmark"]) == {"index/4"}
    assert len(present(whole.judgements)) == len(present(part.judgements)) + gldv2.IMAGES["index"]


def test_both_layouts_of_cars196_give_the_same_classes(tmp_path, releases):
    cars196.make_devkit(tmp_path)
    before, whole = read("cars196", tmp_path), read("cars196", releases["cars196"])
    assert all((tmp_path / file).is_file() for file in before.items["file"])
    assert counts(before.lists, "list") == counts(whole.lists, "list")
    of_classes = [
        found.items.group_by("split", "model", "type").len().sort("model").rows() for found in (before, whole)
    ]
    assert of_classes[0] == of_classes[1]
    (tmp_path / "cars_test_annos_withlabels.mat").rename(tmp_path / "devkit" / "cars_test_annos_withlabels.mat")
    after = read("cars196", tmp_path)
    assert after.items.equals(before.items)
    after.sources[-1].unlink()
    with pytest.raises(InputError, match=r"cars_test_annos_withlabels\.mat is missing"):
        read("cars196", tmp_path)


def test_landmarks_without_an_image_are_dropped_with_a_reason(tmp_path):
    catalog = read("landmarks-clean", made("landmarks-clean", tmp_path))
    assert not catalog.disjoint
    assert sorted(present(catalog.dropped).iter_rows()) == [
        *((address, "train", "ambiguous-name", "landmark 000") for address in landmarks_clean.AMBIGUOUS),
        ("http://c.example/p/585_0.jpg", "train", "not-downloaded", "landmark 585"),
    ]


def test_landmark_lists_with_paths_in_place_of_urls_are_read(tmp_path):
    source = made("landmarks-clean", tmp_path)
    (source / "annotations_landmarks").rename(source / "annotations")
    files = ["images/7/7_0.jpg", "images/gone.jpg", "images/0_1.jpg"]
    for split, listed in (("train", files[:2]), ("val", files[2:])):
        lines = "".join(f"{file} 7\n" for file in listed)
        (source / "annotations" / f"annotation_clean_{split}.txt").write_text(lines)
    catalog = read("landmarks-clean", source)
    assert catalog.items["file"].to_list() == files
    assert present(catalog.dropped).is_empty()


def test_urls_without_a_usable_file_name_are_dropped(tmp_path):
    source = made("landmarks-clean", tmp_path)
    urls = [f"http://a.example/{name}" for name in ("", "..", "a\\..\\b.jpg", "x" * 300)]
    with open(source / "annotations_landmarks" / "annotation_clean_val.txt", "a") as file:
        file.writelines(f"{url} 7\n" for url in urls)
    dropped = present(read("landmarks-clean", source).dropped)
    assert sorted(dropped.filter(pl.col("reason") == "unusable-name")["file"]) == sorted(urls)


def test_imagenet_val_gets_its_synsets_from_the_development_kit(tmp_path):
    catalog = read("imagenet", made("imagenet", tmp_path))
    assert (catalog.levels, catalog.protocol, catalog.disjoint) == (("synset",), "classification", False)
    shown = {key: synset for key, (synset,) in labels(catalog).items() if key.startswith("val/")}
    in_order = [shown[key] for key in sorted(shown, key=lambda key: key.rpartition("_")[2])]
    assert in_order == list(reversed(imagenet.SYNSETS)) * imagenet.VAL
    assert [path.name for path in catalog.sources] == ["ILSVRC2012_validation_ground_truth.txt", "meta.mat"]


def test_imagenet_layouts_give_the_same_items(tmp_path):
    first = read("imagenet", made("imagenet", tmp_path / "a"))
    synset_of = {Path(file).name: synset for file, synset in first.items.select("file", "synset").iter_rows()}
    folders = made("imagenet", tmp_path / "b")
    (folders / "ILSVRC2012_img_train").rename(folders / "train")
    for image in sorted((folders / "ILSVRC2012_img_val").iterdir()):
        (folders / "val" / synset_of[image.name]).mkdir(parents=True, exist_ok=True)
        image.rename(folders / "val" / synset_of[image.name] / image.name)
    shutil.rmtree(folders / "ILSVRC2012_img_val")
    shutil.rmtree(folders / "ILSVRC2012_devkit_t12")
    second = read("imagenet", folders)
    assert not second.sources
    kaggle = made("imagenet", tmp_path / "c")
    (kaggle / "ILSVRC" / "Data" / "CLS-LOC").mkdir(parents=True)
    for split in ("train", "val"):
        (kaggle / f"ILSVRC2012_img_{split}").rename(kaggle / "ILSVRC" / "Data" / "CLS-LOC" / split)
    shutil.rmtree(kaggle / "ILSVRC2012_devkit_t12")
    boxes = [f"{n[:-5]},{s} 1 2 30 31 {s} 3 4 5 6 " for n, s in synset_of.items() if n.startswith("ILSVRC2012_val")]
    (kaggle / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *boxes, ""]))
    for other in (second, read("imagenet", kaggle)):
        assert other.items.drop("file").sort("key").equals(first.items.drop("file").sort("key"))


def test_dyml_lists_with_a_line_end_after_the_header_are_read(tmp_path):
    source = made("dyml-animal", tmp_path)
    glued = read("dyml-animal", source)
    edit(source / "dyml_animal" / "train" / "label.csv", "fine_id0.jpg", "fine_id\n0.jpg")
    edit(source / "dyml_animal" / "bmk_fine" / "query.csv", "labels0.jpg", "labels\r\n0.jpg")
    assert read("dyml-animal", source).items.equals(glued.items)


def test_revisited_queries_have_boxes_and_judgements(releases):
    catalog, prefix = read("rparis", releases["rparis"]), "paris_louvre"
    boxes = {split: catalog.items.filter(split=split).select(BOX) for split in ("query", "gallery")}
    assert boxes["query"].rows() == [(2, 2, 30, 31), (2, 2, 30, 31), (4, 2, 30, 31)]
    assert boxes["gallery"].null_count().row(0) == (revisited.GALLERY,) * 4
    assert catalog.items["landmark"].null_count() == len(catalog.items)
    second = present(catalog.judgements).filter(query=f"{prefix}_000001").sort("item")
    assert second.select("item", "verdict").rows() == [
        (f"{prefix}_000004", "easy"),
        (f"{prefix}_000005", "hard"),
        (f"{prefix}_000006", "hard"),
        (f"{prefix}_000010", "junk"),
    ]
    assert len(present(catalog.judgements)) == 3 * revisited.QUERIES + 2


def test_hostile_pickle_runs_no_code(tmp_path):
    source = made("rparis", tmp_path)

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (source / "rparis6k" / "gnd_rparis6k.pkl").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(InputError, match=r"gnd_rparis6k\.pkl"):
        read("rparis", source)
    assert not (tmp_path / "ran").exists()


@each_row("name", ["holidays", "ukbench"])
def test_files_with_unexpected_names_are_dropped_and_empty_folders_refused(name, tmp_path):
    with pytest.raises(InputError, match=rf"no image named like .*hgld datasets {name}"):
        read(name, tmp_path)
    others = [f"{INSIDE[name]}/{file}" for file in ("1000000.jpg", "readme.txt")]
    made(name, tmp_path)
    for file in others:
        (tmp_path / file).touch()
    assert present(read(name, tmp_path).dropped)["file"].to_list() == others
