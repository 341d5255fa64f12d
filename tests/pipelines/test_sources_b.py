"""The adapters of DyML, CUB, Cars196, VehicleID, Landmarks-clean and the revisited benchmarks, on fake releases."""

import csv
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.io import loadmat, savemat

from hgld.data.format import BOX
from hgld.errors import ConfigError, InputError, TableError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.catalog import Catalog
from hgld.pipelines.shards.config import SourceConfig
from hgld.pipelines.shards.sources.fine_grained import read_taxonomy
from tests.fake_releases import cars196, cub, dyml, imagenet, landmarks_clean, revisited, vehicleid
from tests.fake_releases.__main__ import maker

pytestmark = pytest.mark.usefixtures("mat_files_here")

NAMES = (
    *("dyml-vehicle", "dyml-animal", "dyml-product", "cub", "cars196"),
    *("vehicleid", "landmarks-clean", "roxford", "rparis", "imagenet"),
)
INSIDE = {  # the folder that the release's archive makes, where it makes one
    "dyml-vehicle": "dyml_vehicle",
    "dyml-animal": "dyml_animal",
    "dyml-product": "dyml_product",
    "cub": "CUB_200_2011",
    "vehicleid": "VehicleID_V1.0",
    "roxford": "roxford5k",
    "rparis": "rparis6k",
}


def read(name: str, source: Path, **options) -> Catalog:
    return read_release(name, source, SourceConfig(**options))


def made(name: str, folder: Path) -> Path:
    maker(name)(folder, 0)
    return folder


def labels(catalog: Catalog) -> dict[str, tuple]:
    return {row[0]: row[1:] for row in catalog.items.select("key", *catalog.levels).iter_rows()}


def present(table: pl.DataFrame | None) -> pl.DataFrame:
    assert table is not None
    return table


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode())


@pytest.mark.parametrize("name", NAMES)
def test_every_listed_image_is_there_and_every_source_is_named(name, tmp_path):
    catalog = read(name, made(name, tmp_path))
    assert catalog.name == name
    assert catalog.items.columns[:3] == ["key", "split", "file"]
    assert all((catalog.root / file).is_file() for file in catalog.items["file"])
    assert catalog.items["key"].is_unique().all()
    assert catalog.sources
    assert all(path.is_file() for path in catalog.sources)


@pytest.mark.parametrize("name", NAMES)
def test_the_catalog_does_not_depend_on_where_the_release_lies(name, tmp_path):
    first = read(name, made(name, tmp_path / "a"))
    if name in INSIDE:
        second = read(name, made(name, tmp_path / "b") / INSIDE[name])
        assert second.items.drop("file").equals(first.items.drop("file"))
    third = read(name, made(name, tmp_path / "c"))
    assert third.items.equals(first.items)
    for table in ("lists", "judgements", "dropped"):
        mine, theirs = getattr(third, table), getattr(first, table)
        assert mine is theirs is None or mine.equals(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_one_split_can_be_read_alone(name, tmp_path):
    source = made(name, tmp_path)
    whole = read(name, source)
    split = whole.items["split"][0]
    part = read(name, source, splits=(split,))
    assert part.items.equals(whole.items.filter(pl.col("split") == split))
    assert part.lists is None or set(part.lists["key"]) <= set(part.items["key"])
    assert part.judgements is None or set(part.judgements["item"]) <= set(part.items["key"])
    with pytest.raises(ConfigError, match="no split 'dev'"):
        read(name, source, splits=("dev",))


@pytest.mark.parametrize("name", NAMES)
def test_options_of_other_sources_are_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="does not take --images"):
        read(name, tmp_path, images=tmp_path)
    if name not in ("roxford", "rparis"):
        with pytest.raises(ConfigError, match="does not take --distractors"):
            read(name, tmp_path, distractors=True)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_folder_is_refused_with_the_way_out(name, tmp_path):
    with pytest.raises(InputError, match=f"hgld datasets {name}") as caught:
        read(name, tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_list_is_needed(name, tmp_path):
    source = made(name, tmp_path / "whole")
    for number, path in enumerate(read(name, source).sources):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(source, copy)
        (copy / path.relative_to(source)).unlink()
        with pytest.raises(InputError, match=f"hgld datasets {name}"):
            read(name, copy)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_lists_are_refused_by_name(name, tmp_path):
    source = made(name, tmp_path / "whole")
    for number, path in enumerate(read(name, source).sources):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(source, copy)
        (copy / path.relative_to(source)).write_bytes(b"\xff\xfe\x00\x01" * 9)
        with pytest.raises(InputError) as caught:
            read(name, copy)
        assert str(copy / path.relative_to(source)) in str(caught.value)


@pytest.mark.parametrize(("name", "file"), [("cars196", "cars_annos.mat"), ("rparis", "rparis6k/gnd_rparis6k.pkl")])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.1, 0.5, 0.9, 0.99])
def test_binary_lists_that_are_cut_are_refused_by_name(tmp_path, name, file, part):
    source = made(name, tmp_path)
    data = (source / file).read_bytes()
    (source / file).write_bytes(data[: int(part * len(data))])
    with pytest.raises(InputError) as caught:
        read(name, source)
    assert str(source / file) in str(caught.value)


