"""A stage runs once, runs again after any change, and leaves all of its files or none."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from hgld.errors import HgldError, InputError, SchemaError, StorageError
from hgld.pipelines.stage import DONE, StageResult, run_stage
from hgld.settings import key_fields, setting


@dataclass(frozen=True)
class Config:
    letters: str = setting("abc", "What to write.")
    workers: int = setting(1, "Cannot change the output.", key=False)


@dataclass
class Stage:
    """A small stage with one input file, which counts its runs."""

    root: Path
    source: Path
    worked: int = 0

    def run(self, config=Config(), *, version=1, role="source", work=None):
        def write(directory):
            self.worked += 1
            (directory / "letters.txt").write_text(config.letters + self.source.read_text())
            (directory / "deep").mkdir()
            (directory / "deep" / "more.txt").write_text("more")
            return StageResult({"letters": len(config.letters)}, {"spaces": 2}, ("a note",), {"place": Path("x")})

        inputs, fields = {role: self.source}, key_fields(config)
        return run_stage("toy", self.root, version=version, config=fields, inputs=inputs, work=work or write)


@pytest.fixture
def stage(tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("source")
    return Stage(tmp_path / "stages", source)


def files(root):
    """Return the contents of all files, without the times of the record."""
    found = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        text = path.read_text()
        found[str(path.relative_to(root))] = json.dumps(json.loads(text) | {"times": 0}) if path.name == DONE else text
    return found


# -- a stage runs once ------------------------------------------------------------------------------------------------


def test_stage_writes_its_files_and_a_record(stage):
    run = stage.run()
    assert run.was_run
    assert run.path("letters.txt").read_text() == "abcsource"
    assert json.loads((run.directory / DONE).read_text()) == run.record
    record = dict(run.record)
    assert set(record.pop("times")) == {"started", "seconds"}
    assert len(record.pop("key")) == 64
    hashes = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("source", "more", "abcsource")}
    assert record == {
        "schema_version": 1,
        "stage": "toy",
        "version": 1,
        "config": {"letters": "abc"},
        "inputs": {"source": hashes["source"]},
        "counts": {"letters": 3},
        "dropped": {"spaces": 2},
        "notes": ["a note"],
        "details": {"place": "x"},
        "outputs": {
            "deep/more.txt": {"bytes": 4, "sha256": hashes["more"]},
            "letters.txt": {"bytes": 9, "sha256": hashes["abcsource"]},
        },
    }
    assert [path.name for path in stage.root.iterdir()] == ["toy"]


def test_stage_does_not_run_again_if_only_worker_count_or_paths_change(stage, tmp_path):
    first = stage.run()
    before = (first.directory / DONE).stat().st_mtime_ns
    again = stage.run(Config(workers=8))
    assert (again.was_run, again.record, again.result) == (False, first.record, first.result)
    assert (first.result.counts, first.result.notes) == ({"letters": 3}, ("a note",))
    moved = tmp_path / "elsewhere" / "renamed.txt"
    moved.parent.mkdir()
    stage.source = stage.source.rename(moved)
    assert not stage.run().was_run
    assert stage.worked == 1
    assert (first.directory / DONE).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "change",
    [
        lambda stage: stage.run(Config(letters="abd")),
        lambda stage: stage.run(version=2),
        lambda stage: stage.run(role="origin"),
        lambda stage: stage.source.write_text("Source") and stage.run(),
    ],
    ids=["config", "version", "role", "input"],
)
def test_stage_runs_again_after_a_change(stage, change):
    stage.run()
    assert change(stage).was_run
    assert stage.worked == 2
    assert [path.name for path in stage.root.iterdir()] == ["toy"]


@pytest.mark.parametrize(
    "tamper",
    [
        lambda folder: (folder / "letters.txt").write_text("abcsourcE"),
        lambda folder: (folder / "deep" / "more.txt").unlink(),
        lambda folder: (folder / DONE).unlink(),
        lambda folder: (folder / DONE).write_text((folder / DONE).read_text()[:50]),
        lambda folder: (folder / DONE).write_text('{"schema_version": 1}'),
    ],
    ids=["same-size", "missing", "no-record", "torn-record", "bare-record"],
)
def test_stage_with_changed_files_runs_again(stage, tamper):
    expected = files(stage.run().directory)
    tamper(stage.root / "toy")
    assert stage.run().was_run
    assert files(stage.root / "toy") == expected


def test_stage_record_with_an_unknown_schema_version_is_refused(stage):
    done = stage.run().directory / DONE
    done.write_text(done.read_text().replace('"schema_version": 1', '"schema_version": 7'))
    with pytest.raises(SchemaError, match=r"done.json: schema version is 7; this hgld reads version 1. Build into"):
        stage.run()


# -- all files or none -----------------------------------------------------------------------------------------------


class Refused(HgldError):
    pass


@pytest.mark.parametrize("error", [Refused("no"), KeyboardInterrupt(), ZeroDivisionError()])
def test_failed_stage_keeps_its_earlier_files(stage, error):
    def fail(directory):
        (directory / "half.txt").write_text("half")
        raise error

    with pytest.raises(type(error)):
        stage.run(work=fail)
    assert list(stage.root.iterdir()) == []
    before = files(stage.run().directory)
    with pytest.raises(type(error)):
        stage.run(Config(letters="x"), work=fail)
    assert files(stage.root) == {f"toy/{name}": text for name, text in before.items()}
    assert not stage.run().was_run


# -- the disk -----------------------------------------------------------------------------------------------------


def full_text(directory):
    (directory / "x").symlink_to("/dev/full")
    (directory / "x").write_text("x" * 100_000)


def full_parquet(directory):
    (directory / "x.parquet").symlink_to("/dev/full")
    pl.DataFrame({"x": [1]}).write_parquet(directory / "x.parquet")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which simulates a full disk")
@pytest.mark.parametrize("write", [full_text, full_parquet])
def test_full_disk_is_a_storage_error_and_leaves_no_files(stage, write):
    def work(directory):
        (directory / "first.txt").write_text("first")
        write(directory)
        return StageResult()

    with pytest.raises(StorageError, match=r"stage 'toy' could not write to .*No space left.*Free space or choose"):
        stage.run(work=work)
    assert list(stage.root.iterdir()) == []
    assert stage.run().was_run


def test_unwritable_folder_is_a_storage_error(stage, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file" / "stages", Path("/proc/none/stages")):
        stage.root = root
        with pytest.raises(StorageError, match=f"could not write to {root}"):
            stage.run()
    assert (tmp_path / "file").read_text() == "in the way"


def test_errors_while_reading_inputs_are_not_storage_errors(stage, tmp_path):
    def read(directory):
        (tmp_path / "images" / "1.jpg").read_bytes()
        return StageResult()

    with pytest.raises(FileNotFoundError, match=r"1.jpg"):
        stage.run(work=read)
    assert list(stage.root.iterdir()) == []


def test_error_about_a_missing_stage_input_contains_its_path(stage):
    stage.source.unlink()
    with pytest.raises(InputError, match=r"stage 'toy' cannot read its input 'source' \(.*source.txt\): No such file"):
        stage.run()
