"""Units of work for tests of executors. Worker processes import this module."""

import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import InputError

if TYPE_CHECKING:
    from hgld.data.images import ImageHeader
    from hgld.pipelines.shards.examine import ExamineUnit


@dataclass(frozen=True)
class Sum:
    """Adds numbers; may kill its worker in the first ``kills`` attempts, fail, or run out of memory."""

    name: str
    numbers: tuple[int, ...]
    folder: Path
    kills: int = 0
    refuses: bool = False
    starves: bool = False


def add(unit: Sum) -> tuple[int, int]:
    """Return the sum and the id of the process; every attempt leaves a file."""
    attempts = len(list(unit.folder.glob(f"{unit.name}.*")))
    (unit.folder / f"{unit.name}.{attempts}").touch()
    if attempts < unit.kills:
        os.kill(os.getpid(), signal.SIGKILL)
    if unit.refuses:
        raise InputError(f"{unit.name} is refused")
    if unit.starves:
        bytearray(1 << 60)
    return sum(unit.numbers), os.getpid()


def examine_in_little_memory(unit: "ExamineUnit") -> str | None:
    """Examine a unit with only 48 MiB of memory for decoding, which is too little for an image of 75 MB.

    The limit applies only to decoding, because polars ends the process if it lacks memory.
    """
    from hgld.pipelines.shards import examine, reading

    def check_decodes(data: bytes, header: "ImageHeader") -> None:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), limits[1]))
        try:
            given(data, header)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    given, reading.check_decodes = reading.check_decodes, check_decodes
    try:
        return examine.examine(unit)
    finally:
        reading.check_decodes = given


def wait_forever(unit: Sum) -> None:
    """Write a file as sign of the start, then wait to be killed."""
    (unit.folder / f"{unit.name}.{os.getpid()}").touch()
    signal.pause()


def done_alone(what: str) -> str:
    """Return, fail, crash, exit, hang, or fill the memory, as ``what`` says."""
    match what:
        case "fail":
            raise InputError("it failed")
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "leave":
            os._exit(3)
        case "hang":
            signal.pause()
        case "take":
            bytearray(1 << 40)
    return what