# -- CUB -------------------------------------------------------------------------------------------------------


def test_cub_has_the_split_and_levels_of_the_literature(tmp_path):
    catalog = read("cub", made("cub", tmp_path))
    assert catalog.levels == ("species", "family", "order")
    found = labels(catalog)
    assert found["001_Black_footed_Albatross/Black_Footed_Albatross_0001_700001"] == (
        *("Black footed Albatross", "Diomedeidae", "Procellariiformes"),
    )
    splits = dict(catalog.items.select("species", "split").unique().iter_rows())
    assert splits == {
        "Black footed Albatross": "train",
        "Laysan Albatross": "train",
        "Brewer Blackbird": "train",
        "Brown Pelican": "train",
        "White Pelican": "test",
        "House Sparrow": "test",
        "Common Yellowthroat": "test",
    }
    assert dict(present(catalog.lists).group_by("list").len().iter_rows()) == {
        "classification-train": len(cub.CLASSES),
        "classification-test": 2 * len(cub.CLASSES),
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("classes.txt", "Laysan", "Layman", "class 2 is 'Layman Albatross'; expected 'Laysan Albatross'"),
        ("classes.txt", "200 200.Common_Yellowthroat\n", "", "class 200 is None"),
        ("image_class_labels.txt", "2 1\n", "2 2\n", "is of class 2"),
        ("image_class_labels.txt", "2 1\n", "", "class_id is ''"),
        ("image_class_labels.txt", "2 1\n", "2 1\n2 1\n", "stands there twice"),
        ("image_class_labels.txt", "2 1\n", "2 1\n999 1\n", "image 999 is not in images.txt"),
        ("train_test_split.txt", "2 1\n", "2 7\n", "is of class 1"),
        ("train_test_split.txt", "2 1\n", "2 1\n999 1\n", "image 999"),
        ("images.txt", "1 001.Black", "1 ../001.Black", "not a path inside"),
        ("images.txt", "1 001.Black", "1 /001.Black", "not a path inside"),
        ("images.txt", "1 001.Black", "x 001.Black", "expected a whole number"),
        ("images.txt", "1 001.Black", "1 2 001.Black", "3 words"),
    ],
)
def test_cub_lists_that_contradict_each_other(tmp_path, file, old, new, message):
    root = made("cub", tmp_path) / "CUB_200_2011"
    edit(root / file, old, new)
    with pytest.raises(TableError, match=message) as caught:
        read("cub", root)
    assert str(root) in str(caught.value)


