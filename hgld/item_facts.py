"""The JSON that stands beside every image in a shard: labels, names, split, source, levels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hgld.dataset_names import check_levels, is_safe_split, json_object, short
from hgld.errors import InputError

MAX_ITEM_JSON_BYTES = 1 << 16
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
    """

    labels: tuple[int, ...]
    names: tuple[str, ...]
    split: str
    source: str
    levels: tuple[str, ...]


def item_json(
    labels: Sequence[int], names: Sequence[str | None], split: str, source: str, levels: Sequence[str]
) -> bytes:
    """The bytes of ``{key}.json``; the same keys and types in every item, because readers infer them from the first."""
    facts = {
        "labels": list(labels),
        "names": [name or "" for name in names],
        "split": split,
        "source": source,
        "levels": list(levels),
    }
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
        isinstance(labels, list) and labels and all(type(label) is int and -1 <= label < 1 << 31 for label in labels)
    ):
        raise InputError(f"{where}: 'labels' is {short(labels)}; expected a list of int32 class ids, -1 if unknown.")
    names = _texts(facts.get("names"), "names", {len(labels)}, where)
    levels = _texts(facts.get("levels", []), "levels", {0, len(labels)}, where)
    split, source = facts.get("split"), facts.get("source", "")
    if not isinstance(split, str) or not is_safe_split(split):
        raise InputError(f"{where}: 'split' is {short(split)}; expected at most 64 letters, digits and _.")
    if not isinstance(source, str):
        raise InputError(f"{where}: 'source' is {short(source)}; expected text.")
    if levels:
        check_levels(levels, where)
    return ItemFacts(tuple(labels), names, split, source, levels)


def _texts(found: object, name: str, lengths: set[int], where: str) -> tuple[str, ...]:
    if isinstance(found, list) and len(found) in lengths and all(isinstance(text, str) for text in found):
        return tuple(found)
    raise InputError(f"{where}: {name!r} is {short(found)}; expected {max(lengths)} texts, as many as labels.")
