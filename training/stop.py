"""Signals that ask a run to stop: the first lets the step end, the second stops at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequests:
    """Whether a signal has asked to stop.

    Attributes:
        signal: the signal's number, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Hear SIGTERM (a scheduler's) and SIGINT (Ctrl-C) while a run lasts.

    A process of a group hears them all: torchrun and Slurm pass them on.
    """
    requests = StopRequests()
    before = {number: signal.signal(number, requests._hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