def test_the_taxonomy_of_cub_is_a_tree_of_13_orders():
    rows = list(read_taxonomy("cub_taxonomy.csv").values())
    assert [len({row[c] for row in rows}) for c in range(3)] == [200, 37, 13]
    assert len({(family, order) for _, family, order in rows}) == 37
    families = {species: family for species, family, _ in rows}
    for word, family in (
        ("Gull", "Laridae"),
        ("Tern", "Laridae"),
        ("Albatross", "Diomedeidae"),
        ("Woodpecker", "Picidae"),
        ("Vireo", "Vireonidae"),
        ("Wren", "Troglodytidae"),
        ("Warbler", "Parulidae"),
        ("Hummingbird", "Trochilidae"),
        ("Grebe", "Podicipedidae"),
    ):
        assert {f for species, f in families.items() if species.split()[-1] == word} == {family}


@pytest.mark.skipif("HGLD_DATA" not in os.environ, reason="HGLD_DATA is the folder of real data")
def test_the_taxonomy_of_cub_is_the_corrected_tree_of_chang():
    with open(Path(os.environ["HGLD_DATA"]) / "taxonomies" / "cub200" / "labels.csv", newline="") as file:
        theirs = {int(row["cub_class_id"]): (row["label"], row["mid"], row["top"]) for row in csv.DictReader(file)}
    assert read_taxonomy("cub_taxonomy.csv") == theirs


# -- Cars196 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [cars196.make, cars196.make_devkit])
def test_cars_has_the_split_and_levels_of_the_literature(tmp_path, make):
    make(tmp_path)
    catalog = read("cars196", tmp_path)
    assert catalog.levels == ("model", "type")
    assert all((tmp_path / file).is_file() for file in catalog.items["file"])
    assert sorted(catalog.items.group_by("split", "model", "type").len().iter_rows()) == [
        ("test", "FIAT 500 Abarth 2012", "coupe", cars196.IMAGES),
        ("test", "Ford E-Series Wagon Van 2012", "wagon", cars196.IMAGES),
        ("test", "smart fortwo Convertible 2012", "convertible", cars196.IMAGES),
        ("train", "AM General Hummer SUV 2000", "SUV", cars196.IMAGES),
        ("train", "Acura TL Type-S 2008", "sedan", cars196.IMAGES),
        ("train", "Eagle Talon Hatchback 1998", "hatchback", cars196.IMAGES),
    ]
    half = len(cars196.CLASSES) * cars196.IMAGES // 2
    assert dict(present(catalog.lists).group_by("list").len().iter_rows()) == {
        "classification-train": half,
        "classification-test": half,
    }


def test_cars_test_labels_may_lie_in_the_devkit(tmp_path):
    cars196.make_devkit(tmp_path)
    before = read("cars196", tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").rename(tmp_path / "devkit" / "cars_test_annos_withlabels.mat")
    after = read("cars196", tmp_path)
    assert after.items.equals(before.items)
    after.sources[-1].unlink()
    with pytest.raises(InputError, match=r"cars_test_annos_withlabels\.mat is missing"):
        read("cars196", tmp_path)


def test_the_types_of_cars_are_the_last_words_that_name_a_body():
    """All but the fifteen that the card speaks of."""
    words = {"Cab": "pickup", "SuperCab": "pickup", "SUV": "SUV"}
    words |= {w: w.lower() for w in ("Sedan", "Coupe", "Convertible", "Hatchback", "Minivan", "Van", "Wagon")}
    odd = []
    for model, body in read_taxonomy("cars196_taxonomy.csv").values():
        named = [words[word] for word in model.split() if word in words]
        if named[-1:] != [body]:
            odd.append((model, named))
    assert len(odd) == 15
    assert [model for model, named in odd if named] == ["Ford E-Series Wagon Van 2012"]
    assert set(words.values()) == {body for _, body in read_taxonomy("cars196_taxonomy.csv").values()}


def struct(**fields) -> np.ndarray:
    array = np.empty((1, 1), dtype=[(name, object) for name in fields])
    array[0, 0] = tuple(fields.values())
    return array


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (struct(relative_im_path="a.jpg", test=0), "lack 'class'"),
        (np.zeros((2, 2)), "lack 'relative_im_path'; found no fields"),
        (struct(relative_im_path="../../a.jpg", test=0, **{"class": 1}), "not a path inside"),
        (struct(relative_im_path=3.0, test=0, **{"class": 1}), "expected one text"),
        (struct(relative_im_path="a.jpg", test=0, **{"class": 1.5}), "expected one whole number"),
        (struct(relative_im_path="a.jpg", test=0, **{"class": np.array([[1, 2]])}), "class has 2 values"),
        (struct(relative_im_path="a.jpg", test=0, **{"class": 197}), "class 197; expected 1 to 196"),
    ],
)
def test_cars_annotations_that_are_none(tmp_path, annotations, message):
    cars196.make(tmp_path)
    names = np.array([[model for model, _ in read_taxonomy("cars196_taxonomy.csv").values()]], dtype=object)
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotations, "class_names": names})
    with pytest.raises(TableError, match=message) as caught:
        read("cars196", tmp_path)
    assert "cars_annos.mat" in str(caught.value)


