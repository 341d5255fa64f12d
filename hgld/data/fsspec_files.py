"""Ranges of files at URLs of object stores and the like, through fsspec, within the time that http(s) has.

fsspec's file systems hold an answer whole before they hand it on: bytes are counted here once they came, so that what
bounds them on the way is the service and its own client.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from hgld.addresses import without_secrets
from hgld.data.http_files import Deadline, HttpLimits, RemoteFault
from hgld.errors import MissingResourceError, excerpt

if TYPE_CHECKING:
    from collections.abc import Coroutine

_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class FsspecRanges:
    """Ranges of files of one file system; see :class:`hgld.data.http_files.HttpRanges`.

    Args:
        root: URL of a folder in the file system.
        options: fsspec's options for the URL's scheme.

    Raises:
        MissingResourceError: the package for that scheme is not installed.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self.limits = HttpLimits()
        try:
            self._system = fsspec.filesystem(root.partition("://")[0], **options)
        except ImportError as error:
            raise MissingResourceError(f"{without_secrets(root)}: {error}.") from error

    def fetch(self, spans: Sequence[tuple[str, int, int]], deadline: Deadline) -> list[bytes | RemoteFault]:
        """Return the bytes, or the error, of every span (URL, start, stop)."""
        columns = [list(column) for column in zip(*spans, strict=True)]
        try:
            answers = self._within("cat_ranges", deadline, *columns, on_error="return")
        except Exception as error:  # noqa: BLE001  # of whatever package serves the scheme
            answers = [error] * len(spans)
        return [_checked(answer, stop - start) for answer, (_, start, stop) in zip(answers, spans, strict=True)]

    def _within(self, method: str, deadline: Deadline, *arguments: Any, **options: Any) -> Any:
        """Call a method of the file system, which is given up at the deadline where it is an asynchronous one."""
        if not isinstance(self._system, AsyncFileSystem):
            return getattr(self._system, method)(*arguments, **options)
        called = getattr(self._system, f"_{method}")(*arguments, **options)
        return sync(self._system.loop, _bounded, called, max(deadline.left(), 0.0))


async def _bounded(called: "Coroutine[Any, Any, Any]", seconds: float) -> Any:
    return await asyncio.wait_for(called, seconds)


def _checked(answer: object, asked: int) -> bytes | RemoteFault:
    if not isinstance(answer, bytes):
        return _fault(cast(BaseException, answer))
    if len(answer) > asked:
        return RemoteFault(
            f"the service sent {len(answer)} bytes where {asked} were asked for: it does not serve ranges",
            hint="Use one that does, or copy the dataset to a disk.",
        )
    return answer


def _fault(error: BaseException) -> RemoteFault:
    status = getattr(error, "status", None)
    said = f"status {status}" if isinstance(status, int) else f"{type(error).__name__}: {excerpt(error)}"
    missing = isinstance(error, FileNotFoundError) or status in (404, 410)
    if isinstance(status, int) and status:
        return RemoteFault(said, passing=status in (408, 425, 429) or status >= 500, missing=missing)
    of_connection = isinstance(error, OSError) or type(error).__module__.startswith("aiohttp")
    return RemoteFault(said, passing=of_connection and not isinstance(error, _FINAL), missing=missing)
