"""The embed stage: canonical names become unit rows, each name once for each encoder."""

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from hgld.errors import TableError
from pipelines.config import EmbedConfig
from pipelines.embedding_cache import EmbeddingCache, default_folder
from pipelines.encoders import Encoder, make_encoder
from pipelines.joined_encoder import JoinedEncoder
from pipelines.progress import Progress, silent
from pipelines.stage import Outcome, StageRun, run_stage, write_json

VERSION = 1
_BLOCK = 1024  # names between two commits to the cache: what a kill can lose


def run(root: Path, cleaned: StageRun, config: EmbedConfig, progress: Progress) -> StageRun:
    """Embed the names of clean's ``names.parquet`` into ``root/embed`` (see docs/stages.md for the files).

    Args:
        root: the build's directory of stages.
        cleaned: the run of the clean stage.
        config: which encoder, and where its embeddings are kept.
        progress: told about names embedded.

    Raises:
        ConfigError: the encoder's name or options cannot be served.
        MissingResourceError: its weights or package cannot be had here.
        StorageError: the disk or the cache.
        TableError: there is no name.
    """
    names = cleaned.path("names.parquet")
    encoder = encoder_of(names, config)
    return run_stage(
        "embed",
        root,
        version=VERSION,
        config={"encoder": encoder.name, "key": encoder.key},
        inputs={"names": names},
        work=partial(_embed, names, encoder, config.cache or default_folder(), progress),
    )


def encoder_of(names: Path, config: EmbedConfig) -> Encoder:
    """The encoder that a build embeds with, for other texts in the same space.

    Args:
        names: clean's ``names.parquet``, which ``lexical`` is fitted on.
        config: the embed stage's.
    """
    return make_encoder(
        config.encoder,
        names=_names(names) if config.encoder.endswith("lexical") else (),
        templates=config.templates,
        device=config.device,
        batch_size=config.batch_size,
    )


def embed_names(encoder: Encoder, names: list[str], cache: EmbeddingCache, progress: Progress) -> np.ndarray:
    """Rows of names, from the cache where it has them; new ones are kept block by block.

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


def _rows(encoder: Encoder, names: list[str], folder: Path, progress: Progress) -> np.ndarray:
    """Rows of names; those of a joined encoder are kept by part, so that new names cost a model only themselves."""
    if isinstance(encoder, JoinedEncoder):
        return encoder.join([_rows(part, names, folder, progress) for part in encoder.parts])
    return embed_names(encoder, names, EmbeddingCache(folder, encoder.key), progress)


def _names(path: Path) -> list[str]:
    names = pl.read_parquet(path, columns=["name"])["name"].to_list()
    if not names:
        raise TableError(f"{path}: there is no name to embed; expected at least one row.")
    return names


def _embed(path: Path, encoder: Encoder, folder: Path, progress: Progress, directory: Path) -> Outcome:
    names = _names(path)
    rows = _rows(encoder, names, folder, progress)
    np.save(directory / "embeddings.npy", rows, allow_pickle=False)
    about = {"name": encoder.name, "key": encoder.key, "dim": int(rows.shape[1]), "templates": list(encoder.templates)}
    write_json(directory / "encoder.json", about)
    return Outcome({"names": len(names), "dimensions": int(rows.shape[1])}, details={"encoder": about})