def test_compressed_cars_annotations_are_read_like_the_others(tmp_path):
    cars196.make(tmp_path)
    before = read("cars196", tmp_path).items
    path = tmp_path / "cars_annos.mat"
    found = loadmat(path)
    savemat(path, {name: found[name] for name in ("annotations", "class_names")}, do_compression=True)
    assert read("cars196", tmp_path).items.equals(before)
    data = path.read_bytes()
    for cut in (127, 130, 136, 200, len(data) - 9):
        path.write_bytes(data[:cut])
        with pytest.raises(TableError, match=r"cars_annos\.mat"):
            read("cars196", tmp_path)


def test_cars_of_other_classes_are_refused(tmp_path):
    cars196.make(tmp_path)
    names = np.array([["Trabant 601 Sedan 1964"]], dtype=object)
    annotations = struct(relative_im_path="a.jpg", test=0, **{"class": 1})
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotations, "class_names": names})
    with pytest.raises(TableError, match="class 1 is 'Trabant 601 Sedan 1964'; expected 'AM General Hummer SUV 2000'"):
        read("cars196", tmp_path)


# -- VehicleID -------------------------------------------------------------------------------------------------


def test_vehicles_have_three_test_lists_and_models_where_known(tmp_path):
    catalog = read("vehicleid", made("vehicleid", tmp_path))
    found = labels(catalog)
    assert found["0000010"] == ("00001", "001")
    assert found["0000020"] == ("00002", None)
    assert dict(catalog.items.group_by("split").len().iter_rows()) == {
        "train": vehicleid.IMAGES * len(vehicleid.TRAIN),
        "test": vehicleid.IMAGES * len(vehicleid.TESTS[2400]),
    }
    sizes = dict(present(catalog.lists).group_by("list").len().iter_rows())
    assert sizes == {
        name: vehicleid.IMAGES * len(vehicleid.TESTS[count])
        for name, count in (("small", 800), ("medium", 1600), ("large", 2400))
    }


