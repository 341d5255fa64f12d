"""Store of the servers' answers: one SQLite file, so that no answer is lost and nothing is asked twice.

Every answer is one transaction. The file is in WAL mode: a process killed at any moment loses at most the answer in
flight. It is read whole when it is opened (300,000 landmarks are some hundred MB), because which question comes next
depends on many answers.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from hgld.errors import ConfigError, SchemaError, StorageError, excerpt, quoted

from .commons import CategoryPage
from .wikidata import Entity, LabelMatch

SCHEMA_VERSION = 2
_APPLICATION_ID = 0x68676C64  # "hgld"

Question = Literal["sitelink", "page", "entity", "infobox", "label"]

_SCHEMA = """
CREATE TABLE source (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sitelink (key TEXT PRIMARY KEY, item TEXT) WITHOUT ROWID;
CREATE TABLE page (key TEXT PRIMARY KEY, state TEXT NOT NULL, title TEXT NOT NULL, item TEXT, moved_to TEXT)
    WITHOUT ROWID;
CREATE TABLE entity (key TEXT PRIMARY KEY, item TEXT, label TEXT, language TEXT, instance_of TEXT NOT NULL,
    subclass_of TEXT NOT NULL, main_topic TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE infobox (key TEXT PRIMARY KEY, state TEXT NOT NULL, item TEXT, moved_to TEXT, names TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE failure (question TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, detail TEXT NOT NULL,
    PRIMARY KEY (question, key)) WITHOUT ROWID;
CREATE TABLE label (key TEXT PRIMARY KEY, matches TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class InfoboxPage:
    """The content of a category's HTML page: ``state`` is ``missing``, ``no-infobox`` or ``infobox``."""

    state: str
    item: str | None = None
    moved_to: str | None = None
    names: tuple[str, ...] = ()


class ScrapeStore:
    """The answers by question and key (a title or an item's id), on disk and in memory.

    Args:
        path: the SQLite file; made if it is not there.
        source: the settings that the answers depend on beside their keys (addresses, language), by name.

    Raises:
        ConfigError: the file holds answers from another source, or another process has it open.
        SchemaError: the file is not a store, or of another schema version.
        StorageError: the disk is full or not writable.
    """

    def __init__(self, path: Path, source: Mapping[str, str]):
        self.path = path
        self.sitelinks: dict[str, str | None] = {}
        self.pages: dict[str, CategoryPage] = {}
        self.entities: dict[str, Entity] = {}
        self.infoboxes: dict[str, InfoboxPage] = {}
        self.labels: dict[str, tuple[LabelMatch, ...]] = {}
        self.failures: dict[tuple[Question, str], str] = {}
        self.answers: dict[Question, dict[str, Any]] = {
            "sitelink": self.sitelinks,
            "page": self.pages,
            "entity": self.entities,
            "infobox": self.infoboxes,
            "label": self.labels,
        }
        with self._storage():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        try:
            with self._storage():
                self._open(dict(source))
                self._load()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._db.close()

    def record_sitelinks(self, answers: Mapping[str, tuple[str, Entity] | None]) -> None:
        """Store the item that each title is linked to, and those items."""
        items = {title: answer and answer[0] for title, answer in answers.items()}
        entities = dict(filter(None, answers.values()))
        with self._transaction():
            self._insert("sitelink", items.items())
            self._insert("entity", map(_entity_row, entities.items()))
        self.sitelinks.update(items)
        self.entities.update(entities)

    def record_pages(self, answers: Mapping[str, CategoryPage]) -> None:
        """Store the answers of Commons about titles."""
        with self._transaction():
            self._insert("page", ((key, p.state, p.title, p.item, p.moved_to) for key, p in answers.items()))
        self.pages.update(answers)

    def record_entities(self, answers: Mapping[str, Entity]) -> None:
        """Store items by the ids that were asked for, and merged ones by their new id too."""
        merged = {e.item: e for key, e in answers.items() if e.item and e.item != key}
        with self._transaction():
            self._insert("entity", map(_entity_row, {**merged, **answers}.items()))
        self.entities.update({**merged, **answers})

    def record_infobox(self, title: str, answer: InfoboxPage) -> None:
        """Store the content of a category's HTML page."""
        row = (title, answer.state, answer.item, answer.moved_to, _json(answer.names))
        with self._transaction():
            self._insert("infobox", [row])
        self.infoboxes[title] = answer

    def record_label(self, key: str, answer: tuple[LabelMatch, ...]) -> None:
        """Store the items that are called by a name in a language."""
        matches = json.dumps([[match.item, match.kind] for match in answer])
        with self._transaction():
            self._insert("label", [(key, matches)])
        self.labels[key] = answer

    def record_failures(self, failures: Mapping[tuple[Question, str], tuple[str, str]]) -> None:
        """Store failures as (kind, detail) by (question, key)."""
        with self._transaction():
            self._insert("failure", ((*key, kind, detail[:500]) for key, (kind, detail) in failures.items()))
        self.failures.update({key: kind for key, (kind, _) in failures.items()})

    def forget_failures(self) -> None:
        """Delete all failures, so that their questions are open again."""
        with self._transaction():
            self._db.execute("DELETE FROM failure")
        self.failures.clear()

    def _open(self, source: dict[str, str]) -> None:
        # One process at a time: two would ask everything twice, at twice the polite rate.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        # NORMAL survives a kill, but a power failure may cost the last answers; they are asked for again.
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("BEGIN IMMEDIATE")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._insert("source", source.items())
        elif version != SCHEMA_VERSION or self._db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise SchemaError(
                f"{self.path}: schema version is {version}; this hgld reads version {SCHEMA_VERSION}. "
                "Build into a new folder, or delete the file to scrape anew."
            )
        self._db.execute("COMMIT")
        known = dict(self._db.execute("SELECT name, value FROM source"))
        for name, value in source.items():
            if known.get(name) != value:
                raise ConfigError(
                    f"{self.path} holds answers with {name} {quoted(known.get(name))}, and this run asks with "
                    f"{quoted(value)}. Build into a new folder, or delete the file to scrape anew."
                )

    def _load(self) -> None:
        self.sitelinks.update(self._db.execute("SELECT key, item FROM sitelink"))
        for key, *rest in self._db.execute("SELECT key, state, title, item, moved_to FROM page"):
            self.pages[key] = CategoryPage(*rest)
        for key, item, label, language, *lists in self._db.execute("SELECT * FROM entity"):
            self.entities[key] = Entity(item, label, language, *(tuple(json.loads(text)) for text in lists))
        for key, state, item, moved_to, names in self._db.execute("SELECT * FROM infobox"):
            self.infoboxes[key] = InfoboxPage(state, item, moved_to, tuple(json.loads(names)))
        for key, matches in self._db.execute("SELECT key, matches FROM label"):
            self.labels[key] = tuple(LabelMatch(*match) for match in json.loads(matches))
        for question, key, kind in self._db.execute("SELECT question, key, kind FROM failure"):
            self.failures[question, key] = kind

    def _insert(self, table: str, rows: Iterable[tuple[str | None, ...]]) -> None:
        rows = list(rows)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)  # noqa: S608

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
        """Turn errors of SQLite and of the disk into messages that state the way out."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise ConfigError(
                    f"{self.path} is in use by another hgld. Wait for it to end: two would ask everything twice."
                ) from error
            raise StorageError(
                f"{self.path}: {error}. Free space or choose another --out, then run the same command again: "
                "all answers before this one are kept."
            ) from error
        except sqlite3.DatabaseError as error:
            raise SchemaError(
                f"{self.path} is not a store of scraped answers ({excerpt(error)}). Move it away to scrape anew."
            ) from error
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{self.path}: {error.strerror or error}. Free space or choose another --out, then run the same "
                "command again: all answers before this one are kept."
            ) from error


def _entity_row(entry: tuple[str, Entity]) -> tuple[str | None, ...]:
    key, entity = entry
    lists = (_json(ids) for ids in (entity.instance_of, entity.subclass_of, entity.main_topic))
    return key, entity.item, entity.label, entity.language, *lists


def _json(values: tuple[str, ...]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))
