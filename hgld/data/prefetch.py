"""Prefetching: an iterator that works in a background thread, a bounded number of values ahead of its consumer."""

import atexit
import threading
import time
from collections import deque
from collections.abc import Generator
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_SECONDS_TO_END = 5.0
_SECONDS_AT_EXIT = 20.0  # a batch on a busy machine; a thread that waits for a server longer than that does no harm


class Prefetcher(Generic[T]):
    """Prefetch a generator in a background thread, at most ``ahead`` values ahead of the consumer.

    What the generator raises is raised where the value would have been taken. :meth:`close` ends the generator, which
    then runs its ``finally``; a generator that waits for a server at that moment is left behind and ends on its own.
    Whatever still runs when the interpreter leaves is ended first, closed or not.

    Args:
        values: is run and closed by the thread alone.
        ahead: values that wait at most.
        name: of the thread.

    Attributes:
        waited: seconds that the consumer waited for the last value.
    """

    def __init__(self, values: Generator[T, None, None], ahead: int, name: str) -> None:
        self._values, self._ahead = values, max(ahead, 1)
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed, self._ended = False, False
        self._at_exit = False
        self._error: BaseException | None = None
        self.waited = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _started.add(self)

    def _run(self) -> None:
        try:
            for value in self._values:
                with self._changed:
                    self._ready.append(value)
                    self._changed.notify_all()
                    while len(self._ready) >= self._ahead and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        break
        except BaseException as error:  # noqa: BLE001  # raised again by __next__, in the taker's thread
            self._error = error
        finally:
            self._values.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def __iter__(self) -> "Prefetcher[T]":
        return self

    def __next__(self) -> T:
        begin = time.perf_counter()
        with self._changed:
            while not self._ready and not self._ended and not self._closed:
                self._changed.wait()
            self.waited = time.perf_counter() - begin
            if self._ready and not self._closed:
                value = self._ready.popleft()
                self._changed.notify_all()
                return value
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stop the thread; nothing can be taken any more."""
        if self._at_exit:  # the thread was waited for, and names of modules may be gone
            return
        self._ask_to_end()
        if self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_TO_END)

    def _ask_to_end(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


_started: WeakSet[Prefetcher[Any]] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End the threads that still run: the interpreter does not wait for daemons.

    It stops them where they next ask for its lock. If that is inside of torch or OpenCV, C++ takes the unwinding of
    their stack for an error and aborts the process: "terminate called without an active exception".
    """
    deadline = time.monotonic() + _SECONDS_AT_EXIT
    left = list(_started)
    for ahead in left:
        ahead._ask_to_end()
    for ahead in left:
        ahead._thread.join(max(0.0, deadline - time.monotonic()))
        ahead._at_exit = True