def test_test_images_in_several_lists_are_one_item(tmp_path):
    """Lists need not be nested: the split is their union."""
    root = made("vehicleid", tmp_path) / "VehicleID_V1.0"
    edit(root / "train_test_split" / "test_list_2400.txt", "0000070 7\n", "")
    catalog = read("vehicleid", root)
    assert catalog.items.filter(pl.col("key") == "0000070")["split"].to_list() == ["test"]
    assert present(catalog.lists).filter(pl.col("key") == "0000070")["list"].to_list() == ["small", "medium"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("train_test_split/train_list.txt", "0000010 1\n", "0000010 one\n", "expected a whole number"),
        ("train_test_split/train_list.txt", "0000010 1\n", "0000010 1\n0000010 2\n", "of vehicle 2, but 1 before"),
        ("train_test_split/train_list.txt", "0000010 1\n", "../../x 1\n", "not a path inside"),
        ("train_test_split/train_list.txt", "0000010 1\n", "0000010\n", "1 words"),
        ("train_test_split/test_list_1600.txt", "0000070 7\n", "0000070 8\n", "of vehicle 8, but 7 before"),
        ("attribute/model_attr.txt", "1 1\n", "1 1\n1 2\n", "of model 2, but 1 before"),
        ("attribute/model_attr.txt", "1 1\n", "a 1\n", "vehicle is 'a'"),
    ],
)
def test_vehicle_lists_that_contradict_each_other(tmp_path, file, old, new, message):
    root = made("vehicleid", tmp_path) / "VehicleID_V1.0"
    edit(root / file, old, new)
    with pytest.raises(TableError, match=message):
        read("vehicleid", root)


def test_a_vehicle_in_train_and_test_is_refused(tmp_path):
    root = made("vehicleid", tmp_path) / "VehicleID_V1.0"
    edit(root / "train_test_split" / "train_list.txt", "0000010 1\n", "0000010 7\n")
    with pytest.raises(InputError, match="00007"):
        read("vehicleid", root)


# -- Landmarks-clean -------------------------------------------------------------------------------------------


def test_landmarks_keep_what_was_fetched_and_count_the_rest(tmp_path):
    catalog = read("landmarks-clean", made("landmarks-clean", tmp_path))
    assert not catalog.disjoint
    found = dict(catalog.items.select("key", "landmark").iter_rows())
    assert found["0_1"] == "000"
    assert found["7/7_4"] == "007"
    assert dict(catalog.items.group_by("split").len().iter_rows()) == {"train": 11, "val": 3}
    assert sorted(present(catalog.dropped).iter_rows()) == [
        *((address, "train", "ambiguous-name", "landmark 000") for address in landmarks_clean.AMBIGUOUS),
        ("http://c.example/p/585_0.jpg", "train", "not-downloaded", "landmark 585"),
    ]


def test_landmarks_by_paths_are_taken_as_they_are(tmp_path):
    source = made("landmarks-clean", tmp_path)
    (source / "annotations_landmarks").rename(source / "annotations")
    for split, text in (
        ("train", "images/0_0.jpg 0\nimages/7/7_0.jpg 7\nimages/gone.jpg 7\n"),
        ("val", "images/0_1.jpg 0\n"),
    ):
        (source / "annotations" / f"annotation_clean_{split}.txt").write_text(text)
    catalog = read("landmarks-clean", source)
    assert catalog.items["file"].to_list() == [
        "images/0_0.jpg",
        "images/7/7_0.jpg",
        "images/gone.jpg",
        "images/0_1.jpg",
    ]
    assert present(catalog.dropped).is_empty()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../../etc/passwd 1", "not a path inside"),
        ("/etc/passwd 1", "not a path inside"),
        ("http://a/b.jpg", "expected an address"),
        ("http://a/b.jpg 1 2 3", "expected an address"),
        ("http://a/b.jpg church", "the landmark is 'church'"),
    ],
)
def test_landmark_lines_that_are_none(tmp_path, line, message):
    source = made("landmarks-clean", tmp_path)
    with open(source / "annotations_landmarks" / "annotation_clean_val.txt", "a") as file:
        file.write(line + "\n")
    with pytest.raises(TableError, match=message) as caught:
        read("landmarks-clean", source)
    assert "annotation_clean_val.txt, line 4" in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", ".", "a\\..\\b.jpg", "x" * 300])
def test_addresses_whose_names_are_no_files_are_dropped(tmp_path, name):
    source = made("landmarks-clean", tmp_path)
    with open(source / "annotations_landmarks" / "annotation_clean_val.txt", "a") as file:
        file.write(f"http://a.example/{name} 7\n")
    dropped = present(read("landmarks-clean", source).dropped)
    assert dropped.filter(pl.col("reason") == "unusable-name")["file"].to_list() == [f"http://a.example/{name}"]


