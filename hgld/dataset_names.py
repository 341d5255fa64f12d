"""What the files of a dataset directory are called, and which names are safe in it (docs/shards.md)."""

import json
import re
from collections.abc import Sequence
from typing import Any

from hgld.errors import InputError

SCHEMA_VERSION = 1
INDEX = "index.parquet"
MANIFEST = "dataset.json"
HIERARCHY = "hierarchy.parquet"
REJECTED = "rejected.parquet"
LISTS = "lists.parquet"
JUDGEMENTS = "judgements.parquet"
CARD = "README.md"
CROISSANT = "croissant.json"
SEARCH = "search"  # folder of indexes that hgld search keeps; no part of the dataset

KEY_PATTERN = r"[A-Za-z0-9_=-]+(?:/[A-Za-z0-9_=-]+)*"
SPLIT_PATTERN = r"[A-Za-z0-9_]{1,64}"
FILE_PATTERN = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}"
SHARD_PATTERN = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,195}\.tar"  # ours are SPLIT-000000.tar, but others' tars are read too
LONGEST_KEY = 200
IMAGE_FORMATS = {  # what shards hold and every reader decodes: Pillow's names, and the suffixes, the usual one first
    "JPEG": ("jpg", "jpeg"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "GIF": ("gif",),
}
IMAGE_SUFFIXES = tuple(suffix for suffixes in IMAGE_FORMATS.values() for suffix in suffixes)
BOX = ("box_left", "box_top", "box_right", "box_bottom")  # not plain "top", which is a common name of a level
COLUMNS_BESIDE_LEVELS = (
    *("key", "shard", "offset", "size"),
    *("split", "suffix", "width", "height", "orientation", "sha256", "duplicate_of", "group"),
    *BOX,
)


def is_safe_key(key: str) -> bool:
    """Whether a key can be a file's name everywhere: letters, digits and ``_ - =`` between single ``/``.

    >>> is_safe_key("abbey/img_1"), is_safe_key("../evil"), is_safe_key("/abs"), is_safe_key("a.b"), is_safe_key("é")
    (True, False, False, False, False)
    """
    return len(key) <= LONGEST_KEY and re.fullmatch(KEY_PATTERN, key) is not None


def is_safe_split(split: str) -> bool:
    """Whether a split can be the beginning of a shard's name: at most 64 letters, digits and ``_``."""
    return re.fullmatch(SPLIT_PATTERN, split) is not None


def is_safe_name(name: str) -> bool:
    """Whether a dataset's name can be part of a file's name: 1 to 200 printable letters that lead to no other folder.

    >>> is_safe_name("iNat 2018 (é)"), is_safe_name("../evil"), is_safe_name("a\\b"), is_safe_name("..")
    (True, False, False, False)
    """
    return 0 < len(name) <= 200 and name.isprintable() and not {"/", "\\"} & set(name) and name not in (".", "..")


def shard_name(split: str, number: int) -> str:
    """File name of a split's shard.

    >>> shard_name("train", 12)
    'train-000012.tar'
    """
    return f"{split}-{number:06d}.tar"


def is_shard_name(name: str) -> bool:
    """Whether a file can be a shard of a dataset directory: a plain name that ends in ``.tar``.

    >>> is_shard_name("train-000012.tar"), is_shard_name("../train-000012.tar"), is_shard_name(".hidden.tar")
    (True, False, False)
    """
    return re.fullmatch(SHARD_PATTERN, name) is not None


def check_levels(levels: Sequence[str], where: str) -> tuple[str, ...]:
    """The levels of a dataset, finest first, or a refusal.

    Raises:
        InputError: there are none, they repeat, or one has the name of another column of the index.
    """
    taken = [level for level in levels if level in COLUMNS_BESIDE_LEVELS]
    odd = [level for level in levels if not 0 < len(level) <= 100 or not level.isprintable()]
    if not levels or len(set(levels)) != len(levels) or taken or odd:
        raise InputError(
            f"{where}: levels are {list(levels)}; expected at least one, each once, of printable text, "
            f"and none of {', '.join(COLUMNS_BESIDE_LEVELS)}."
        )
    return tuple(levels)


def json_object(data: bytes | str, where: str) -> dict[str, Any]:
    """A JSON object from outside.

    Raises:
        InputError: not JSON, or another kind of value.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error}).") from error
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a JSON object, found {short(found)}.")
    return found


def short(value: object) -> str:
    """A value as messages show it: at most 80 letters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
