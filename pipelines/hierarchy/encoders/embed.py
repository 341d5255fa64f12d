"""The embed stage, which turns canonical names into unit rows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hgld.errors import TableError, excerpt
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage, write_json
from ..config import BuildConfig, EmbedConfig
from ..names.languages import read_english
from .registry import Encoder, is_fitted_on_names, local_encoder, make_encoder

VERSION = 1


def run(root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress) -> StageRun:
    """Embed the names of clean's ``names.parquet`` into ``root/embed`` (docs/reference/build-files.md).

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: options of the build; this stage reads the encoder's options.
        progress: function that receives the number of embedded names.

    Raises:
        ConfigError: the encoder's name or options are not available.
        MissingResourceError: the encoder's weights or package are not available on this machine.
    """
    inputs = files_of(stages, "clean/names.parquet")
    names = inputs["clean/names.parquet"]
    encoder = encoder_of(names, config)
    about = {"name": encoder.name, "key": encoder.key}

    def work(directory: Path) -> StageResult:
        texts, notes = _names(names), ()
        rows = encoder.encode(texts, progress)
        np.save(directory / "embeddings.npy", rows, allow_pickle=False)
        more = {"dim": rows.shape[1], "templates": list(encoder.templates)}
        write_json(directory / "encoder.json", about | more)
        if config.source == "classes" and encoder.name == "lexical":
            words = Counter(word for text in texts for word in {*text.casefold().split()})
            alone = sum(all(words[word] == 1 for word in text.casefold().split()) for text in texts)
            notes = (_MEANS.format(alone=alone, count=len(texts)),)
        return StageResult({"names": len(rows), "dimensions": rows.shape[1]}, notes=notes)

    return run_stage("embed", root, version=VERSION, config=about, inputs=inputs, work=work)


_MEANS = (
    "lexical compares words and letters, and knows no meaning: {alone:,} of {count:,} names share no word with another "
    "name. A sentence encoder groups by meaning: pip install sentence-transformers, save a model such as "
    "all-MiniLM-L6-v2 (90 MB) in a folder, and give --encoder sbert:FOLDER."
)
AUTO = "auto"
FOR_LANDMARKS = "clip:ViT-L-14/laion2b_s32b_b82k"


def choose_encoder(config: EmbedConfig, source: str) -> tuple[EmbedConfig, str]:
    """Return options that name an encoder, and the reason for the choice (empty if the user named the encoder).

    Args:
        config: the options, in which ``auto`` is replaced.
        source: source of the names: ``classes`` get the best encoder on this machine, ``sample`` gets ``lexical``, and
            landmarks get CLIP.
    """
    if config.encoder != AUTO:
        return config, ""
    chosen = {"classes": local_encoder, "sample": lambda: ("lexical", "the sample needs no weights")}
    spec, why = chosen.get(source, lambda: (FOR_LANDMARKS, "the default for landmarks"))()
    return replace(config, encoder=spec), why


def encoder_of(names: Path | None, config: BuildConfig) -> Encoder:
    """Return the encoder of a build.

    Args:
        names: clean's ``names.parquet``, on which ``lexical`` is fitted; None: the encoder is made only to check its
            options.
        config: options of the build. In the domain ``general``, ``lexical`` has no lexicon of places, and applies the
            rules of English to English names only.
    """
    options, domain = config.embed, config.domain
    fitted = {}
    if names and is_fitted_on_names(options.encoder):
        fitted = {"names": _names(names), "english": read_english(names, domain)}
    given = {"templates": options.templates, "device": options.device, "batch_size": options.batch_size}
    return make_encoder(options.encoder, **given, lexicon=domain == "landmarks", **{"names": ("name",), **fitted})


def read_embeddings(file: Path) -> np.ndarray:
    """Read the (N, D) rows of ``embeddings.npy``.

    Raises:
        TableError: the file does not hold an (N, D) array of rows.
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
    return read_parquet(path, columns=["name"])["name"].to_list()