def test_landmarks_of_like_names_have_keys_of_their_own(tmp_path):
    source = made("landmarks-clean", tmp_path)
    names = ("photo", "photo.png", "ph oto.jpg".replace(" ", "%20"), "ph_20oto.jpg")
    with open(source / "annotations_landmarks" / "annotation_clean_val.txt", "a") as file:
        for name in names:
            shutil.copy(source / "images" / "0_0.jpg", source / "images" / name)
            file.write(f"http://a.example/{name} 7\n")
    files = read("landmarks-clean", source).items["file"].to_list()
    assert {f"images/{name}" for name in names} <= set(files)


def test_landmarks_without_any_image_are_refused(tmp_path):
    source = made("landmarks-clean", tmp_path)
    shutil.rmtree(source / "images")
    with pytest.raises(InputError, match="none of the 17 listed images is there"):
        read("landmarks-clean", source)


# -- ImageNet -------------------------------------------------------------------------------------------------


def test_imagenet_numbers_its_synsets_by_the_development_kit(tmp_path):
    catalog = read("imagenet", made("imagenet", tmp_path))
    found = labels(catalog)
    assert (catalog.levels, catalog.protocol, catalog.disjoint) == (("synset",), "classification", False)
    assert found["train/n01440764/n01440764_1"] == ("n01440764",)
    shown = {key: synset for key, (synset,) in found.items() if key.startswith("val/")}
    in_order = [shown[key] for key in sorted(shown, key=lambda key: key.rpartition("_")[2])]
    assert in_order == list(reversed(imagenet.SYNSETS)) * imagenet.VAL
    assert [path.name for path in catalog.sources] == ["ILSVRC2012_validation_ground_truth.txt", "meta.mat"]
    assert dict(read("imagenet", tmp_path, splits=("val",)).items["split"].value_counts().iter_rows()) == {"val": 6}


def test_imagenet_with_val_in_folders_and_as_kaggle_has_it_is_the_same(tmp_path):
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
    (kaggle / "ILSVRC" / "Data").mkdir(parents=True)
    (kaggle / "ILSVRC" / "Data" / "CLS-LOC").mkdir()
    for split in ("train", "val"):
        (kaggle / f"ILSVRC2012_img_{split}").rename(kaggle / "ILSVRC" / "Data" / "CLS-LOC" / split)
    shutil.rmtree(kaggle / "ILSVRC2012_devkit_t12")
    boxes = [f"{n[:-5]},{s} 1 2 30 31 {s} 3 4 5 6 " for n, s in synset_of.items() if n.startswith("ILSVRC2012_val")]
    (kaggle / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *boxes, ""]))
    for other in (second, read("imagenet", kaggle)):
        assert other.items.drop("file").sort("key").equals(first.items.drop("file").sort("key"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda kit, val: (kit / "meta.mat").write_bytes(b"MATLAB"), TableError, "not a MATLAB file"),
        (lambda kit, val: (kit / "meta.mat").unlink(), InputError, "meta.mat is missing"),
        (lambda kit, val: savemat(kit / "meta.mat", {"synsets": np.zeros(2)}), TableError, "lack 'ILSVRC2012_ID'"),
        (lambda kit, val: edit(kit / imagenet.TRUTH, "2", "9"), TableError, "line 1 is '9'; expected 1 to 3"),
        (lambda kit, val: edit(kit / imagenet.TRUTH, "2", "cat"), TableError, "line 1: the synset is 'cat'"),
        (lambda kit, val: shutil.rmtree(kit), TableError, "00001.JPEG: nothing says of which synset"),
        (lambda kit, val: (val / "ILSVRC2012_val_00000009.JPEG").touch(), TableError, "00009.JPEG: nothing says"),
        (lambda kit, val: val.rename(val.with_name("v")), InputError, "holds no val or ILSVRC2012_img_val"),
        (lambda kit, val: (val / "cat").mkdir() or (val / "cat" / "a.png").touch(), InputError, "is no WordNet id"),
    ],
)
def test_an_imagenet_that_does_not_say_what_an_image_is_is_refused(tmp_path, change, error, message):
    source = made("imagenet", tmp_path)
    change(source / "ILSVRC2012_devkit_t12" / "data", source / "ILSVRC2012_img_val")
    with pytest.raises(error, match=message):
        read("imagenet", source)


