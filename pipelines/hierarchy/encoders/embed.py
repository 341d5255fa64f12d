"""The embed stage, which turns canonical names into unit rows."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hgld.errors import TableError, excerpt
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage, write_json
from ..config import BuildConfig, EmbedConfig
from ..names.languages import EVERY, read_english
from .registry import Encoder, is_fitted_on_names, local_encoder, make_encoder

VERSION = 1


def run(root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress) -> StageRun:
    """Embed the names of clean's ``names.parquet`` into ``root/embed`` (docs/reference/build-files.md).

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: config with the encoder.
        progress: told about names embedded.

    Raises:
        ConfigError: the encoder's name or options cannot be served.
        MissingResourceError: its weights or package are not available here.
        TableError: there is no name.
    """
    inputs = files_of(stages, "clean/names.parquet")
    names = inputs["clean/names.parquet"]
    encoder = encoder_of(names, config)
    about = {"name": encoder.name, "key": encoder.key}

    def work(directory: Path) -> StageResult:
        rows = encoder.encode(_names(names), progress)
        np.save(directory / "embeddings.npy", rows, allow_pickle=False)
        more = {"dim": rows.shape[1], "templates": list(encoder.templates)}
        write_json(directory / "encoder.json", about | more)
        return StageResult({"names": len(rows), "dimensions": rows.shape[1]})

    return run_stage("embed", root, version=VERSION, config=about, inputs=inputs, work=work)


AUTO = "auto"
PUBLISHED = "clip:ViT-L-14/laion2b_s32b_b82k"


def choose_encoder(config: EmbedConfig, source: str) -> tuple[EmbedConfig, str]:
    """Return options that name an encoder, and the reason for the choice; the reason is empty if the user named it.

    Args:
        config: the options; ``auto`` is replaced.
        source: the build's: ``classes`` take the best encoder on this machine, ``sample`` takes ``lexical``,
            landmarks the published one.
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
