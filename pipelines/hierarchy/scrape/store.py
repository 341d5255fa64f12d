"""Store of the servers' answers: one SQLite file, so that no answer is lost and nothing is asked twice.

Every answer is one transaction. The file is in WAL mode, so a killed process loses at most the answer that was being
written. The store reads the whole file when it opens it (300,000 landmarks are a few hundred MB), because the next
question depends on many answers.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, Literal, Self

from hgld.errors import ConfigError, SchemaError, StorageError, excerpt, quoted

from .infobox import Infobox
from .wiki_api import CategoryPage, Entity

SCHEMA_VERSION = 2
_APPLICATION_ID = 0x68676C64  # "hgld"

Question = Literal["sitelink", "page", "entity", "infobox"]
_TYPES: dict[Question, Any] = {"page": CategoryPage, "entity": Entity, "infobox": Infobox}

_SCHEMA = """
CREATE TABLE source (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE answer (question TEXT NOT NULL, key TEXT NOT NULL, value TEXT, PRIMARY KEY (question, key)) WITHOUT ROWID;
CREATE TABLE failure (question TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, detail TEXT NOT NULL,
    PRIMARY KEY (question, key)) WITHOUT ROWID;
"""


class ScrapeStore:
    """The answers by question and key (a title or an item's id), on disk and in memory.

    Args:
        path: the SQLite file, which is created if it is missing.
        source: the settings that change the answers (addresses, language), by name.

    Attributes:
        answers: answers by question and key: the item linked to a title (``sitelink``), or an object of the question's
            type.
        failures: kind of failure by question and key.

    Raises:
        ConfigError: the file holds answers from another source, or another process has it open.
        SchemaError: the file is not a store, or has another schema version.
        StorageError: the disk is full or not writable.
    """

    def __init__(self, path: Path, source: Mapping[str, str]):
        self.path = path
        self.answers: dict[Question, dict[str, Any]] = {"sitelink": {}, **{question: {} for question in _TYPES}}
        self.failures: dict[tuple[Question, str], str] = {}
        with self._storage():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        try:
            with self._storage():
                self._open(source)
                for question, key, value in self._db.execute("SELECT question, key, value FROM answer"):
                    kind = _TYPES.get(question)
                    stated = value if kind is None else [tuple(v) if type(v) is list else v for v in json.loads(value)]
                    self.answers[question][key] = stated if kind is None else kind(*stated)
                for question, key, kind in self._db.execute("SELECT question, key, kind FROM failure"):
                    self.failures[question, key] = kind
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._db.close()

    @property
    def entities(self) -> dict[str, Entity]:
        """The items by their requested ids."""
        return self.answers["entity"]

    def record(self, question: Question, answers: Mapping[str, Any]) -> None:
        """Store answers by key."""
        values = (
            (question, key, answer if question == "sitelink" else json.dumps(astuple(answer), ensure_ascii=False))
            for key, answer in answers.items()
        )
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO answer VALUES (?, ?, ?)", values)
        self.answers[question].update(answers)

    def record_failures(self, failures: Mapping[tuple[Question, str], tuple[str, str]]) -> None:
        """Store failures; each (question, key) has a (kind, detail)."""
        rows = ((*key, kind, detail[:500]) for key, (kind, detail) in failures.items())
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?)", rows)
        self.failures.update({key: kind for key, (kind, _) in failures.items()})

    def forget_failures(self) -> None:
        """Delete all failures, so that their questions are open again."""
        with self._transaction():
            self._db.execute("DELETE FROM failure")
        self.failures.clear()

    def _open(self, source: Mapping[str, str]) -> None:
        # Only one process may open the file: two would send every request twice, at twice the polite rate.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        # NORMAL survives a kill. A power failure may lose the last answers, and the next run asks for them again.
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("BEGIN IMMEDIATE")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._db.executemany("INSERT INTO source VALUES (?, ?)", source.items())
        elif version != SCHEMA_VERSION or self._db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise SchemaError(
                f"{self.path}: schema version is {version}; this hgld reads version {SCHEMA_VERSION}. "
                "Build into a new folder, or delete the file to scrape again."
            )
        self._db.execute("COMMIT")
        known = dict(self._db.execute("SELECT name, value FROM source"))
        for name, value in source.items():
            if known.get(name) != value:
                raise ConfigError(
                    f"{self.path} holds answers with {name} {quoted(known.get(name))}, but this run uses "
                    f"{quoted(value)}. Build into a new folder, or delete the file to scrape again."
                )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._storage():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _storage(self) -> Iterator[None]:
        """Turn errors of SQLite and of the disk into errors that state the fix."""
        fix = "Free space or choose another --out, then run the same command again: all earlier answers are kept."
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise ConfigError(
                    f"{self.path} is in use by another hgld process. Wait until that process ends; two processes "
                    "would send every request twice."
                ) from error
            raise StorageError(f"{self.path}: {error}. {fix}") from error
        except sqlite3.DatabaseError as error:
            raise SchemaError(
                f"{self.path} is not a store of scraped answers ({excerpt(error)}). Move it away to scrape again."
            ) from error
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}. {fix}") from error