def test_other_files_of_imagenet_are_dropped_and_named(tmp_path):
    source = made("imagenet", tmp_path)
    (source / "ILSVRC2012_img_train" / "n01440764" / "n01440764_1.txt").touch()
    dropped = present(read("imagenet", source).dropped)
    assert dropped.rows() == [("ILSVRC2012_img_train/n01440764/n01440764_1.txt", "train", "not an image", "")]


# -- DyML ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dyml-vehicle", "dyml-animal"])
def test_dyml_levels_have_their_own_queries_and_galleries(tmp_path, name):
    catalog = read(name, made(name, tmp_path))
    assert catalog.levels == ("fine", "middle", "coarse")
    found = labels(catalog)
    assert found["train/0"] == ("train/0", "train/0", "train/0")  # the image in the header's line
    assert found["train/11"] == ("train/3", "train/2", "train/1")
    assert found["query_middle/0"] == (None, "test/0", None)
    assert found["gallery_coarse/4"] == (None, None, "test/1")
    assert dict(catalog.items.group_by("split").len().iter_rows()) == {
        "train": len(dyml.TREE) * dyml.IMAGES,
        **{f"query_{level}": n * dyml.SIDES["query"] for level, n in (("fine", 3), ("middle", 2), ("coarse", 2))},
        **{f"gallery_{level}": n * dyml.SIDES["gallery"] for level, n in (("fine", 3), ("middle", 2), ("coarse", 2))},
    }


def test_dyml_products_have_a_test_split_with_three_levels(tmp_path):
    catalog = read("dyml-product", made("dyml-product", tmp_path))
    found = labels(catalog)
    assert found["test/11"] == ("test/3", "test/2", "test/1")
    assert found["train/11"] == ("train/3", "train/2", "train/1")
    assert len(found) == 2 * len(dyml.TREE) * dyml.IMAGES


def test_dyml_lists_with_a_whole_header_are_read_too(tmp_path):
    source = made("dyml-animal", tmp_path)
    glued = read("dyml-animal", source)
    edit(source / "dyml_animal" / "train" / "label.csv", "fine_id0.jpg", "fine_id\n0.jpg")
    edit(source / "dyml_animal" / "bmk_fine" / "query.csv", "labels0.jpg", "labels\r\n0.jpg")
    assert read("dyml-animal", source).items.equals(glued.items)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fname, coarse_id", "name, coarse_id", "line 1 .*expected the header 'fname, coarse_id, middle_id, fine_id'"),
        ("\n1.jpg, 0, 0, 0", "\n1.jpg, 0, 0", "line 2 .*3 cells"),
        ("\n1.jpg, 0, 0, 0", "\n1.jpg, 0, 0, -1", "a label is '-1'"),
        ("\n1.jpg, 0, 0, 0", "\n../1.jpg, 0, 0, 0", "not a path inside"),
    ],
)
def test_dyml_lists_that_are_none(tmp_path, old, new, message):
    source = made("dyml-vehicle", tmp_path)
    edit(source / "dyml_vehicle" / "train" / "label.csv", old, new)
    with pytest.raises(TableError, match=message):
        read("dyml-vehicle", source)


