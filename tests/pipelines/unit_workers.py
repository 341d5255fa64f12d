"""Units of work for tests of executors, in a module of their own so that worker processes can import them."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from hgld.errors import InputError


@dataclass(frozen=True)
class Sum:
    """Adds numbers; may kill its worker the first so many times, or refuse."""

    name: str
    numbers: tuple[int, ...]
    folder: Path
    kills: int = 0
    refuses: bool = False


def add(unit: Sum) -> tuple[int, int]:
    """The sum, and the process that made it. Every attempt leaves a file."""
    attempts = len(list(unit.folder.glob(f"{unit.name}.*")))
    (unit.folder / f"{unit.name}.{attempts}").touch()
    if attempts < unit.kills:
        os.kill(os.getpid(), signal.SIGKILL)
    if unit.refuses:
        raise InputError(f"{unit.name} is refused")
    return sum(unit.numbers), os.getpid()


def wait_forever(unit: Sum) -> None:
    """Says that it began, then waits to be ended."""
    (unit.folder / f"{unit.name}.{os.getpid()}").touch()
    signal.pause()


def done_alone(what: str) -> str:
    """Return, fail, crash, leave, hang, or take memory, as it is told."""
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
