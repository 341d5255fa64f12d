"""Journal of one annotator's decisions while the page is open: append, undo, and detection of other writers."""

import os
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hgld.errors import ConfigError, InputError, StorageError
from hgld.files import sync, write_atomic

from .decisions import (
    Decision,
    Entry,
    Role,
    append_locked,
    check_text,
    file_header,
    format_decision,
    locked,
    parse_decisions,
)

_STEP = timedelta(milliseconds=1)


class StaleError(Exception):
    """A decision on an outdated state: the page must reload before the person decides again."""


class Journal:
    """The annotator's own file of decisions; every change is on the disk before the call returns.

    Args:
        path: the file; made by the first decision.
        who: the annotator.
        role: ``annotator``, or ``adjudicator`` for decisions that settle the annotators' conflicts.

    Attributes:
        entries: all entries of the file, in its order.

    Raises:
        InputError: ``who`` is no valid name of an annotator; the file cannot be read, is of the other role or has
            decisions of another annotator.
        SchemaError: the file is of another schema version.
        ConfigError: the file's folder is not there.
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path, who: str, role: Role) -> None:
        self.path, self.who = path, unicodedata.normalize("NFC", who)  # as it is read back
        self.role: Role = role
        self.entries: list[Entry] = []
        try:
            check_text("who", self.who)
        except InputError as error:
            raise InputError(f"{error} Say who decides with --annotator NAME.") from error
        if not path.parent.is_dir():
            raise ConfigError(
                f"{path}: there is no folder {path.parent}. Make it, or name another file: --decisions FILE."
            )
        if not os.access(path if path.exists() else path.parent, os.R_OK | os.W_OK):
            raise StorageError(
                f"{path}: it cannot be read and written by you. Change its rights, or use --decisions FILE."
            )
        self.reload()

    def reload(self) -> None:
        """Read the file again, as it is now; if it was deleted, write the entries that are known to a new one.

        Raises:
            StorageError: the deleted file cannot be written again.
        """
        if self.entries and not self.path.exists():
            text = file_header(self.role) + "".join(format_decision(entry.decision) for entry in self.entries)
            try:
                write_atomic(self.path, text)
            except OSError as error:
                raise StorageError(f"{self.path}: it was deleted, and cannot be written again: {error}.") from error
        stamp = self._read_stamp()
        entries = parse_decisions(self.path.read_bytes(), self.path) if stamp else []
        wrong = next((entry for entry in entries if entry.role != self.role), None)
        if wrong is not None:
            asked = "with" if wrong.role == "adjudicator" else "without"
            raise InputError(
                f"{self.path}: its role is {wrong.role}, and the page was opened for an {self.role}. "
                f"Open it {asked} --adjudicate, or name another file with --decisions."
            )
        others = sorted({entry.decision.who for entry in entries} - {self.who})
        if others and self.role == "annotator":
            raise InputError(
                f"{self.path} holds decisions of {', '.join(others)}, and you decide as {self.who}. Each annotator has "
                f"a file: open yours with --decisions FILE --compare-with {self.path}, or say who you are with "
                "--annotator NAME."
            )
        self.entries, self._known = entries, stamp

    @property
    def changed_elsewhere(self) -> bool:
        """True if another program wrote or deleted the file since this journal last read or wrote it."""
        return self._read_stamp() != self._known

    def next_time(self, after: datetime | None = None) -> datetime:
        """Return the time of the next action: later than ``after`` and than every entry's, since times order decisions.

        Its milliseconds are whole and not 0: they tell the decisions of one action, also after another start.

        Raises:
            InputError: an entry has the last time that there is.
        """
        last = after or max((entry.decision.when for entry in self.entries), default=None)
        try:
            time = datetime.now(UTC) if last is None else max(datetime.now(UTC), last + _STEP)
            whole = time.replace(microsecond=time.microsecond // 1000 * 1000)
            whole += _STEP if whole < time else timedelta()
            return whole if whole.microsecond else whole + _STEP
        except OverflowError as error:
            raise InputError(f"{self.path}: nothing comes after {last}, the time of an entry. Correct it.") from error

    @property
    def last_action(self) -> int:
        """Number of the file's last entries that a page wrote in one action; 0 if it has no entries."""
        if not self.entries:
            return 0
        when = self.entries[-1].decision.when
        same = [entry.decision.when == when for entry in reversed(self.entries)]
        return (same.index(False) if False in same else len(same)) if when.microsecond else 1

    def append(self, decisions: Sequence[Decision]) -> None:
        """Write decisions at the end of the file, in one write, and wait for the disk.

        Raises:
            StaleError: somebody else wrote the file since it was last read or written here; nothing is written.
            InputError: the file's last entry is cut off or wrong.
            StorageError: the disk is full or the file not writable; the file is as it was.
        """
        with locked(self.path) as file:
            if self.changed_elsewhere:
                raise StaleError
            append_locked(file, self.path, decisions, self.role)
            self._known = self._read_stamp()
        for decision in decisions:
            self.entries.append(Entry(decision, self.path, len(self.entries) + 1, self.role))

    def take_back(self, count: int) -> list[Decision]:
        """Delete the file's last entries, if they are this annotator's and in the form that a page writes.

        The file is cut off before them, so a crash leaves it with them or without, and the entries before them are
        never touched.

        Args:
            count: number of entries, at least one.

        Raises:
            StaleError: somebody else wrote the file since it was last read or written here; nothing is deleted.
            InputError: there is no entry, one is another person's, or one was written by hand.
            StorageError: the file is not writable; or the disk does not confirm the deletion.
        """
        taken = [entry.decision for entry in self.entries[-count:]]
        if not taken:
            raise InputError("there is nothing to undo: the file has no decisions.")
        if others := [decision.who for decision in taken if decision.who != self.who]:
            raise InputError(f"the file's last decision is {others[-1]}'s; you can take back only your own.")
        tail = "".join(map(format_decision, taken)).encode()
        with locked(self.path) as file:
            if self.changed_elsewhere:
                raise StaleError
            file.seek(0)
            text = file.read()
            if not text.endswith(tail):
                raise InputError(
                    f"{self.path}: the last entry was written or changed by hand; delete it there to take it back."
                )
            os.ftruncate(file.fileno(), len(text) - len(tail))
            del self.entries[-len(taken) :]
            self._known = self._read_stamp()
        try:
            sync(self.path)
        except OSError as error:
            raise StorageError(
                f"{self.path}: the decision is taken back, but the disk does not confirm it ({error.strerror}); after "
                "a power failure it may be there again."
            ) from error
        return taken

    def _read_stamp(self) -> tuple[int, int, int] | None:
        """Return a stamp that changes with the file's state; None if it is empty or absent."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns) if status.st_size else None
