"""A stopped process leaves files and folders complete or unchanged, and releases its locks."""

import fcntl
import multiprocessing
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hgld.errors import StorageError
from hgld.files import file_lock, lock_of, write_atomic, write_folder
from tests.faults.disk import failing_disk, stop_everywhere
from tests.rows import each_row


def listed(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@each_row(("content", "racing"), [(b"new", False), ("new", True), (lambda path: path.write_bytes(b"new"), False)])
def test_stopped_write_leaves_the_old_or_the_new_file(tmp_path, content, racing):
    def prepare(changes):
        folder = tmp_path / str(changes)
        folder.mkdir()
        (folder / "report.json").write_bytes(b"old")
        return folder

    found = []
    for folder in stop_everywhere(prepare, lambda at: write_atomic(at / "report.json", content, racing=racing)):
        found.append((folder / "report.json").read_bytes())
        write_atomic(folder / "report.json", b"newer", racing=racing)
        # The writer overwrote the temporary files of the stopped one.
        assert racing or listed(folder) == {"report.json": b"newer"}
    assert found == sorted(found, reverse=True)
    assert set(found) == ({b"old"} if racing else {b"old", b"new"})


def test_failing_writer_leaves_the_existing_file(tmp_path):
    (tmp_path / "x").write_text("old")

    def half(path):
        path.write_text("ne")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_atomic(tmp_path / "x", half)
    assert listed(tmp_path) == {"x": b"old"}


@each_row("there", [False, True])
def test_stopped_write_leaves_the_old_or_the_new_folder(tmp_path, there):
    """A stop between two renames leaves no folder; the next writer restores it."""

    def prepare(changes):
        folder = tmp_path / str(changes)
        folder.mkdir()
        if there:
            write_folder(folder / "kept", lambda aside: (aside / "old").write_text("old"))
        return folder

    def fill(aside):
        (aside / "deep").mkdir()
        (aside / "deep/a").write_text("new")
        (aside / "b").write_text("new")
        return "made"

    def run(folder):
        assert write_folder(folder / "kept", fill) == "made"

    old, new, states = {"old": b"old"} if there else {}, {"deep/a": b"new", "b": b"new"}, []
    for folder in stop_everywhere(prepare, run):
        states.append(listed(folder / "kept"))
        with pytest.raises(ZeroDivisionError):
            write_folder(folder / "kept", lambda aside: 1 / 0)
        assert listed(folder / "kept") in (old, new)
        run(folder)
        assert listed(folder) == {f"kept/{name}": data for name, data in new.items()}
    assert all(state in (old, new, {}) for state in states)
    assert states[0] == old
    assert states[-1] == new


def test_atomic_files_have_the_permissions_of_plain_files(tmp_path):
    def private(path):
        path.write_text("x")
        path.chmod(0o600)

    (tmp_path / "plain").write_text("x")
    write_atomic(tmp_path / "atomic", private)
    write_folder(tmp_path / "folder", lambda folder: private(folder / "in"))
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic", "folder/in")}
    assert len(modes) == 1


def test_racing_processes_each_write_a_whole_folder(tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(_fill_again_and_again, [(tmp_path / "kept", "a"), (tmp_path / "kept", "b")])
    texts = {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert texts in ({"1": "a", "2": "a"}, {"1": "b", "2": "b"})
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def _fill_again_and_again(path, letter):
    def fill(folder):
        for name in ("1", "2"):
            (folder / name).write_text(letter)

    for _ in range(30):
        write_folder(path, fill)


# -- locks -------------------------------------------------------------------------------------------------------------


def test_second_holder_of_a_lock_fails(tmp_path):
    path, nowhere = tmp_path / "lock", tmp_path / "no folder" / "lock"
    with file_lock(path, "busy"), pytest.raises(StorageError, match="busy"), file_lock(path, "busy"):
        pass
    with file_lock(path, "busy", keep=False):
        pass
    assert not path.exists()
    with pytest.raises(StorageError, match="cannot be opened"), file_lock(nowhere, "busy"):
        pass
    # The writer reports this error.
    with pytest.raises(FileNotFoundError), file_lock(nowhere):
        pass


def test_lock_file_that_cannot_be_removed_stays_and_hides_no_error(tmp_path):
    path = tmp_path / "lock"
    with failing_disk(tmp_path, 1, "read-only"), file_lock(path, keep=False):  # opening the file is the first change
        pass
    with (
        pytest.raises(StorageError, match="its own error"),
        failing_disk(tmp_path, 1, "read-only"),
        file_lock(path, keep=False),
    ):
        raise StorageError("its own error")
    with file_lock(path, "busy", keep=False):
        assert path.exists()


def test_waiting_threads_hold_a_lock_one_after_another(tmp_path):
    """Each thread deletes the lock file on release; the counter that the lock protects still loses no update."""
    path, counter = tmp_path / "lock", tmp_path / "counter"
    counter.write_text("0")

    def count():
        for _ in range(25):
            with file_lock(path, keep=False):
                counter.write_text(str(int(counter.read_text()) + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: count(), range(4)))
    assert counter.read_text() == "100"


@each_row("write", [write_atomic, write_folder])
def test_writers_use_a_separate_lock_file(tmp_path, write):
    """A locked file cannot be written over SMB, and a writer may replace the file that it gets."""

    def fill(aside):
        with pytest.raises(StorageError, match="busy"), file_lock(lock_of(tmp_path / "x"), "busy"):
            pass
        descriptor = os.open(aside, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)

    write(tmp_path / "x", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
