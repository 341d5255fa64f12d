"""Journal of one annotator's decisions while the page is open: append, undo, and detection of other writers."""

import os
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hgld.errors import ConfigError, InputError, StorageError

from .decision_files import (
    append_locked,
    format_decision,
    format_decision_as_before,
    locked,
    parse_decisions,
)
from .decisions import Decision, Entry, Role, check_text

_STEP = timedelta(milliseconds=1)


class StaleError(Exception):
    """The error of a decision on an outdated state: the page must be shown anew before the person decides again."""


class Journal:
    """The annotator's own file of decisions; every change is on the disk before the call returns.

    Args:
        path: the file; made by the first decision.
        who: the annotator.
        role: ``annotator``, or ``adjudicator`` for decisions that settle the annotators' conflicts.

    Attributes:
        entries: all entries of the file, in its order.

    Raises:
        InputError: ``who`` cannot stand in a decision; the file cannot be read, or is of the other role.
        SchemaError: the file is of another schema version.
        ConfigError: the file's folder is not there.
        StorageError: the file could not be written.
    """

    def __init__(self, path: Path, who: str, role: Role) -> None:
        self.path, self.who = path, unicodedata.normalize("NFC", who)  # as it is read back
        self.role: Role = role
        self.entries: list[Entry] = []
        try:
            check_text("who", self.who)
        except InputError as error:
            raise InputError(f"{error} Say who decides with --annotator NAME.") from error
        self._check_place()
        self.reload()

    def _check_place(self) -> None:
        """Refuse at once a file whose first decision would be refused."""
        folder = self.path.parent
        if not folder.is_dir():
            raise ConfigError(
                f"{self.path}: there is no folder {folder}. Make it, or name another file: --decisions FILE."
            )
        if not os.access(self.path if self.path.exists() else folder, os.R_OK | os.W_OK):
            raise StorageError(
                f"{self.path}: it cannot be read and written by you. Change its rights, or use --decisions FILE."
            )

    @property
    def own_entries(self) -> list[Entry]:
        """Entries of the person at the page; all entries of an adjudicators' file, which they share."""
        return [entry for entry in self.entries if self._is_own(entry)]

    @property
    def foreign_entries(self) -> list[Entry]:
        """Entries of other annotators in the same file."""
        return [entry for entry in self.entries if not self._is_own(entry)]

    def _is_own(self, entry: Entry) -> bool:
        return self.role == "adjudicator" or entry.decision.who == self.who

    def reload(self) -> None:
        """Read the file again, as it is now."""
        stamp = self._stamp()
        entries = self._parsed(self.path.read_bytes()) if stamp else []
        wrong = next((entry for entry in entries if entry.role != self.role), None)
        if wrong is not None:
            asked = "with" if wrong.role == "adjudicator" else "without"
            raise InputError(
                f"{self.path}: its role is {wrong.role}, and the page was opened for an {self.role}. "
                f"Open it {asked} --adjudicate, or name another file with --decisions."
            )
        self.entries, self._known = entries, stamp

    @property
    def changed_elsewhere(self) -> bool:
        """True if somebody else wrote the file since it was last read or written here."""
        return self._stamp() != self._known

    def now(self) -> datetime:
        """Return the time for the next action.

        It is later than every entry's, since times order decisions, and its milliseconds are not 0: by it the decisions
        of one action are known, also after another start.

        Raises:
            InputError: an entry has the last time that there is.
        """
        last = max((entry.decision.when for entry in self.entries), default=None)
        try:
            return next_time(datetime.now(UTC) if last is None else max(datetime.now(UTC), last + _STEP))
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
            self._check_known()
            append_locked(file, self.path, decisions, self.role)
            self._known = self._stamp()
        for decision in decisions:
            self.entries.append(Entry(decision, self.path, len(self.entries) + 1, line=0, role=self.role))

    def take_back(self, count: int) -> list[Decision]:
        """Delete the file's last entries, if they are this annotator's and in the form that a page writes.

        The file is cut off before them, so a crash leaves it with them or without, and the entries before them are
        never touched.

        Args:
            count: how many entries; at least one.

        Raises:
            StaleError: somebody else wrote the file since it was last read or written here; nothing is deleted.
            InputError: there is no entry, one is another person's, or one was written by hand.
            StorageError: the file is not writable.
        """
        taken = [entry.decision for entry in self.entries[-count:]]
        if not taken:
            raise InputError("there is nothing to undo: the file has no decisions.")
        if others := [decision.who for decision in taken if decision.who != self.who]:
            raise InputError(f"the file's last decision is {others[-1]}'s; you can take back only your own.")
        with locked(self.path) as file:
            self._check_known()
            file.seek(0)
            text = file.read()
            kept = _without(text, taken)
            if kept == text or len(self._parsed(kept)) != len(self.entries) - len(taken):
                raise InputError(
                    f"{self.path}: the last entry was written or changed by hand; delete it there to take it back."
                )
            os.ftruncate(file.fileno(), len(kept))
            os.fsync(file.fileno())
            self._known = self._stamp()
        del self.entries[-len(taken) :]
        return taken

    def _check_known(self) -> None:
        if self.changed_elsewhere:
            raise StaleError

    def _parsed(self, data: bytes) -> list[Entry]:
        try:
            return parse_decisions(data.decode("utf-8-sig"), self.path)
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from error

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return a stamp that changes with the file's state; None where it is empty or absent."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns) if status.st_size else None


def next_time(time: datetime) -> datetime:
    """Return the first time from ``time`` on whose milliseconds are whole and not 0."""
    whole = time.replace(microsecond=time.microsecond // 1000 * 1000)
    whole += _STEP if whole < time else timedelta()
    return whole if whole.microsecond else whole + _STEP


def _without(text: bytes, taken: Sequence[Decision]) -> bytes:
    for form in (format_decision, format_decision_as_before):
        tail = "".join(map(form, taken)).encode()
        if text.endswith(tail):
            return text.removesuffix(tail)
    return text
