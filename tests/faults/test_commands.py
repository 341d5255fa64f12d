"""Every command that writes, with a disk that fails at every change: nothing is lost, and the same command mends it."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hgld.errors import HgldError, StorageError
from hgld.files import PART
from hgld.pipelines.download import Downloader, RemoteFile
from hgld.pipelines.hierarchy.review.decisions.decisions import Move
from hgld.pipelines.hierarchy.review.decisions.journal import Journal
from tests.faults.commands import COMMANDS, Command, contents, place_of, run, write_base
from tests.faults.disk import Stopped, counted_changes, failing_disk, largest_file
from tests.pipelines.cutting_server import CuttingServer

pytestmark = [
    pytest.mark.slow,
    # TensorBoard writes from a thread of its own, which a failing disk ends too; the run says so in one line.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
ROOT = Path(__file__).parents[2]
BUSY = re.compile(r"(?i)another|in use")
IMPORTED = {
    "hgld",
    "faiss",
    "matplotlib",
    "mpl_toolkits",
    "PIL",
    "scipy",
    "sklearn",
    "tensorboard",
    "torch",
    "tqdm",
    "rich",
}
FAULTS = ("stop", "full", "read-only", "interrupt")
CODES = {"interrupt": 130, "terminate": 143, "hang up": 129}
ALL = "HGLD_STOPS" in os.environ  # the long form: every change, of which the short one takes some


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "base"
    folder.mkdir()
    write_base(folder)
    return folder


@pytest.fixture(scope="module", params=COMMANDS)
def case(request, base) -> tuple[Command, dict[str, Any], dict[str, Any], int]:
    """A command, what it finds in its folder, and what it leaves there."""
    command = COMMANDS[request.param]
    place = place_of(command, base, base.parent / f"whole of {request.param}")
    before = contents(place)
    with counted_changes(place) as changes:
        code, said = run(command.words, base, place)
    assert code == 0, said
    assert len(changes) > 2
    return command, before, contents(place), len(changes)


def moments(changes: int, stops: int, fault: str) -> range:
    """Which changes of a run a fault comes at: others for each fault, so that all four see many."""
    stride = 1 if ALL else max(1, changes // stops)
    return range(FAULTS.index(fault) * stride // len(FAULTS), changes, stride)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_at_any_change(base, case, fault, tmp_path):
    command, before, whole, all_changes = case
    for changes in moments(all_changes, command.stops, fault):
        place = place_of(command, base, tmp_path / str(changes))
        ended, left = fails(command.words, base, place, changes, fault), contents(place)
        if ended == 0:  # it could do without that change; what it could not remove is removed the next time
            assert whole.items() <= left.items(), changes
        assert_kept(command, before, left, whole)
        code, said = run(command.words, base, place)
        assert code == 0, said
        assert contents(place) == whole, changes


def fails(words: str, base: Path, place: Path, changes: int, fault: Any, *also: int) -> int:
    """Run a command on a failing disk; 0 if it came to its end all the same."""
    try:
        with failing_disk(place, changes, fault):
            code, said = run(words, base, place)
    except Stopped:
        return -1
    if code:
        assert_said(said, code, CODES.get(fault, 2), *also)
    return code


@pytest.mark.parametrize(("fault", "share"), [("terminate", 0.4), ("hang up", 0.8)])
def test_sigterm_and_sighup(base, case, fault, share, tmp_path):
    """They stop it as Ctrl-C does: nothing stays beside its files; the same command again ends in the same bytes."""
    command, before, whole, all_changes = case
    for changes in range(all_changes) if ALL else [int(share * all_changes)]:
        place = place_of(command, base, tmp_path / str(changes))
        is_train = command.words.startswith("train")  # which writes a checkpoint once it trains
        code = fails(command.words, base, place, changes, fault, *([130] if is_train else []))
        left = contents(place)
        assert code or left == whole
        assert not [name for name, data in left.items() if PART in name and data], changes  # one just begun is empty
        assert_kept(command, before, left, whole)
        code, said = run(command.words, base, place)
        assert code == 0, said
        assert contents(place) == whole, changes


def assert_said(said: str, code: int, *expected: int) -> None:
    """Hold an error to be one line; TensorBoard's thread shows a traceback of its own before it."""
    assert code in expected, said
    lines = said.splitlines()
    assert len(lines) <= 1 or "tensorboard" in said, said
    assert not lines or (lines[-1].startswith("hgld") and len(lines[-1]) < 2_000), said


def assert_kept(command: Command, before: dict[str, Any], left: dict[str, Any], whole: dict[str, Any]) -> None:
    """Hold what stood in the folder to be there, or to be what replaces it."""
    for name, data in before.items() if command.keeps else ():
        assert left.get(name) in (data, whole.get(name)), name


@pytest.mark.parametrize("size", [300, 3_000])
def test_a_disk_that_fills_up_within_a_file(base, case, size, tmp_path):
    command, before, whole, _ = case
    place = place_of(command, base, tmp_path / "place")
    with largest_file(size):
        code, said = run(command.words, base, place)
    if code:
        assert_said(said, code, 2)
        assert_kept(command, before, contents(place), whole)
        code, said = run(command.words, base, place)
        assert code == 0, said
    assert contents(place) == whole


@pytest.fixture(scope="module")
def two():
    """``two(words, base, place)``: what two processes ended with that ran a command at a time."""
    line = [sys.executable, "-m", "tests.faults.twice"]
    with subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        to, of = starter.stdin, starter.stdout
        assert to is not None
        assert of is not None

        def start(words: str, base: Path, place: Path) -> list[tuple[int, str]]:
            known = [name for name in sys.modules if name.split(".")[0] in IMPORTED]
            asked = {"words": words, "base": str(base), "place": str(place), "modules": known}
            to.write(json.dumps(asked) + "\n")
            to.flush()
            return [tuple(one) for one in json.loads(of.readline())]

        yield start
        to.close()


def test_two_at_once(base, case, two, tmp_path):
    """One waits for the other, or is refused by name; what is left is what one leaves."""
    command, _, whole, _ = case
    for attempt in range(2):
        place = place_of(command, base, tmp_path / str(attempt))
        ended = two(command.words, base, place)
        assert min(code for code, _ in ended) == 0, ended
        for code, said in ended:
            assert code == 0 or (code == 2 and BUSY.search(said) and said.count("\n") == 1), said
        assert contents(place) == whole


def test_a_clock_that_is_set_back(base, case, tmp_path):
    """Half done, with files from tomorrow in the folder: no time of a file decides what is done again."""
    command, _, whole, changes = case
    place = place_of(command, base, tmp_path / "place")
    fails(command.words, base, place, changes // 2, "stop")
    tomorrow = time.time() + 86_400
    for path in place.rglob("*"):
        os.utime(path, (tomorrow, tomorrow))
    code, said = run(command.words, base, place)
    assert code == 0, said
    assert contents(place) == whole


@pytest.mark.parametrize("fault", ["stop", "full", "read-only"])
def test_a_download(fault, tmp_path):
    data = random.Random(0).randbytes(300_000)
    with CuttingServer({"a.tar": data}) as server:

        def fetch(place: Path) -> None:
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
def test_decisions_are_kept_once_they_are_confirmed(fault, tmp_path):
    """Two are made, the second is taken back, a third is made; what did not come through is done again."""
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
                    journal.append([Move(who="ada", when=journal.now(), why=why, names=("tug",), to="ship")])
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
