"""Journal of one annotator's decisions: append, undo, and detection of changes by other programs."""

import errno
import os
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path

from hgld.errors import ConfigError, InputError, StorageError
from hgld.files import file_lock, sync, write_atomic

from .decisions import Decision, Drop, Entry, Role, check_text, file_header, format_decision, parse_decisions

_STEP = timedelta(milliseconds=1)
_SAMPLE = format_decision(Drop(group="a", who="a", when=datetime(2026, 1, 1, tzinfo=UTC))).encode()


class StaleError(Exception):
    """A decision on an outdated state: the page must reload before the person decides again."""


class Journal:
    """The annotator's own file of decisions. Every change is on the disk before the call returns.

    Args:
        path: the file; the first decision creates it.
        who: the annotator.
        role: role of the person: ``annotator``, or ``adjudicator`` for decisions that settle the annotators' conflicts.

    Attributes:
        entries: all entries of the file, in order.

    Raises:
        InputError: ``who`` is not a valid name; the file cannot be read or appended to, has the other role, or has
            another annotator's decisions.
        SchemaError: the file has another schema version.
        ConfigError: the file's folder does not exist.
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path, who: str, role: Role) -> None:
        # when decisions are read, names are normalised in the same way
        self.path, self.who = path, unicodedata.normalize("NFC", who)
        self.role: Role = role
        self.entries: list[Entry] = []
        try:
            check_text("who", self.who)
        except InputError as error:
            raise InputError(f"{error} Say who decides with --annotator NAME.") from error
        if not path.parent.is_dir():
            raise ConfigError(
                f"{path}: there is no folder {path.parent}. Create it, or use another file: --decisions FILE."
            )
        if not os.access(path if path.exists() else path.parent, os.R_OK | os.W_OK):
            raise StorageError(
                f"{path}: you may not both read and write this file. Change its permissions, or use --decisions FILE."
            )
        self.reload()

    def reload(self) -> None:
        """Read the file again. If it was deleted, write the known entries to a new file.

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
        data = self.path.read_bytes() if stamp else b""
        entries = parse_decisions(data, self.path)
        if data.strip():
            self._check_appendable(data, len(entries))
        wrong = next((entry for entry in entries if entry.role != self.role), None)
        if wrong is not None:
            asked = "with" if wrong.role == "adjudicator" else "without"
            raise InputError(
                f"{self.path}: its role is {wrong.role}, and the page was opened for an {self.role}. "
                f"Open it {asked} --adjudicate, or use another file with --decisions."
            )
        others = sorted({entry.decision.who for entry in entries} - {self.who})
        if others and self.role == "annotator":
            raise InputError(
                f"{self.path} holds decisions of {', '.join(others)}, and you decide as {self.who}. Each annotator has "
                f"a file: open yours with --decisions FILE --compare-with {self.path}, or say who you are with "
                "--annotator NAME."
            )
        self.entries, self._known = entries, stamp

    def _check_appendable(self, data: bytes, count: int) -> None:
        """Raise an error if an entry appended to the file would not become its next decision."""
        try:
            longer = len(parse_decisions(data + b"\n" + _SAMPLE, self.path))
        except InputError:
            longer = 0
        if longer != count + 1:
            raise InputError(
                f"{self.path}: nothing can be appended to this file. The file must end with its list of decisions, "
                "each beginning with '- ' in the first column."
            )

    @property
    def changed_elsewhere(self) -> bool:
        """True if another program changed or deleted the file since this journal last read or wrote it."""
        return self._read_stamp() != self._known

    def next_time(self, after: datetime | None = None) -> datetime:
        """Return the time of the next action, later than ``after`` and all entries, because times order decisions.

        The microseconds of this time are whole milliseconds and not 0. So all decisions of one action are recognizable
        later.
        """
        last = after or max((entry.decision.when for entry in self.entries), default=None)
        time = datetime.now(UTC) if last is None else max(datetime.now(UTC), last + _STEP)
        whole = time.replace(microsecond=time.microsecond // 1000 * 1000)
        whole += _STEP if whole < time else timedelta()
        return whole if whole.microsecond else whole + _STEP

    @property
    def last_action(self) -> int:
        """Number of entries at the file's end that a page wrote in one action; 0 without entries."""
        if not self.entries:
            return 0
        when = self.entries[-1].decision.when
        same = [entry.decision.when == when for entry in reversed(self.entries)]
        return (same.index(False) if False in same else len(same)) if when.microsecond else 1

    def append(self, decisions: Sequence[Decision]) -> None:
        """Write decisions at the end of the file in one write, and wait for the disk.

        After a crash the entries are whole, cut off (reading detects this) or absent. A crash never damages earlier
        entries.

        Raises:
            StaleError: another program changed the file; nothing is written.
            StorageError: the disk is full or the file not writable; the file is unchanged, or the message says that the
                disk confirmed neither the decision nor its removal.
        """
        with self._locked() as file:
            file.seek(0)
            before = file.read()
            start = file_header(self.role) if not before.strip() else "" if before.endswith(b"\n") else "\n"
            data = (start + "".join(map(format_decision, decisions))).encode()
            try:
                if os.write(file.fileno(), data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
                sync(self.path.parent)
            except OSError:
                os.ftruncate(file.fileno(), len(before))
                self._known = self._read_stamp()
                self._confirm_removal()
                raise
            self._known = self._read_stamp()
        for decision in decisions:
            self.entries.append(Entry(decision, self.path, len(self.entries) + 1, self.role))

    def take_back(self, count: int) -> list[Decision]:
        """Delete the last ``count`` (at least one) entries, if a page wrote them for this annotator.

        The file is truncated. A crash leaves it with or without these entries, and never damages earlier entries.

        Raises:
            StaleError: another program changed the file; nothing is deleted.
            InputError: there is no entry, or another person made the last entry, or it was written by hand.
            StorageError: the file is not writable, or the disk does not confirm the deletion.
        """
        taken = [entry.decision for entry in self.entries[-count:]]
        if not taken:
            raise InputError("there is nothing to undo: the file has no decisions.")
        if others := [decision.who for decision in taken if decision.who != self.who]:
            raise InputError(f"the file's last decision is {others[-1]}'s; you can take back only your own.")
        tail = "".join(map(format_decision, taken)).encode()
        with self._locked() as file:
            file.seek(0)
            text = file.read()
            if not text.endswith(tail):
                raise InputError(
                    f"{self.path}: the last entry was written or changed by hand; delete it there to take it back."
                )
            os.ftruncate(file.fileno(), len(text) - len(tail))
            del self.entries[-len(taken) :]
            self._known = self._read_stamp()
        self._confirm_removal()
        return taken

    def _confirm_removal(self) -> None:
        try:
            sync(self.path)
        except OSError as error:
            raise StorageError(
                f"{self.path}: the decision was removed, but the disk did not confirm it ({error.strerror}); after "
                "a power failure it may be there again."
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """Open the file under a lock, unless another program changed it; errors of the disk become StorageError."""
        try:
            with file_lock(self.path) as file:
                if self.changed_elsewhere:
                    raise StaleError
                yield file
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                f"{self.path}: the decision could not be written: {error.strerror or error}. "
                "The file is unchanged; free space or check its permissions, then decide again."
            ) from error

    def _read_stamp(self) -> tuple[int, int, int] | None:
        """Return a stamp that changes with the file's content; None if the file is empty or absent."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return (status.st_ino, status.st_size, status.st_mtime_ns) if status.st_size else None


def append_decision(path: Path, decision: Decision, *, role: Role = "annotator") -> None:
    """Append one decision to the file of its annotator, and wait for the disk.

    Args:
        path: the file; created if it does not exist.
        decision: the decision.
        role: role of the file.

    Raises:
        InputError: the file cannot be read or appended to, has the other role, or has another annotator's decisions.
        SchemaError: the file has another schema version.
        ConfigError: the file's folder does not exist.
        StorageError: the disk is full or the file not writable.
    """
    Journal(path, decision.who, role).append([decision])
