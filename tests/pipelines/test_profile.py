"""Profiles of the user's own images, the proposed command, and the dataset that it builds."""

import json
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld import Hierarchy, open_dataset
from hgld.data.index import read_table
from hgld.errors import ConfigError, InputError, TableError
from hgld.pipelines.shards.catalog_changes import default_parts, draw_classes
from hgld.pipelines.shards.config import SourceConfig
from hgld.pipelines.shards.profile import profile
from tests.fake_releases.pictures import jpeg
from tests.pipelines.tiny_shards import findings
from tests.rows import refused

CLASSES = 48  # class names are like "Sorte 7"; each group has six classes
GROUPS = ("Äpfel", "Birnen", "Kohl", "Rüben", "Beeren", "Nüsse", "Salat", "Pilze")


def picture(seed):
    return jpeg(np.random.default_rng(seed), 24, 24)


def rows():
    """Return path, class and group of two images per class."""
    return [(f"{i:03d}.jpg", f"Sorte {i % CLASSES}", GROUPS[i % CLASSES // 6]) for i in range(2 * CLASSES)]


@pytest.fixture
def table(tmp_path):
    """Return a table with semicolons, a byte order mark and unknown labels, beside a folder of images."""
    (tmp_path / "Fotos").mkdir()
    for i, (path, _, _) in enumerate(rows()):
        (tmp_path / "Fotos" / path).write_bytes(picture(i))
    odd = {2: ("nan", None), 9: ("None", None), 14: ("", "NA"), 20: ("sorte_20", None)}
    lines = ["Path;Product;Group;Price"]
    for i, (path, name, group) in enumerate(rows()):
        name, group = odd.get(i, (name, group))[0], odd.get(i, ("", None))[1] or group
        lines.append(f"{path};{name};{group};{i * 0.25}")
    lines += ["000.jpg;Sorte 0;Äpfel;0.0", ";Sorte 0;Äpfel;1", "gone.jpg;Sorte 0;Äpfel;1"]
    (tmp_path / "Fotos" / "005.jpg").write_bytes(b"no image")
    (tmp_path / "Liste.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    return tmp_path / "Liste.csv"


def test_profile_has_ten_lines_and_proposes_a_command(table, output, monkeypatch):
    monkeypatch.chdir(table.parent)
    shown = output("build-shards", "manifest", "--source", "Liste.csv")
    told, _, command = shown.rstrip().partition("\n\nbuild: ")
    assert told.splitlines() == [
        "Liste.csv: 97 images; semicolons between cells, UTF-8 with a byte order mark, paths in 'Path'",
        "levels, finest first: Product, 48 classes of 1 to 3 images, median 2; Group, 8",
        "unknown labels: 3 of Product, 1 of Group (cells: empty 1, NA 1, None 1, nan 1)",
        "other columns: Price",
        "excluded: 1 no path, 1 repeats an earlier row",
        "files: 1 of 97 missing (gone.jpg); of 96 sampled 1 undecodable (005.jpg)",
        "spellings: 'Sorte 20' 1 / 'sorte_20' 1: one class each",
        told.splitlines()[7],
        "without Product: 0 stay, 3 are excluded (may show val or test)",
    ]
    assert told.splitlines()[7].startswith("splits, class-disjoint: train 24 classes, ")
    assert not (table.parent / "Liste-shards").exists()
    assert command == (
        "hgld build-shards manifest --source Liste.csv --images Fotos --levels Product,Group --test-classes 0.25 "
        "--val-classes 0.34 --merge-spellings --out Liste-shards"
    )


def test_proposed_command_builds_the_same_dataset_as_the_flag_yes(table, output, json_of, monkeypatch):
    monkeypatch.chdir(table.parent)
    proposed = json_of("build-shards", "manifest", "--source", "Liste.csv")["profile"]
    assert proposed["splits"]["val"]["classes"] == proposed["splits"]["test"]["classes"] == 12
    shown = output("build-shards", "manifest", "--source", "Liste.csv", "--yes", "--workers", 1)
    assert "calibrate" not in shown
    assert "next: hgld train --data Liste-shards --out RUN" in shown
    built = json_of("build-shards", *shlex.split(proposed["command"])[2:])
    assert (built["ran"], built["profile"]) == (False, proposed | {"command": built["profile"]["command"]})
    assert built["levels"] == ["Product", "Group"]
    assert {split: facts["classes"]["Product"] for split, facts in built["splits"].items()} == {
        split: counts["classes"] for split, counts in proposed["splits"].items()
    }
    reason = "no Product: may show a class of test or val"
    assert built["rejected"] == {"missing": 1, "no path": 1, "repeats an earlier row": 1, reason: 3, "undecodable": 1}
    root = table.parent / "Liste-shards"
    assert findings(root).is_empty()
    names = Hierarchy.from_parquet(root / "hierarchy.parquet").names[1]
    assert sorted(names) == sorted(GROUPS)


def test_complete_options_build_without_a_question_and_keep_spellings_apart(table, output, monkeypatch):
    monkeypatch.chdir(table.parent)
    said = ["manifest", "--source", "Liste.csv", "--images", "Fotos", "--levels", "product,group", "--workers", 1]
    shown = output("build-shards", *said, "--test-classes", 0.5, "--seed", 1, "--out", "out")
    assert "--merge-spellings makes them one" in shown
    assert "build: " not in shown
    assert set(Hierarchy.from_parquet("out/hierarchy.parquet").names[0]) >= {"Sorte 20", "sorte_20"}


def test_proposed_build_does_not_start_without_a_terminal(table, hgld, refusal, monkeypatch):
    monkeypatch.chdir(table.parent)
    assert hgld("build-shards", "manifest", "--source", "Liste.csv", "--out", "out")[0] == 2
    assert not Path("out").exists()
    assert "missing --out" in refusal("build-shards", "sop", "--source", ".")


def test_path_in_place_of_a_dataset_name_is_answered_with_the_command_for_own_images(table, refusal, monkeypatch):
    monkeypatch.chdir(table.parent)
    Path("my images").mkdir()
    for path, way in (
        ("my images", "folders --source 'my images'"), ("Liste.csv", "manifest --source Liste.csv"), ("sop", None)
    ):  # fmt: skip
        said = refusal("build-shards", path, "--out", "made")
        assert "missing --source" in said
        assert (f"hgld build-shards {way}" in said) == (way is not None)


@pytest.mark.parametrize(("answer", "is_built"), [(True, True), (False, False)])
def test_build_starts_only_if_the_user_confirms_at_the_terminal(table, output, monkeypatch, answer, is_built):
    monkeypatch.chdir(table.parent)
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("hgld.cli.dataset_commands.is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda text, default: asked.append(text) or answer)
    output("build-shards", "manifest", "--source", "Liste.csv", "--workers", 1)
    assert (asked, Path("Liste-shards").is_dir()) == (["Build it?"], is_built)


def test_profile_reports_labels_that_do_not_form_a_tree(tmp_path, hgld):
    lines = [f"{i}.jpg,kind {i % 60},{'a' if i < 60 else 'b'}" for i in range(61)]
    (tmp_path / "t.csv").write_text("\n".join(["path,kind,group", *lines, *lines]))
    code, shown, said = hgld("build-shards", "manifest", "--source", tmp_path / "t.csv", "--levels", "kind,group")
    assert code == 2
    assert "cannot be built: " in shown
    assert "'kind 0' under 'a' and 'b'" in said


def test_absolute_paths_outside_the_image_folder_are_not_read(tmp_path, refusal, json_of):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.jpg").write_bytes(picture(0))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "t.csv").write_text(f"path,kind\n{elsewhere}/a.jpg,x\n{elsewhere}/../own/b.jpg,y\n")
    source = tmp_path / "own" / "t.csv"
    said = refusal("build-shards", "manifest", "--source", source, "--levels", "kind", "--yes")
    assert f"2 paths are outside of {tmp_path}/own" in said
    assert f"--images {elsewhere}" in said
    told = json_of("build-shards", "manifest", "--source", source, "--images", elsewhere, "--levels", "kind")
    assert told["profile"]["left_out"] == {"unsafe-path": 1}


# -- default splits ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 150), st.integers(0, 9))
def test_default_splits_are_large_enough_for_calibration(number, seed):
    test, val = default_parts(number)
    classes = {f"{i}" for i in range(number)}
    tests = draw_classes(classes, test, seed) if test else frozenset()
    vals = draw_classes(classes - tests, val, (seed, 1)) if val else frozenset()
    counts = [len(classes) - len(tests) - len(vals), len(vals), len(tests)]
    if len(classes) < 4:
        assert counts[1:] == [0, 0]
    else:
        assert counts[2] >= 2
        assert counts[0] >= max(2, len(classes) // 3)
        assert (counts[1] >= 2) == (len(classes) >= 7)
    if len(classes) >= 40:
        assert counts[1] >= 12


def test_unlabelled_images_of_test_classes_are_dropped(tmp_path):
    rows = [(f"{i}.jpg", f"kind {i // 2}", f"group {i // 8}") for i in range(64)]
    open_rows = [(f"open {i}.jpg", None, f"group {i}") for i in range(8)] + [("nothing.jpg", None, None)]
    pl.DataFrame(rows + open_rows, ["path", "kind", "group"], orient="row").write_csv(tmp_path / "t.csv")
    options = SourceConfig(levels=("kind", "group"), test_classes=0.1, val_classes=0.1)
    found = profile("manifest", tmp_path / "t.csv", options, is_final=True)
    assert found.catalog is not None
    assert found.catalog.dropped is not None
    items = found.catalog.items
    held = set(items.filter(pl.col("split") != "train")["group"])
    kept = set(items.filter(pl.col("kind").is_null())["group"])
    assert kept == {f"group {i}" for i in range(8)} - held != set()
    assert items.filter(pl.col("kind").is_null())["split"].unique().to_list() == ["train"]
    assert set(found.catalog.dropped["reason"]) == {"no kind: may show a class of test or val"}
    assert len(found.catalog.dropped) == len(held) + 1


# -- parquet that holds the images ------------------------------------------------------------------------------------


def stored(count, seed=0):
    """Return images as Hugging Face datasets stores them; some have no label, no bytes or broken bytes."""
    data = {5: None, 6: b"no image"}
    images = [{"bytes": data.get(i, picture(seed + i)), "path": f"../Bild {i}.jpg"} for i in range(count)]
    labels = [-1 if i % 10 == 9 else i % 5 for i in range(count)]
    return pl.DataFrame({"image": images, "label": labels, "coarse": [f"g{max(0, n) % 2}" for n in labels]})


def features(*names: str) -> dict[str, str]:
    kinds = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(names)}}
    return {"huggingface": json.dumps({"info": {"features": kinds}})}


def test_hugging_face_parquet_files_are_built(tmp_path, output, json_of):
    folder = tmp_path / "export"
    (folder / "data").mkdir(parents=True)
    for name, count in (("train", 40), ("validation", 10)):
        file = folder / "data" / f"{name}-00000-of-00001.parquet"
        stored(count, 100 * count).write_parquet(file, metadata=features("Ä", "b", "c", "d", "e"), row_group_size=16)
    given = ("manifest", "--source", folder, "--yes", "--workers", 1, "--out", tmp_path / "out")
    built = json_of("build-shards", *given)
    assert (built["profile"]["form"], built["levels"]) == (
        "2 parquet files of 50 rows, which hold the images",
        ["label", "coarse"],
    )
    assert built["rejected"] == {"no image in the cell": 2, "undecodable": 2}
    assert {split: facts["items"] for split, facts in built["splits"].items()} == {"train": 38, "val": 8}
    dataset = open_dataset(tmp_path / "out", "train")
    assert Hierarchy.from_parquet(tmp_path / "out" / "hierarchy.parquet").names[0] == ("b", "c", "d", "e", "Ä")
    rejected = read_table("rejected.parquet", tmp_path / "out" / "rejected.parquet").filter(reason="undecodable")
    assert "train-00000-of-00001.parquet/000000007/Bild 6.jpg" in rejected["file"].to_list()
    assert len(dataset) == 38
    assert findings(tmp_path / "out", decode=True).is_empty()
    assert "built before, nothing to do" in output("build-shards", *given)


def profile_changed_table(change, *, tmp_path):
    change(stored(12)).write_parquet(tmp_path / "t.parquet", metadata=features("a", "b", "c", "d", "e"))
    profile("manifest", tmp_path / "t.parquet", SourceConfig(levels=("label",)), is_final=True)


test_unusable_parquet_table_is_refused = refused(
    profile_changed_table,
    [
        (lambda t: t.with_columns(other="image"), TableError, "several columns hold images: image, other"),
        (lambda t: t.with_columns(label=pl.lit(7)), TableError, "cannot be read as a table"),
        (lambda t: t.select("label"), ConfigError, "no column that names the image files"),
    ],
)


def test_parquet_files_with_different_columns_are_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder without parquet files"):
        profile("manifest", tmp_path, SourceConfig(), is_final=True)
    (tmp_path / "metadata.csv").touch()
    with pytest.raises(InputError, match=rf"Name the table: {tmp_path}/metadata\.csv"):
        profile("manifest", tmp_path, SourceConfig(), is_final=True)
    stored(8).write_parquet(tmp_path / "a.parquet")
    stored(8).drop("coarse").write_parquet(tmp_path / "b.parquet")
    with pytest.raises(TableError, match=r"b\.parquet has different columns from a\.parquet"):
        profile("manifest", tmp_path, SourceConfig(), is_final=True)
