"""Stops a run at its n-th change of the disk as kill -9 would: a file half-written, and nothing changed after that."""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest


class Stopped(BaseException):
    """Stands for kill -9."""


@contextmanager
def stopped_after(changes: int) -> Iterator[None]:
    """Let so many changes of the disk happen; later ones raise :class:`Stopped`, those of error handling too.

    A change is a file that is opened for writing (and left empty if the run stops there), renamed or removed, or a
    folder that is made or removed; of this process only.
    """
    left = changes

    def counted(change: Callable[..., Any], torn: Callable[..., object] = lambda *given, **named: None) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                torn(*given, **named)
            if left < 0:
                raise Stopped
            return change(*given, **named)

        return run

    real_open = io.open
    writing = counted(real_open, lambda file, mode="r", *given, **named: real_open(file, mode).close())

    def opened(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        return (writing if set(mode) & set("wax+") else real_open)(file, mode, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir"):
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        table = counted(pl.DataFrame.write_parquet, lambda frame, file, **named: Path(file).write_bytes(b"PAR1"))
        patch.setattr(pl.DataFrame, "write_parquet", table)
        yield


def stop_everywhere(
    prepare: Callable[[int], Any], run: Callable[[Any], object], every: int = 1, first: int = 0
) -> Iterator[Any]:
    """Stop a run after 0, 1, 2, ... changes of the disk, until it comes to its end.

    Args:
        prepare: makes what the run with so many changes works on.
        run: what is stopped.
        every: take only each so many-th of the moments.

    Yields:
        what was prepared, after the stop.
    """
    for changes in range(0, 10_000, every):
        place = prepare(changes)
        try:
            with stopped_after(changes):
                run(place)
        except Stopped:
            yield place
        else:
            return
