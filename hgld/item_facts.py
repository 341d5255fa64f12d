"""The JSON that stands beside every image in a shard: labels, names, split, source, levels."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from hgld.dataset_names import check_levels, is_safe_split, json_object, short
from hgld.errors import InputError

MAX_ITEM_JSON_BYTES = 1 << 16
MAX_LABEL = (1 << 24) - 1  # so that no planted label makes a table of two milliard classes
_WHOLE_IMAGE = [0, 0, 0, 0]
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can spell them, UTF-8 files cannot hold them
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class ItemFacts:
    """What an item's JSON says.

    Attributes:
        labels: class ids, finest first; -1 is unknown.
        names: the classes' names; empty where unknown.
        split: the item's split.
        source: where the bytes came from.
        levels: the levels' names; empty where the JSON does not say (a tar that others wrote).
        box: left, top, right, bottom of the crop in pixels of the upright image; None for the whole image.
        boxed: whether the dataset defines boxes, though this item may have none.
    """

    labels: tuple[int, ...]
    names: tuple[str, ...]
    split: str
    source: str
    levels: tuple[str, ...]
    box: tuple[int, int, int, int] | None = None
    boxed: bool = False


def item_json(
    labels: Sequence[int],
    names: Sequence[str | None],
    split: str,
    source: str,
    levels: Sequence[str],
    box: Sequence[int] | None = None,
) -> bytes:
    """The bytes of ``{key}.json``.

    Fields and types must be the same in every item of a dataset, because readers infer them from the first: give
    ``box`` (empty for the whole image, then written as four zeros) to every item of a set that defines boxes, and to
    none of another.
    """
    facts: dict[str, object] = {
        "labels": list(labels),
        "names": [name or "" for name in names],
        "split": split,
        "source": source,
        "levels": list(levels),
    }
    if box is not None:
        facts["box"] = list(box) or _WHOLE_IMAGE
    return _encode_json(facts).encode()


def parse_item_json(data: bytes, where: str) -> ItemFacts:
    """Read ``{key}.json``.

    Args:
        data: the member's bytes.
        where: what messages call the member.

    Raises:
        InputError: not JSON of that form: too large, missing fields, wrong types, unlike lengths, an unsafe split.
    """
    if len(data) > MAX_ITEM_JSON_BYTES:
        raise InputError(f"{where}: {len(data)} bytes; expected at most {MAX_ITEM_JSON_BYTES}.")
    facts = json_object(data, where)
    labels = facts.get("labels")
    if not (
        isinstance(labels, list) and labels and all(type(label) is int and -1 <= label <= MAX_LABEL for label in labels)
    ):
        raise InputError(
            f"{where}: 'labels' is {short(labels)}; expected a list of class ids from -1 (unknown) to {MAX_LABEL}."
        )
    names = _texts(facts.get("names"), "names", {len(labels)}, where)
    levels = _texts(facts.get("levels", []), "levels", {0, len(labels)}, where)
    split, source = facts.get("split"), facts.get("source", "")
    if not isinstance(split, str) or not is_safe_split(split):
        raise InputError(f"{where}: 'split' is {short(split)}; expected at most 64 letters, digits and _.")
    if not _is_text(source):
        raise InputError(f"{where}: 'source' is {short(source)}; expected text.")
    if levels:
        check_levels(levels, where)
    box = _box(facts["box"], where) if "box" in facts else None
    return ItemFacts(tuple(labels), names, split, source, levels, box, "box" in facts)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _SURROGATE.search(value) is None


def _texts(found: object, name: str, lengths: set[int], where: str) -> tuple[str, ...]:
    if isinstance(found, list) and len(found) in lengths and all(map(_is_text, found)):
        return tuple(found)
    raise InputError(f"{where}: {name!r} is {short(found)}; expected {max(lengths)} texts, as many as labels.")


def _box(found: object, where: str) -> tuple[int, int, int, int] | None:
    if found == _WHOLE_IMAGE:
        return None
    if isinstance(found, list) and len(found) == 4 and all(type(side) is int and 0 <= side < 1 << 31 for side in found):
        left, top, right, bottom = found
        if left < right and top < bottom:
            return left, top, right, bottom
    raise InputError(
        f"{where}: 'box' is {short(found)}; expected [left, top, right, bottom], or {_WHOLE_IMAGE} for the whole image."
    )
