"""Builds and repairs stopped at any change of the disk resume to the same bytes."""

import shutil
from dataclasses import replace
from itertools import chain, takewhile

import polars as pl
import pytest

from hgld.data import format as files
from hgld.errors import InputError
from tests.faults.disk import EVERY, Stopped, stop_everywhere
from tests.pipelines.toy_release import ToyRelease, build

MINE = {"my-backup.tar": b"precious", "train-2.tar": b"mine", "notes.txt": b"mine too"}


@pytest.fixture(scope="module")
def source(module_path):
    return ToyRelease.make((2, 2, 3)).write(module_path)


@pytest.fixture
def catalog(source):
    return ToyRelease.make((2, 2, 3)).catalog(source)


@pytest.fixture(params=[pytest.param(EVERY or 9, marks=pytest.mark.slow), 43])
def every(request):
    """Return n: a run is stopped at every n-th change of the disk. ``HGLD_STOPS=1`` tries every change."""
    return request.param


def contents(root):
    """Return the bytes of every file in a folder by path, and None for every subfolder."""
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def ends_as(whole, places, again):
    """Check that every stopped run, when repeated, gives the files of an uninterrupted run."""
    stops = 0
    for place in places:
        again(place)
        assert contents(place) == whole, f"stop {stops}"
        stops += 1
    assert stops > 1


def unfinished(places):
    """Yield the folders of runs that were stopped before the manifest was written."""
    return takewhile(lambda place: not (place / files.MANIFEST).exists(), places)


def test_build_from_tars_stopped_at_any_disk_change_resumes_to_the_same_bytes(tmp_path, every):
    release = ToyRelease.make((2, 2, 3))
    catalog = release.tar_catalog(tmp_path, release.write_tars(tmp_path / "tars"))

    def run(out):
        build(catalog, out, shard_items=3, keep_examined=True)

    run(tmp_path / "whole")
    ends_as(contents(tmp_path / "whole"), stop_everywhere(lambda n: tmp_path / f"out-{n}", run, every), run)


def test_build_with_changed_options_removes_all_files_of_a_stopped_build(catalog, tmp_path, every, monkeypatch):
    """The second build has fewer splits, shards and tables; it keeps files of the user."""
    lists = pl.DataFrame({"list": ["small"], "key": ["0/0"]})
    fewer = replace(catalog, items=catalog.items.filter(pl.col("split") == "train"))

    def first(out):
        build(replace(catalog, lists=lists), out, shard_items=2)

    def again(out):
        mine = MINE if (out / ".build" / "build.json").exists() else {}
        for name, data in mine.items():
            (out / name).write_bytes(data)
        build(fewer, out, shard_items=3)
        for name, data in mine.items():
            assert (out / name).read_bytes() == data
            (out / name).unlink()

    build(fewer, tmp_path / "whole", shard_items=3)

    def put_all_but_the_manifest(aside, path):
        stop() if path.name == files.MANIFEST else aside.replace(path)

    monkeypatch.setattr("hgld.pipelines.shards.cards.put_in_place", put_all_but_the_manifest)
    with pytest.raises(Stopped):
        first(tmp_path / "late")
    monkeypatch.undo()
    assert (tmp_path / "late" / files.LISTS).exists()
    places = unfinished(stop_everywhere(lambda n: tmp_path / f"out-{n}", first, every))
    ends_as(contents(tmp_path / "whole"), chain([tmp_path / "late"], places), again)


def test_shards_built_with_old_options_are_deleted_before_images_are_examined(catalog, tmp_path, monkeypatch):
    """Otherwise a full disk would have no room for the images that --resize keeps."""
    out = tmp_path / "out"
    monkeypatch.setattr("hgld.pipelines.shards.build.finish", stop)
    with pytest.raises(Stopped):
        build(catalog, out, shard_items=3)
    assert len(list(out.glob("*.tar"))) > 1
    (out / "my-backup.tar").write_bytes(b"precious")
    monkeypatch.setattr("hgld.pipelines.shards.build.examine_release", stop)
    with pytest.raises(Stopped):
        build(catalog, out, shard_items=3, resize=16)
    assert [path.name for path in out.glob("*.tar")] == ["my-backup.tar"]


def stop(*_):
    raise Stopped


def test_repair_stopped_at_any_disk_change_resumes_and_restores_the_dataset(catalog, tmp_path, every):
    build(catalog, tmp_path / "whole", shard_items=3)
    whole = {**contents(tmp_path / "whole"), **MINE}

    def damaged(n):
        out = shutil.copytree(tmp_path / "whole", tmp_path / f"out-{n}")
        (out / "train-000001.tar").unlink()
        for name, data in MINE.items():
            (out / name).write_bytes(data)
        return out

    def run(out):
        build(catalog, out, shard_items=3)

    ends_as(whole, stop_everywhere(damaged, run, every), run)


def test_repair_without_the_release_changes_no_file(catalog, tmp_path):
    build(catalog, tmp_path / "out")
    (tmp_path / "out" / "train-000000.tar").unlink()
    left = contents(tmp_path / "out")
    with pytest.raises(InputError, match="none of the 9 images"):
        build(replace(catalog, root=tmp_path / "elsewhere"), tmp_path / "out")
    assert {name: data for name, data in contents(tmp_path / "out").items() if name[0] != "."} == left


def test_build_resumed_after_images_were_removed_equals_a_new_build(tmp_path, every):
    release = ToyRelease.make((2, 2, 3))

    def begun(n):
        release.write(tmp_path / f"source-{n}")
        return tmp_path / f"out-{n}"

    def run(out):
        build(release.catalog(out.with_name(out.name.replace("out", "source"))), out, shard_items=2)

    def again(out):
        for image in ("0/0.jpg", "0/1.jpg", "1/1.jpg"):
            (out.with_name(out.name.replace("out", "source")) / image).unlink(missing_ok=True)
        run(out)

    again(begun(0))
    whole = contents(tmp_path / "out-0")
    shutil.rmtree(tmp_path / "out-0")
    ends_as(whole, unfinished(stop_everywhere(begun, run, every)), again)
