"""Units of work for tests of executors. Worker processes import this module."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from hgld.errors import InputError


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
