"""One annotator's file of decisions while the page is open: append, take the last one back, notice other writers."""

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from hgld.errors import InputError, StorageError
from pipelines.decision_files import append_decision, format_decision, parse_decisions
from pipelines.decisions import Decision, Entry, Role


class Journal:
    """The annotator's own file; every change is on the disk before the call returns.

    Args:
        path: the file; made by the first decision.
        who: the annotator.
        role: whether the decisions are an annotator's or settle the annotators' conflicts.

    Raises:
        InputError: the file cannot be read, or is of the other role.
        SchemaError: the file is of another schema version.
    """

    def __init__(self, path: Path, who: str, role: Role) -> None:
        self.path, self.who = path, who
        self.role: Role = role
        self.entries: list[Entry] = []
        self.reload()

    def reload(self) -> None:
        """Read the file again, as it is now."""
        stamp = self._stamp()
        self.entries = self._parsed(self.path.read_bytes()) if stamp else []
        self._known = stamp
        wrong = next((entry for entry in self.entries if entry.role != self.role), None)
        if wrong is not None:
            asked = "with" if wrong.role == "adjudicator" else "without"
            raise InputError(
                f"{self.path}: its role is {wrong.role}, and the page was opened for an {self.role}. "
                f"Open it {asked} --adjudicate, or name another file with --decisions."
            )

    @property
    def changed_elsewhere(self) -> bool:
        """Whether somebody else wrote the file since it was last read or written here."""
        return self._stamp() != self._known

    def now(self) -> datetime:
        """The time for the next decision: never before one that stands in the file, for times order decisions."""
        return max([datetime.now(UTC).replace(microsecond=0), *(entry.decision.when for entry in self.entries)])

    def append(self, decision: Decision) -> Entry:
        """Write one decision at the end of the file and wait for the disk.

        Raises:
            InputError: the file's last entry is cut off or wrong.
            StorageError: the disk is full or the file not writable; the file is as it was.
        """
        append_decision(self.path, decision, role=self.role)
        self._known = self._stamp()
        number = len(self.entries) + 1
        self.entries.append(Entry(decision, self.path, number, line=0, role=self.role))
        return self.entries[-1]

    def take_back(self) -> Decision:
        """Delete the file's last entry, if this annotator decided it and it stands there as a page writes it.

        The file is cut off before that entry, so a crash leaves it with the entry or without, and the entries before
        it are never touched.

        Raises:
            InputError: there is no entry, it is another person's, or it was written by hand.
            StorageError: the file is not writable.
        """
        if not self.entries:
            raise InputError("there is nothing to undo: the file has no decisions.")
        decision = self.entries[-1].decision
        if decision.who != self.who:
            raise InputError(f"the last decision is {decision.who}'s; you can take back only your own.")
        tail = format_decision(decision).encode()
        try:
            with open(self.path, "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                text = file.read()
                kept = text.removesuffix(tail)
                if kept == text or len(self._parsed(kept)) != len(self.entries) - 1:
                    raise InputError(
                        f"{self.path}: the last entry was written or changed by hand; delete it there to take it back."
                    )
                os.ftruncate(file.fileno(), len(kept))
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path}: the decision could not be taken back: {error.strerror or error}. "
                "Check the file's rights."
            ) from error
        self.entries.pop()
        self._known = self._stamp()
        return decision

    def _parsed(self, data: bytes) -> list[Entry]:
        try:
            return parse_decisions(data.decode("utf-8-sig"), self.path)
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from error

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns
