import shutil
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import hgld
from hgld import Hierarchy
from hgld.data import format as dataset_files
from hgld.data import index as index_file
from hgld.data.format import BOX
from hgld.errors import ConfigError, InputError, StorageError
from hgld.pipelines.shards import work
from hgld.pipelines.shards.build import build_catalog
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from tests.pipelines.tiny_shards import findings, index_of
from tests.pipelines.toy_release import LEVELS, SMALL, ToyRelease, build, bytes_of


@pytest.fixture
def release():
    return ToyRelease.make()


@pytest.fixture
def loose(release, tmp_path):
    return release.catalog(release.write(tmp_path / "source"))


@pytest.fixture(scope="module")
def built(module_path):
    """Return the result of a build from loose files, and its dataset, which no test changes."""
    release = ToyRelease.make()
    return build(release.catalog(release.write(module_path / "source")), module_path / "out"), module_path / "out"


@pytest.fixture
def finished(built, tmp_path):
    """Return a copy of the finished dataset."""
    return shutil.copytree(built[1], tmp_path / "out")


def test_built_dataset_has_every_image_with_its_labels(built, loose, release):
    result, root = built
    assert result.was_run
    index = index_of(root)
    assert sorted(index["key"]) == sorted(loose.items["key"])
    assert sorted(path.name for path in root.iterdir()) == sorted(
        [*dict(result.manifest.files), dataset_files.MANIFEST, *(shard.name for shard in result.manifest.shards)]
    )
    tree = Hierarchy.from_parquet(root / dataset_files.HIERARCHY)
    labels = index.join(loose.items, on="key", suffix="/name", maintain_order="left")
    for level, names in zip(LEVELS, tree.names, strict=True):
        assert [names[i] if i >= 0 else None for i in labels[level]] == labels[f"{level}/name"].to_list()
    for split in ("train", "test"):
        dataset = hgld.open_dataset(root, split)
        for i, file in enumerate(labels.filter(split=split)["file"]):
            assert dataset.read(i) == release.images[file]
    assert "1 images are exact copies of others; the index names the originals in duplicate_of." in result.notes
    copies = index.filter(pl.col("sha256").is_duplicated())
    assert sorted(copies["key"]) == ["1/0", "copies/first"]
    assert copies["duplicate_of"].to_list() == [None, copies["key"][0]]
    assert result.manifest.splits["train"]["unlabelled"] == 1
    assert result.manifest.splits["train"]["classes"] == {"species": 3, "family": 2}


@pytest.mark.slow
def test_worker_count_item_order_and_folder_do_not_change_the_bytes(built, loose, tmp_path):
    build(replace(loose, items=loose.items.reverse()), tmp_path / "out", workers=2, keep_examined=True)
    made = bytes_of(tmp_path / "out")
    assert made == bytes_of(built[1])
    assert str(tmp_path).encode() not in b"".join(made.values())


