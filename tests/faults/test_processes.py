"""Commands with several processes that a failure stops at some change: repeating the command gives equal files."""

import itertools
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.commands import COMMANDS, assert_said, contents, succeed
from tests.faults.disk import EVERY, changes_of, in_workers
from tests.faults.starter import Starter

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket, *([pytest.mark.timeout(0)] if EVERY else [])]
CODES = {"kill": -signal.SIGKILL, "full": 2, "read-only": 2, "interrupt": 130, "terminate": 143, "hang up": 129}
SETTINGS = {
    "hgld.pipelines.executor:START": "forkserver",  # starting six new interpreters would take most of the time
    "hgld.pipelines.shards.examine:FILES_PER_UNIT": 4,  # gives three units of work
}
FAULTS = {fault: EVERY if fault == "kill" else 8 * EVERY for fault in CODES} if EVERY else {"some": 0}
BUILDS = ((10, "kill"), (20, "full"), (25, "interrupt"), (45, "kill"))
Command = Callable[..., int]  # (folder, injected failure or None) -> exit code of the command in that folder


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter({"OMP_NUM_THREADS": "1"}) as started:  # more threads than cores take twice as long
        yield started


def ends_in_the_same_bytes(
    command,
    whole,
    folder,
    workers,
    fault,
    some=BUILDS,
):
    """Stop a command at every change, each time in a new folder; or at the changes of ``some``, all in one folder."""
    if not EVERY:
        (folder / "place").mkdir()
        for moment in some:
            assert command(folder / "place", moment) != 0
        assert command(folder / "place") == 0
        assert contents(folder / "place") == whole
        return
    for after in itertools.count(0, FAULTS[fault]):
        place = folder / str(after)
        place.mkdir()
        code = command(place, (after, fault))
        assert code or whole.items() <= contents(place).items()  # leftover files are allowed: the next run removes them
        if changes_of(workers) <= after:
            assert after > 8
            break
        assert command(place) == 0
        assert contents(place) == whole, after


def build(starter: Starter, base: Path, words: str, workers: Path, environment: dict[str, str]) -> Command:
    def command(place: Path, fault: tuple[int, str] | None = None) -> int:
        [(code, said)] = starter.run(words, base, place, [environment], fault=fault, workers=workers, settings=SETTINGS)
        if code != -signal.SIGKILL or fault is None or fault[1] != "kill":
            assert_said(said, code, 0, *([CODES[fault[1]]] if fault else []))
        return code

    return command


def alone(name, base, place):
    """Run a build with one process; return its arguments and its files."""
    words = COMMANDS[name].words
    place.mkdir()
    succeed(words, base, place)
    return words, contents(place)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["build-shards", "build-shards, spooled"])
def test_stopped_build_with_three_workers_resumes_to_equal_files(base, starter, name, fault, tmp_path):
    workers = tmp_path / "workers"
    words, whole = alone(name, base, tmp_path / "alone")
    started = build(starter, base, words.replace("--workers 1", "--workers 3"), workers, in_workers(workers))
    ends_in_the_same_bytes(started, whole, tmp_path, workers, fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_stopped_training_in_two_processes_resumes_to_equal_files(base, starter, fault, tmp_path):
    """A kill ends both processes, or only one; then the other process stops too."""
    workers, words = tmp_path / "workers", COMMANDS["train"].words
    in_workers(workers)

    def command(place: Path, fault: tuple[int, str] | None = None) -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [{**both, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
        is_alone = fault is not None and fault[1] == "kill alone"
        counted = {"fault": (fault[0], "kill")} if fault and is_alone else {"fault": fault, "workers": workers}
        within = "" if EVERY else "out/checkpoints"
        first, second = starter.run(words, base, place, ranks, within=within, **counted)
        expected = [0] if fault is None else [0, 130, CODES.get(fault[1], -signal.SIGKILL)]
        assert first[0] in expected, (first, second)
        # the first process writes the summary after the second has ended
        assert (first[0] == 0) == (second[0] == 0) or "summary.json" in first[1], (first, second)
        return first[0]

    (tmp_path / "whole").mkdir()
    command(tmp_path / "whole")
    some = ((5, "kill alone"), (7, "kill"))  # after change 5 (a checkpoint file) and after change 7 (its rename)
    ends_in_the_same_bytes(command, contents(tmp_path / "whole"), tmp_path, workers, fault, some)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("fault", FAULTS)
def test_stopped_build_on_ray_resumes_to_equal_files(base, starter, cluster, fault, tmp_path):
    """The failure is in the command; Ray's processes go on. The last test, because its filter covers Ray's end, too."""
    workers = tmp_path / "workers"
    words, whole = alone("build-shards", base, tmp_path / "alone")
    on_ray = words.replace("--workers 1", f"--executor ray --ray-address {cluster}")
    address = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}  # its token, too
    started = build(starter, base, on_ray, workers, address | in_workers(workers))
    some = (*BUILDS[:2], (25, "terminate"))  # ray has its own handler of SIGTERM
    ends_in_the_same_bytes(started, whole, tmp_path, workers, fault, some)
