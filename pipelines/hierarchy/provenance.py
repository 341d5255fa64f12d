"""The file ``provenance.json``: inputs, options, software and outputs of a build."""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hgld.files import read_json
from hgld.settings import key_fields
from hgld.version import __version__

from ..stage import StageRun, fingerprint, plain
from .config import BuildConfig
from .encoders.registry import ENCODERS

SCHEMA_VERSION = 1
PROVENANCE = "provenance.json"
_STATED = ("version", "counts", "dropped", "notes", "details", "outputs")
_ALWAYS = ("numpy", "polars", "scikit-learn")


def provenance(
    stages: Sequence[StageRun], sources: Sequence[tuple[str, Path]], config: BuildConfig, encoder: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the inputs, options and software of a build, without its outputs (see :func:`complete_provenance`).

    The same input, options, seed and software give the same content. The content has no absolute path, and no option
    that cannot change the output (rates, contacts, batch sizes).

    Args:
        stages: the finished stages, in order.
        sources: pairs of a role (``landmarks/train``, ``decisions``) and an input file from outside.
        config: the build's options.
        encoder: the embed stage's ``encoder.json``.
    """
    stated = _config(config)
    stated["embed"]["encoder"] = encoder["name"]  # if the model is local, its name does not contain its folder
    return {
        "schema_version": SCHEMA_VERSION,
        "inputs": [
            {"role": role, "file": path.name, **fingerprint(path)}
            for role, path in sorted(sources, key=lambda source: (source[0], source[1].name))
        ],
        "config": stated,
        "seeds": {name: options["seed"] for name, options in stated.items() if "seed" in options},
        "versions": versions(config.embed.encoder),
        "encoder": encoder,
        "stages": {stage.name: {name: stage.record[name] for name in _STATED} for stage in stages},
    }


def complete_provenance(
    facts: Mapping[str, Any], stages: Sequence[StageRun], outputs: Mapping[str, Path]
) -> dict[str, Any]:
    """Return the content of ``provenance.json``: ``facts``, the build's files, and all time stamps under ``times``.

    Args:
        facts: the result of :func:`provenance`.
        stages: the stages, whose times are stated.
        outputs: the build's files by their path in its folder.
    """
    return {
        **facts,
        "outputs": {name: fingerprint(path) for name, path in sorted(outputs.items())},
        "times": {stage.name: stage.record["times"] for stage in stages},
    }


def read_provenance(folder: Path) -> dict[str, Any] | None:
    """Return the ``provenance.json`` of a folder, or None if the file is missing or is not readable JSON."""
    file = folder / PROVENANCE
    if not file.is_file():
        return None
    try:
        return read_json(file, kind=dict)
    except ValueError:
        return None  # the file is truncated or edited; the build writes it again


def versions(encoder: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that compute the result."""
    entry = ENCODERS.get(encoder.partition(":")[0])
    packages = [*_ALWAYS, *(entry.packages if entry is not None else ())]
    own = {"python": platform.python_version(), "hgld": __version__}
    return own | {name: importlib.metadata.version(name) for name in packages}


def _config(config: BuildConfig) -> dict[str, dict[str, Any]]:
    """Return every stage's options, without the scrape's options if no names were scraped."""
    stages = {
        f.name: getattr(config, f.name) for f in fields(config) if f.name != "scrape" or config.source == "landmarks"
    }
    stated = {name: plain(key_fields(options)) for name, options in stages.items() if is_dataclass(options)}
    build: dict[str, Any] = {"source": config.source, "splits": sorted(split for split, _ in config.tables)}
    build |= {"as_published": list(config.as_published)} if config.as_published else {}
    return {"build": build, **stated}