@pytest.mark.parametrize("tars", [0, 2])
def test_workers_may_run_in_another_folder(release, tars, tmp_path, monkeypatch):
    """Workers of a Ray cluster may have another working directory, so paths in a unit must be absolute."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run_elsewhere(work, units, done, **_):
        with chdir(elsewhere):
            for unit in units:
                done(unit, work(unit))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hgld.pipelines.shards.work.run_units", run_elsewhere)
    here = Path("source")
    catalog = (
        release.tar_catalog(here, release.write_tars(here, tars)) if tars else release.catalog(release.write(here))
    )
    build(catalog, "out", keep_examined=True)
    monkeypatch.undo()
    assert findings(tmp_path / "out", decode=True).is_empty()
    assert list(elsewhere.iterdir()) == []


def test_release_in_tars_gives_the_same_shards_as_loose_files(built, release, tmp_path):
    containers = release.write_tars(tmp_path / "tars", tars=3)
    result = build(release.tar_catalog(tmp_path, containers), tmp_path / "out")
    one, other = index_of(tmp_path / "out"), index_of(built[1])
    assert one.drop("offset", "source").equals(other.drop("offset", "source"))
    assert findings(tmp_path / "out", decode=True).is_empty()
    assert [(tar["file"], tar["md5"]) for tar in result.manifest.provenance["tars"]] == [
        (c.path.name, c.md5) for c in containers
    ]


def test_excluded_images_are_removed_from_lists_and_judgements(release, tmp_path):
    root = release.write(tmp_path / "source")
    (root / "0/0.jpg").write_bytes(b"")
    (root / "1/1.jpg").unlink()
    (root / "3/3.jpg").write_bytes(release.images["3/3.jpg"][:-30])
    catalog = release.catalog(
        root,
        lists=pl.DataFrame({"list": ["small"] * 3, "key": ["0/0", "0/1", "1/0"]}),
        judgements=pl.DataFrame({"query": ["3/0", "3/3"], "item": ["3/2", "3/0"], "verdict": ["easy", "hard"]}),
        dropped=pl.DataFrame({"file": ["x.txt"], "split": ["train"], "reason": ["no image"], "detail": ["row 7"]}),
    )
    result = build(catalog, tmp_path / "out")
    assert result.manifest.rejected == {"empty": 1, "missing": 1, "no image": 1, "truncated": 1}
    rejected = index_file.read_table(dataset_files.REJECTED, tmp_path / "out" / dataset_files.REJECTED)
    assert rejected.select("key", "split", "file", "reason").rows() == [
        ("3/3", "test", "3/3.jpg", "truncated"),
        ("0/0", "train", "0/0.jpg", "empty"),
        ("1/1", "train", "1/1.jpg", "missing"),
        (None, "train", "x.txt", "no image"),
    ]
    lists = index_file.read_table(dataset_files.LISTS, tmp_path / "out" / dataset_files.LISTS)
    assert lists["key"].to_list() == ["0/1", "1/0"]
    judged = index_file.read_table(dataset_files.JUDGEMENTS, tmp_path / "out" / dataset_files.JUDGEMENTS)
    assert judged.rows() == [("3/0", "3/2", "easy")]
    assert "1 rows about items that are not in the shards were removed from lists.parquet." in result.notes
    assert findings(tmp_path / "out", decode=True).is_empty()


def test_resized_dataset_has_upright_images_and_scaled_boxes(release, tmp_path):
    catalog = release.catalog(release.write(tmp_path / "source"))
    boxes = pl.DataFrame([(4, 4, 20, 20)] * len(catalog.items), schema=dict.fromkeys(BOX, pl.Int32), orient="row")
    catalog = replace(catalog, items=pl.concat([catalog.items, boxes], how="horizontal"))
    provenance = build(catalog, tmp_path / "out", resize=16).manifest.provenance
    index = index_of(tmp_path / "out")
    assert index.select(pl.min_horizontal("width", "height").unique()).to_series().to_list() == [16]
    assert (index["orientation"].unique().to_list(), index["suffix"].unique().to_list()) == ([1], ["jpg"])
    assert index.select(BOX).unique().rows() == [(2, 2, 10, 10)]
    assert findings(tmp_path / "out", decode=True).is_empty()
    assert provenance["config"]["shards"]["quality"] == 90
    assert "simplejpeg" in provenance["versions"]


class TestTarsDownloadedOneByOne:
    def test_missing_tar_stops_the_build_and_examined_tars_are_not_read_again(self, built, release, tmp_path):
        containers = release.write_tars(tmp_path / "tars", tars=3)
        data = containers[1].path.read_bytes()
        containers[1].path.unlink()
        catalog = release.tar_catalog(tmp_path, containers)
        with pytest.raises(InputError, match=r"1 tars are missing: .*set_1\.tar.*--partial"):
            build(catalog, tmp_path / "out")
        assert len(list((tmp_path / "out/.build/examined").glob("set-*.parquet"))) == 2
        containers[1].path.write_bytes(data)
        told: list[tuple[str, int, int | None]] = []

        def tell(task: str, done: int, total: int | None) -> None:
            told.append((task, done, total))

        build_catalog(catalog, None, tmp_path / "out", SourceConfig(), SMALL, tell)
        assert told[0] == ("examining", 2, 3)
        assert len(index_of(tmp_path / "out")) == len(index_of(built[1]))

    def test_spooled_tars_may_be_deleted(self, release, tmp_path):
        containers = release.write_tars(tmp_path / "tars")
        catalog = release.tar_catalog(tmp_path, containers)
        build(catalog, tmp_path / "whole", keep_examined=True)
        data = containers[1].path.read_bytes()
        containers[1].path.unlink()
        with pytest.raises(InputError, match=r"kept in .*these tars may be deleted"):
            build(catalog, tmp_path / "out", keep_examined=True)
        containers[0].path.unlink()
        containers[1].path.write_bytes(data)
        build(catalog, tmp_path / "out", keep_examined=True)
        assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")

    def test_partial_build_excludes_missing_and_damaged_tars(self, release, tmp_path):
        containers = release.write_tars(tmp_path / "tars", tars=3)
        containers[1].path.unlink()
        containers[2].path.write_bytes(containers[2].path.read_bytes()[:-2_000])
        catalog = release.tar_catalog(tmp_path, containers)
        with pytest.raises(InputError, match=r"missing: .*set_1\.tar.*set_2\.tar.*--partial"):
            build(catalog, tmp_path / "out")
        result = build(catalog, tmp_path / "out", partial=True)
        assert result.manifest.rejected == {"missing": 15}
        assert [note for note in result.notes if "tar" in note] == [
            "built without the missing tar set_1.tar.",
            "built without the refused tar set_2.tar.",
        ]
        assert findings(tmp_path / "out", decode=True).is_empty()


class TestOutputFolder:
    def test_finished_build_removes_its_work_folder_and_does_nothing_else(self, built, loose, finished):
        left = finished / ".build"
        (left / "packed").mkdir(parents=True)
        (left / "build.json").write_text("{}")
        shutil.rmtree(loose.root / "0")
        again = build(loose, finished)
        assert (again.was_run, again.manifest) == (False, built[0].manifest)
        assert bytes_of(finished) == bytes_of(built[1])

    def test_output_folder_with_unrelated_files_is_refused_and_unchanged(self, loose, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("precious")
        with pytest.raises(ConfigError, match=r"is not empty \(thesis\.tex\)"):
            build(loose, tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]

    def test_finished_dataset_is_not_replaced_if_options_changed(self, built, loose, finished):
        with pytest.raises(ConfigError, match="holds the dataset 'toy', built from other lists or with other options"):
            build(loose, finished, group_size=2)
        with pytest.raises(ConfigError, match="other lists"):
            build(replace(loose, items=loose.items[1:]), finished)
        assert bytes_of(finished) == bytes_of(built[1])

    def test_too_little_disk_space_is_reported_before_a_shard_is_written(self, loose, tmp_path, monkeypatch):
        monkeypatch.setattr(work.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1_000_000))
        with pytest.raises(StorageError, match=r"1\.0 MB of free space, but the build needs about 67\.\d MB"):
            build(loose, tmp_path / "out")
        assert not list((tmp_path / "out").glob("*.tar"))


def test_address_of_a_ray_cluster_without_ray_is_refused():
    with pytest.raises(ConfigError, match="--ray-address"):
        ShardConfig(ray_address="auto")
