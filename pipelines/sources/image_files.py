"""Names of the user's own image files: which are images, and the key of each."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from pipelines.catalog import safe_key

# Formats that shards do not hold are among them: such an image is rejected by name, not passed over as another file.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})


def is_image_name(name: str) -> bool:
    """Whether a file's suffix is that of an image."""
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def keys_of_paths(paths: Sequence[str]) -> list[str]:
    """A key for every path, which must differ: the path without its suffix, made safe.

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
    """The path without its suffix, for any text; by hand, since manifests have millions of rows and pathlib is slow."""
    stem, _, suffix = path.rpartition(".")
    return path if "/" in suffix or not stem.rpartition("/")[2] else stem