def test_dyml_classes_that_are_no_tree_are_named(tmp_path):
    source = made("dyml-vehicle", tmp_path)
    edit(source / "dyml_vehicle" / "train" / "label.csv", "\n1.jpg, 0, 0, 0", "\n1.jpg, 0, 1, 0")
    with pytest.raises(InputError, match="train/0"):
        read("dyml-vehicle", source)


# -- revisited Oxford and Paris --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "prefix"), [("roxford", "all_souls"), ("rparis", "paris_louvre")])
def test_revisited_queries_have_boxes_and_judgements(tmp_path, name, prefix):
    catalog = read(name, made(name, tmp_path))
    assert dict(catalog.items.group_by("split").len().iter_rows()) == {
        "query": revisited.QUERIES,
        "gallery": revisited.GALLERY,
    }
    boxes = catalog.items.select("split", *BOX)
    assert boxes.filter(pl.col("split") == "query").drop("split").rows() == [
        (2, 2, 30, 31),
        (2, 2, 30, 31),
        (4, 2, 30, 31),
    ]
    assert boxes.filter(pl.col("split") == "gallery").drop("split").null_count().row(0) == (revisited.GALLERY,) * 4
    assert catalog.items["landmark"].null_count() == len(catalog.items)
    second = (
        present(catalog.judgements).filter(pl.col("query") == f"{prefix}_000001").sort("item").select("item", "verdict")
    )
    assert second.rows() == [
        (f"{prefix}_000004", "easy"),
        (f"{prefix}_000005", "hard"),
        (f"{prefix}_000006", "hard"),
        (f"{prefix}_000010", "junk"),
    ]
    assert len(present(catalog.judgements)) == 3 * revisited.QUERIES + 2


def test_distractors_are_a_split_of_their_own(tmp_path):
    source = made("roxford", tmp_path)
    catalog = read("roxford", source, distractors=True)
    found = catalog.items.filter(pl.col("split") == "distractors")
    assert len(found) == revisited.DISTRACTORS
    assert found["key"][0].startswith("revisitop1m/000/")
    assert all((catalog.root / file).is_file() for file in found["file"])
    with pytest.raises(InputError, match=r"revisitop1m\.txt is missing"):
        read("roxford", source / "roxford5k", distractors=True)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([5.0, 2.0, 5.2, 9.0], "is empty"),
        ([5.0, 2.0, float("nan"), 9.0], "cannot be in an image"),
        ([0.0, 0.0, 1e30, 9.0], "cannot be in an image"),
    ],
)
def test_revisited_boxes_that_are_none(tmp_path, box, message):
    source = made("roxford", tmp_path)
    path = source / "roxford5k" / "gnd_roxford5k.pkl"
    truth = {"imlist": ["a"], "qimlist": ["b"], "gnd": [{"bbx": box, "easy": [0], "hard": [], "junk": []}]}
    path.write_bytes(pickle.dumps(truth))
    with pytest.raises(TableError, match=message) as caught:
        read("roxford", source)
    assert "query 'b'" in str(caught.value)


def test_revisited_names_cannot_lead_out(tmp_path):
    source = made("roxford", tmp_path)
    path = source / "roxford5k" / "gnd_roxford5k.pkl"
    for names in (("../../a", "b"), ("a", "/etc/b")):
        truth = {"imlist": names[:1], "qimlist": names[1:]}
        lists = {key: list(value) for key, value in truth.items()}
        entry = {"bbx": [0.0, 0.0, 9.0, 9.0], "easy": [0], "hard": [], "junk": []}
        path.write_bytes(pickle.dumps({**lists, "gnd": [entry]}))
        with pytest.raises(TableError, match="not a path inside"):
            read("roxford", source)


def test_a_pickle_that_runs_code_runs_none(tmp_path):
    source = made("rparis", tmp_path)

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (source / "rparis6k" / "gnd_rparis6k.pkl").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(InputError, match=r"gnd_rparis6k\.pkl"):
        read("rparis", source)
    assert not (tmp_path / "ran").exists()
