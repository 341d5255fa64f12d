"""The embed stage: canonical names become unit rows, each name once for each encoder.

Embeddings are kept between builds, in one SQLite file for each encoder key, with one row for each name. A row is
written once, in a transaction with its batch, so that a process killed anywhere leaves whole batches and the next run
embeds only what is missing. The key holds model, templates and versions; the file's name is its hash.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from hgld.errors import StorageError, TableError, excerpt
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage, silent, write_json
from ..config import BuildConfig, EmbedConfig
from ..encoders.registry import Encoder, is_fitted_on_names, local_encoder, make_encoder
from ..names.languages import EVERY, read_english

_ASKED_AT_ONCE = 500  # below SQLite's limit of variables in a statement
_WAIT = 60.0  # seconds for another build to finish its batch


def default_folder() -> Path:
    """Return the folder of embeddings for a configuration that names none."""
    return user_cache_path("hgld") / "embeddings"


class EmbeddingCache:
    """The cached rows of one encoder.

    Args:
        folder: made if it is not there.
        key: the encoder's key.

    Raises:
        StorageError: the folder cannot be written, or the file is damaged.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.sqlite"
        with self._connection() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rows (name TEXT PRIMARY KEY, vector BLOB) WITHOUT ROWID")

    def get(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the (D,) float32 rows of the names that are in the cache."""
        found: dict[str, np.ndarray] = {}
        with self._connection() as connection:
            for start in range(0, len(names), _ASKED_AT_ONCE):
                part = names[start : start + _ASKED_AT_ONCE]
                marks = ",".join("?" * len(part))
                query = f"SELECT name, vector FROM rows WHERE name IN ({marks})"  # noqa: S608  # only marks
                for name, vector in connection.execute(query, part):
                    found[name] = np.frombuffer(vector, dtype="<f4").astype(np.float32)
        return found

    def put(self, names: Sequence[str], rows: np.ndarray) -> None:
        """Store (N, D) rows, all of them or, if the process dies, none."""
        entries = [(name, row.astype("<f4").tobytes()) for name, row in zip(names, np.asarray(rows), strict=True)]
        with self._connection() as connection:
            connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", entries)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open a connection with one transaction: committed at the end, rolled back on any error."""
        connection = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_WAIT)
            with connection:
                yield connection
        except (OSError, sqlite3.Error, ValueError) as error:
            raise StorageError(
                f"{self.path}: cannot be used as a cache of embeddings ({excerpt(error)}). Delete the file, or choose "
                "another folder with --cache; embeddings are then made anew."
            ) from error
        finally:
            if connection is not None:
                connection.close()


# -- the stage -----------------------------------------------------------------------------------------------------

VERSION = 1
_BLOCK = 1024  # names between two commits to the cache: the most that a kill can lose


def run(root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress) -> StageRun:
    """Embed the names of clean's ``names.parquet`` into ``root/embed`` (docs/reference/build-files.md).

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: which encoder, and where its embeddings are kept.
        progress: told about names embedded.

    Raises:
        ConfigError: the encoder's name or options cannot be served.
        MissingResourceError: its weights or package cannot be had here.
        StorageError: the disk or the cache.
        TableError: there is no name.
    """
    inputs = files_of(stages, "clean/names.parquet")
    names = inputs["clean/names.parquet"]
    encoder = encoder_of(names, config)
    stated = {"encoder": encoder.name, "key": encoder.key}
    work = partial(_embed, names, encoder, config.embed.cache or default_folder(), progress)
    return run_stage("embed", root, version=VERSION, config=stated, inputs=inputs, work=work)


AUTO = "auto"
PUBLISHED = "clip:ViT-L-14/laion2b_s32b_b82k"


def choose_encoder(config: EmbedConfig, source: str) -> tuple[EmbedConfig, str]:
    """Return options that name an encoder, and in words why it was taken; empty if the options named it.

    Args:
        config: the options; ``auto`` is replaced.
        source: the build's: ``classes`` take the best encoder at hand, ``sample`` takes ``lexical``, landmarks the
            published one.
    """
    if config.encoder != AUTO:
        return config, ""
    chosen = {"classes": local_encoder, "sample": lambda: ("lexical", "the sample needs no weights")}
    spec, why = chosen.get(source, lambda: (PUBLISHED, "as published for landmarks"))()
    return replace(config, encoder=spec), why


def encoder_of(names: Path, config: BuildConfig) -> Encoder:
    """Return the encoder that a build embeds with, for other texts in the same space.

    Args:
        names: clean's ``names.parquet``, which ``lexical`` is fitted on.
        config: the build's. In the domain ``general`` ``lexical`` goes without its lexicon of places, and without
            English rules for names that are not English.
    """
    options, domain = config.embed, config.domain
    is_fitted = is_fitted_on_names(options.encoder)
    return make_encoder(
        options.encoder,
        names=_names(names) if is_fitted else (),
        templates=options.templates,
        device=options.device,
        batch_size=options.batch_size,
        lexicon=domain == "landmarks",
        english=read_english(names, domain) if is_fitted else EVERY,
    )


def embed_names(encoder: Encoder, names: list[str], cache: EmbeddingCache, progress: Progress) -> np.ndarray:
    """Return the rows of names, from the cache where it has them; new ones are stored block by block.

    Returns:
        (N, D) float32 rows.
    """
    blocks: list[np.ndarray] = []
    for start in range(0, len(names), _BLOCK):
        block = names[start : start + _BLOCK]
        known = cache.get(block)
        missing = sorted(set(block) - known.keys())
        if missing:
            rows = encoder.encode(missing, silent)
            cache.put(missing, rows)
            known.update(zip(missing, rows, strict=True))
        blocks.append(np.stack([known[name] for name in block]))
        progress("embed", start + len(block), len(names))
    return np.concatenate(blocks)


def read_embeddings(file: Path) -> np.ndarray:
    """Read the (N, D) rows of ``embeddings.npy``.

    Raises:
        TableError: the file is not such an array.
    """
    try:
        rows = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise TableError(f"{file}: not an array of numbers ({excerpt(error)}). Remove the stage's folder.") from error
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise TableError(
            f"{file}: an array of shape {rows.shape} and type {rows.dtype}; expected (names, dimensions) of float32. "
            "Remove the stage's folder."
        )
    return rows


def _names(path: Path) -> list[str]:
    names = read_parquet(path, columns=["name"])["name"].to_list()
    if not names:
        raise TableError(f"{path}: there is no name to embed; expected at least one row.")
    return names


def _embed(path: Path, encoder: Encoder, folder: Path, progress: Progress, directory: Path) -> StageResult:
    names = _names(path)
    rows = embed_names(encoder, names, EmbeddingCache(folder, encoder.key), progress)
    np.save(directory / "embeddings.npy", rows, allow_pickle=False)
    about = {"name": encoder.name, "key": encoder.key, "dim": int(rows.shape[1]), "templates": list(encoder.templates)}
    write_json(directory / "encoder.json", about)
    return StageResult({"names": len(names), "dimensions": int(rows.shape[1])}, details={"encoder": about})
