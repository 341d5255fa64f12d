"""The user's own image files: their suffixes and keys, and the dataset's name and protocol."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hgld.data.format import is_safe_name, short
from hgld.errors import ConfigError
from hgld.evaluation.protocols import Protocol, protocol_of

from ..catalog import safe_key

if TYPE_CHECKING:
    from ..catalog import Catalog
    from ..config import SourceConfig


# Includes formats that shards do not hold: such an image is rejected by name, not passed over as some other file.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})

OWN_OPTIONS = (
    "name",
    "license",
    "description",
    "protocol",
    "levels",
    "test_classes",
)  # accepted by every source of the user's own images
_LONGEST_TEXT = 10_000


def own_dataset_name(options: "SourceConfig", source: str) -> str:
    """Return the name of the user's own dataset: the one given, else that of the source.

    Raises:
        ConfigError: the name cannot be a file's, or the licence or description cannot stand in a card.
    """
    if options.name and not is_safe_name(options.name):
        raise ConfigError(f"--name is {short(options.name)}; expected 1 to 200 printable letters without slashes.")
    for option in ("license", "description"):
        text = getattr(options, option)
        if not text.isprintable() or len(text) > _LONGEST_TEXT:
            raise ConfigError(
                f"--{option} is {short(text)}; expected one line of at most {_LONGEST_TEXT:,} printable letters."
            )
    return options.name or source


def own_protocol(options: "SourceConfig") -> Protocol | None:
    """Return the protocol that the options name; None where they name none.

    Raises:
        ConfigError: there is none of that name.
    """
    return protocol_of(options.protocol) if options.protocol else None


def check_own_protocol(catalog: "Catalog") -> "Catalog":
    """Return a catalog that has what its protocol needs.

    Raises:
        InputError: it lacks levels, splits, lists or judgements.
    """
    if not catalog.protocol:
        return catalog
    protocol, where = protocol_of(catalog.protocol), ", ".join(map(str, catalog.sources)) or str(catalog.root)
    tables = [name for name in ("judgements", "lists") if getattr(catalog, name) is not None]
    splits = catalog.items["split"].unique().sort().to_list()
    protocol.check(catalog.protocol, where, splits, tables, catalog.levels)
    return catalog


def is_image_name(name: str) -> bool:
    """Tell whether a file's suffix is that of an image."""
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def keys_of_paths(paths: Sequence[str]) -> list[str]:
    """Make a distinct key for every path: the path without its suffix, made safe.

    Paths that would have the same key (``a.jpg`` and ``a.png``, ``a b.jpg`` and ``a_b.jpg``) get a part of the SHA-256
    of the path behind it.
    """
    keys = [safe_key(_without_suffix(path)) for path in paths]
    uses = Counter(keys)
    return [
        key if uses[key] == 1 else f"{key}={hashlib.sha256(path.encode()).hexdigest()[:12]}"
        for key, path in zip(keys, paths, strict=True)
    ]


def _without_suffix(path: str) -> str:
    """Return the path without its suffix; not by pathlib, which is slow for the millions of rows of a manifest."""
    stem, _, suffix = path.rpartition(".")
    return path if "/" in suffix or not stem.rpartition("/")[2] else stem
