"""Commands on a disk that fails at some change: no file is lost, and repeating the command completes the work."""

import errno
import fcntl
import hashlib
import os
import random
import re
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hgld.errors import HgldError, StorageError
from hgld.files import PART
from hgld.pipelines.download import Downloader, RemoteFile
from hgld.pipelines.hierarchy.review.decisions import Move
from hgld.pipelines.hierarchy.review.journal import Journal
from hgld.training.inference import export
from tests.faults.commands import COMMANDS, Command, assert_said, contents, place_of, run, succeed
from tests.faults.disk import EVERY, Stopped, counted_changes, failing_disk, largest_file, nfs_removals
from tests.hgld.range_server import RangeServer

pytestmark = [
    pytest.mark.slow,
    *([pytest.mark.timeout(0)] if EVERY else []),
    # A failing disk also ends the writer thread of TensorBoard; the run reports this in one line.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
BUSY = re.compile(r"(?i)another|in use")
FAULTS = ("stop", "full", "read-only", "signal")
SIGNALS = {"interrupt": 130, "terminate": 143, "hang up": 129}


@dataclass(frozen=True)
class Case:
    """A command, its folder, and its files before and after.

    Attributes:
        command: the command.
        found: copy of the folder before the command.
        before: contents of the files before the command.
        whole: contents of the files after a run without failures.
        changes: number of changes in a run without failures.
        mended: hashes of the partial results from which the command has already completed.
    """

    command: Command
    found: Path
    before: dict[str, Any]
    whole: dict[str, Any]
    changes: int
    mended: set[str] = field(default_factory=set)

    def at(self, place):
        """Copy the folder as it was before the command to a new path."""
        return shutil.copytree(self.found, place)


@pytest.fixture(scope="module", autouse=True)
def onnx_file_converted_once(module_path):
    """Convert the model to ONNX once: a conversion takes seconds, and writes outside the command's folder."""
    first, convert = module_path / "model.onnx", export._write

    def write(embedder, size, path):
        if not first.exists():
            convert(embedder, size, first)
        shutil.copy(first, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_write", write)
        yield


@pytest.fixture(scope="module", params=COMMANDS)
def case(request, base, tmp_path_factory):
    command, folder = COMMANDS[request.param], tmp_path_factory.mktemp("case")
    found = place_of(command, base, folder / "found")
    place = shutil.copytree(found, folder / "whole")
    with counted_changes(place) as changes:
        succeed(command.words, base, place)
    assert len(changes) > 2
    whole = contents(place)
    assert len({name.casefold() for name in whole}) == len(whole)  # some file systems ignore the case of names
    return Case(command, found, contents(found), whole, len(changes))


def moments(changes, stops, fault):
    """Return the changes at which the disk fails; they differ between the types of failure."""
    stride = EVERY or max(1, changes // stops)
    return range(FAULTS.index(fault) * stride // len(FAULTS), changes, stride)


@pytest.mark.parametrize("fault", FAULTS)
def test_command_recovers_from_a_disk_that_fails_at_any_change(base, case, fault, tmp_path):
    """The signal alternates between SIGINT, SIGTERM and SIGHUP. After a signal, temporary files are empty or gone."""
    for number, changes in enumerate(moments(case.changes, case.command.stops, fault)):
        name = list(SIGNALS)[number % len(SIGNALS)] if fault == "signal" else fault
        place = case.at(tmp_path / str(changes))
        ended, left = fails(case.command.words, base, place, changes, name), contents(place)
        if ended == 0:  # the run succeeded although this change failed; leftover files are removed by the next run
            assert case.whole.items() <= left.items(), changes
        if fault == "signal":
            # Empty temporary files may remain: the signal came after a file was opened and before its first write.
            assert not [name for name, data in left.items() if PART in name and data], changes
        assert_kept(case, left)
        assert_mends(case, base, place, left)


@pytest.mark.filterwarnings("default::hgld.files.NoLockWarning")
def test_command_succeeds_on_a_file_system_without_locks_and_folder_flushes(base, case, tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def flush(descriptor, *, flush_file=os.fsync):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        flush_file(descriptor)

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(os, "fsync", flush)
    place = case.at(tmp_path / "place")
    succeed(case.command.words, base, place)
    assert contents(place) == case.whole


def test_command_succeeds_on_nfs_and_leaves_no_file_open(base, case, tmp_path):
    """NFS keeps an open file that is removed or replaced, under another name, until it is closed."""
    place = case.at(tmp_path / "place")
    with nfs_removals(place):
        succeed(case.command.words, base, place)
    assert contents(place) == case.whole


def fails(words, base, place, changes, fault):
    """Run a command on a failing disk; return its exit code, or -1 if the disk stopped it."""
    try:
        with failing_disk(place, changes, fault):
            code, said = run(words, base, place)
    except Stopped:
        return -1
    if code:  # after any signal, train writes a checkpoint and exits with 130
        is_train = fault in SIGNALS and words.startswith("train")
        assert_said(said, code, SIGNALS.get(fault, 2), *([130] if is_train else []))
    return code


def assert_kept(case, left):
    """Check that every old file is unchanged or replaced by its final version."""
    for name, data in case.before.items() if case.command.keeps else ():
        assert left.get(name) in (data, case.whole.get(name)), name


def assert_mends(case, base, place, left=None):
    """Check that the same command then makes the final files; skip partial results that were already checked."""
    names = sorted(str(path.relative_to(place)) for path in place.rglob("*"))
    state = hashlib.sha256(repr((names, left)).encode()).hexdigest()
    if left is not None and state in case.mended:
        return
    case.mended.add(state)
    succeed(case.command.words, base, place)
    assert contents(place) == case.whole, place.name


def test_command_recovers_from_a_limit_on_file_size(base, case, tmp_path):
    place = case.at(tmp_path / "place")
    with largest_file(1_000):
        code, said = run(case.command.words, base, place)
    if code:
        assert_said(said, code, 2)
        left = contents(place)
        assert_kept(case, left)
        assert_mends(case, base, place, left)
        return
    assert contents(place) == case.whole


def test_same_command_started_twice_leaves_the_files_of_one_run(base, case, starter, tmp_path):
    """The second command waits, or its error reports the first command. The files equal the result of a single run."""
    place = case.at(tmp_path / "place")
    ended = starter.run(case.command.words, base, place, [{}, {}])
    assert min(code for code, _ in ended) == 0, ended
    for code, said in ended:
        assert code == 0 or (code == 2 and BUSY.search(said) and said.count("\n") == 1), said
    assert contents(place) == case.whole


@pytest.mark.parametrize("fault", ["stop", "full", "read-only"])
def test_download_recovers_from_a_disk_that_fails_at_any_change(fault, tmp_path):
    data = random.Random(0).randbytes(300_000)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.tar").write_bytes(data)
    with RangeServer(tmp_path / "served") as server:

        def fetch(place):
            file = RemoteFile(f"{server.url}/a.tar", place / "a.tar", hashlib.md5(data).hexdigest())
            Downloader(backoff=0.001, timeout=5.0).fetch([file])

        with counted_changes(tmp_path / "whole") as changes:
            fetch(tmp_path / "whole")
        assert len(changes) > 3
        for after in range(len(changes)):
            place = tmp_path / str(after)
            try:
                with failing_disk(place, after, fault):
                    fetch(place)
            except (Stopped, HgldError):
                pass
            fetch(place)
            assert (place / "a.tar").read_bytes() == data
            assert [path.name for path in place.iterdir()] == ["a.tar"], after


@pytest.mark.parametrize("fault", ["stop", "full", "read-only", "interrupt"])
def test_confirmed_decisions_survive_a_failing_disk(fault, tmp_path):
    """Make two decisions, undo the second and make a third. Repeat this on disks that fail at successive changes."""
    after = 0
    for after in range(100):
        file, confirmed = tmp_path / f"{after}.yaml", []

        def decide(file: Path = file, confirmed: list[str] = confirmed) -> None:
            for why in ("first", "second", None, "third"):
                journal = Journal(file, "ada", "annotator")
                if why is None:
                    journal.take_back(1)
                    confirmed.pop()
                else:
                    journal.append([Move(who="ada", when=journal.next_time(), why=why, names=("tug",), to="ship")])
                    confirmed.append(why)

        try:
            with failing_disk(tmp_path, after, fault):
                decide()
        except (Stopped, StorageError, KeyboardInterrupt):
            kept = [entry.decision.why for entry in Journal(file, "ada", "annotator").entries]
            assert kept[: len(confirmed)] == confirmed or kept == confirmed[:-1]
            assert len(kept) <= len(confirmed) + 1
        else:
            break
    assert 2 < after < 99
