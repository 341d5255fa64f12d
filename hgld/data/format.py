"""Names, limits and JSON of a dataset directory, as docs/reference/dataset-files.md describes them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from hgld.errors import InputError, SchemaError, quoted
from hgld.files import parse_json

SCHEMA_VERSION = 2  # schema version of the manifest
INDEX_VERSION = 3
INDEX = "index.parquet"
MANIFEST = "dataset.json"
HIERARCHY = "hierarchy.parquet"
REJECTED = "rejected.parquet"
LISTS = "lists.parquet"
JUDGEMENTS = "judgements.parquet"
CARD = "README.md"
CROISSANT = "croissant.json"

KEY_PATTERN = r"[A-Za-z0-9_=-]+(?:/[A-Za-z0-9_=-]+)*"
PROTOCOL_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
SPLIT_PATTERN = r"[A-Za-z0-9_]{1,64}"
FILE_PATTERN = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}"
SHARD_PATTERN = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,195}\.tar"  # hgld writes SPLIT-000000.tar, and also reads other names
LONGEST_KEY = 200
IMAGE_FORMATS = {  # Pillow's name of each image format in shards -> its suffixes, the usual one first
    "JPEG": ("jpg", "jpeg"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "GIF": ("gif",),
}
MOST_PIXELS = 100_000_000  # maximum pixels of any image; at this size, a decoded RGB image takes 300 MB
IMAGE_SUFFIXES = tuple(suffix for suffixes in IMAGE_FORMATS.values() for suffix in suffixes)
BOX = ("box_left", "box_top", "box_right", "box_bottom")  # the prefix is needed because a level may be called "top"
COLUMNS_BESIDE_LEVELS = (
    *("key", "shard", "offset", "size"),
    *("split", "suffix", "width", "height", "orientation", "sha256", "duplicate_of", "class_run", "source"),
    *BOX,
)


def is_safe_key(key: str) -> bool:
    """Tell whether a key can be a file's name everywhere: letters, digits and ``_ - =`` between single ``/``.

    >>> is_safe_key("abbey/img_1"), is_safe_key("../evil"), is_safe_key("/abs"), is_safe_key("a.b"), is_safe_key("é")
    (True, False, False, False, False)
    """
    return len(key) <= LONGEST_KEY and re.fullmatch(KEY_PATTERN, key) is not None


def key_and_suffix(member: str) -> tuple[str, str]:
    """Return a shard member's item key, and its suffix in lower case.

    >>> key_and_suffix("abbey/1.JPG"), key_and_suffix("abbey/1.json"), key_and_suffix("a.b/1.seg.png")
    (('abbey/1', 'jpg'), ('abbey/1', 'json'), ('a.b/1', 'seg.png'))
    """
    folder, slash, name = member.rpartition("/")
    stem, _, suffix = name.partition(".")
    return folder + slash + stem, suffix.lower()


def is_safe_split(split: str) -> bool:
    """Tell whether the name of a split can begin a shard's name: at most 64 letters, digits and ``_``."""
    return re.fullmatch(SPLIT_PATTERN, split) is not None


def is_safe_name(name: str) -> bool:
    """Tell whether a dataset's name can be part of a file name: 1 to 200 printable characters that form no path.

    >>> is_safe_name("iNat 2018 (é)"), is_safe_name("../evil"), is_safe_name("a\\b"), is_safe_name("..")
    (True, False, False, False)
    """
    return 0 < len(name) <= 200 and name.isprintable() and not {"/", "\\"} & set(name) and name not in (".", "..")


def shard_name(split: str, number: int) -> str:
    """Return the file name of a split's shard.

    >>> shard_name("train", 12)
    'train-000012.tar'
    """
    return f"{split}-{number:06d}.tar"


def is_shard_name(name: str) -> bool:
    """Tell whether a file can be a shard of a dataset directory: a plain name that ends in ``.tar``.

    >>> is_shard_name("train-000012.tar"), is_shard_name("../train-000012.tar"), is_shard_name(".hidden.tar")
    (True, False, False)
    """
    return re.fullmatch(SHARD_PATTERN, name) is not None


def check_levels(levels: Sequence[str], where: str) -> tuple[str, ...]:
    """Check the levels of a dataset, and return them as a tuple.

    Raises:
        InputError: there are no levels, a level repeats, or a level has the name of another column of the index.
    """
    taken = [level for level in levels if level in COLUMNS_BESIDE_LEVELS]
    odd = [level for level in levels if not 0 < len(level) <= 100 or not level.isprintable()]
    if not levels or len(set(levels)) != len(levels) or taken or odd:
        raise InputError(
            f"{where}: levels are {quoted(list(levels))}; expected at least one level, no repeated level, and "
            f"printable names other than {', '.join(COLUMNS_BESIDE_LEVELS)}."
        )
    return tuple(levels)


def short(value: object) -> str:
    """Return the text of a value for messages: at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# -- the JSON of an item ----------------------------------------------------------------------------------------------
#
# Every image in a shard has a JSON with its labels, names, split, source and levels.

MAX_ITEM_JSON_BYTES = 1 << 16
MAX_IMAGE_BYTES = 512 << 20  # maximum size of an encoded image: a malicious size could fill the memory
MAX_LABEL = (1 << 24) - 1  # maximum label: a malicious label could create a table of two billion classes
_WHOLE_IMAGE = [0, 0, 0, 0]
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can contain surrogates, but UTF-8 files cannot
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class ItemFacts:
    """Content of an item's JSON.

    Attributes:
        labels: class ids, finest level first; -1 is unknown.
        names: names of these classes; empty if unknown.
        split: the item's split.
        source: path or URL that the bytes came from.
        levels: the levels' names; empty if the JSON does not state them (in tars that other software wrote).
        box: left, top, right, bottom of the crop in pixels of the upright image; None for the whole image.
        boxed: whether the dataset defines boxes, even if this item has none.
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
    """Return the bytes of ``{key}.json``.

    Fields and types must be the same in every item of a dataset, because readers infer them from the first item. So if
    a dataset defines boxes, pass ``box`` for every item; otherwise pass it for none. An empty box means the whole image
    and is written as four zeros.
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
        where: name of the member in messages.

    Raises:
        InputError: the JSON is too large, lacks fields, or has wrong types, different lengths or an unsafe split.
    """
    facts: dict[str, Any] = {"source": "", "levels": []}
    facts |= parse_json(data, where, kind=dict, max_bytes=MAX_ITEM_JSON_BYTES)
    count = len(facts["labels"]) if isinstance(facts.get("labels"), list) else 0
    texts = f"{count} texts, as many as labels"
    form: Form = {
        "labels": (
            list,
            lambda labels: count and _are_integers(labels, -1, MAX_LABEL),
            f"class ids from -1 (unknown) to {MAX_LABEL}",
        ),
        "names": (list, lambda names: _are_texts(names) and len(names) == count, texts),
        "split": _SPLIT_NAME,
        "source": (str, lambda source: _are_texts([source]), "text"),
        "levels": (list, lambda levels: _are_texts(levels) and len(levels) in (0, count), texts),
    }
    if boxed := "box" in facts:
        form["box"] = list, _is_box, f"[left, top, right, bottom], or {_WHOLE_IMAGE} for the whole image"
    found = _read_fields(facts, form, where)
    if found["levels"]:
        check_levels(found["levels"], where)
    if found.get("box") == _WHOLE_IMAGE:
        del found["box"]
    values: Any = {name: value if isinstance(value, str) else tuple(value) for name, value in found.items()}
    return ItemFacts(**values, boxed=boxed)


def _is_box(box: list[Any]) -> bool:
    is_part = len(box) == 4 and _are_integers(box, 0, (1 << 31) - 1) and box[0] < box[2] and box[1] < box[3]
    return is_part or box == _WHOLE_IMAGE


# -- the manifest -----------------------------------------------------------------------------------------------------
#
# ``dataset.json`` lists the files of a dataset directory and states where its content came from.

MAX_MANIFEST_BYTES = 1 << 26


class SplitFacts(TypedDict):
    """Counts of a split: items, shards, classes per level, and items without a finest label."""

    items: int
    shards: int
    classes: dict[str, int]
    unlabelled: int


class FileFacts(TypedDict):
    """Size and SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardFacts:
    """A shard: its file name, split, number of items, size in bytes and SHA-256."""

    name: str
    split: str
    items: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of ``dataset.json``.

    Attributes:
        name: name of the dataset.
        levels: names of the levels, finest first.
        group_size: minimum number of items of one class that are next to each other in a shard.
        splits: counts per split.
        shards: all shards, in the order of the index.
        files: size and SHA-256 of every other file of the directory except the manifest.
        rejected: number of rejected items per reason.
        provenance: JSON-ready facts: tool version, config and its hash, seeds, sources with checksums, licence.
        protocol: name of the dataset's evaluation protocol (:mod:`hgld.evaluation.protocols`); empty if it has none.
    """

    name: str
    levels: tuple[str, ...]
    group_size: int
    splits: Mapping[str, SplitFacts]
    shards: tuple[ShardFacts, ...]
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = ""

    def to_json(self) -> str:
        """Return the text of ``dataset.json``."""
        facts = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = MANIFEST) -> "Manifest":
        """Read the text that :meth:`to_json` wrote.

        Raises:
            SchemaError: this hgld does not read the schema version.
            InputError: the text is not the JSON of a manifest, or a name could lead out of the directory.
        """
        facts = parse_json(text, where, kind=dict, max_bytes=MAX_MANIFEST_BYTES)
        version = facts.get("schema_version")
        if version != SCHEMA_VERSION:
            raise SchemaError(
                f"{where}: schema version is {short(version)}; this hgld reads version {SCHEMA_VERSION}. Write it "
                "again: hgld index DIR --force"
            )
        return _read_manifest(facts, where)


Form = dict[str, tuple[type, Callable[[Any], object], str]]  # per field: its type, a check, and the expected value


def _read_fields(facts: Any, form: Form, where: str) -> dict[str, Any]:
    """Check and return the fields of a JSON object; ``form`` lists their names, types and checks.

    Raises:
        InputError: a field is missing, or has another type or an invalid value.
    """
    found = {}
    for name, (kind, is_valid, expected) in form.items():
        value = found[name] = facts.get(name) if isinstance(facts, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool) or not is_valid(value):
            raise InputError(f"{where}: {quoted(name)} is {short(value)}; expected {expected}.")
    return found


def _are_texts(values: Any) -> bool:
    return all(isinstance(text, str) and not _SURROGATE.search(text) for text in values)


def _are_integers(values: Any, least: int, most: int) -> bool:
    return all(type(number) is int and least <= number <= most for number in values)


_COUNT = int, lambda number: number >= 0, "a number of at least 0"
_SHA256 = str, re.compile("[0-9a-f]{64}").fullmatch, "64 hex digits"
_TEXTS = list, _are_texts, "a list of names"
_OBJECT = dict, lambda value: True, "an object"
_SPLIT_NAME = str, is_safe_split, "at most 64 letters, digits and _"
_SPLIT: Form = {"items": _COUNT, "shards": _COUNT, "classes": _OBJECT, "unlabelled": _COUNT}
_FILE: Form = {"bytes": _COUNT, "sha256": _SHA256}
_SHARD: Form = {"name": (str, is_shard_name, "a plain name.tar"), "split": _SPLIT_NAME, "items": _COUNT, **_FILE}
_MANIFEST: Form = {
    "name": (str, is_safe_name, "1 to 200 printable characters without slashes"),
    "levels": _TEXTS,
    "group_size": _COUNT,
    "shards": (list, lambda value: True, "a list"),
    **dict.fromkeys(("splits", "files", "rejected", "provenance"), _OBJECT),
    "protocol": (str, re.compile(f"({PROTOCOL_PATTERN})?").fullmatch, "the name of a protocol, or an empty text"),
}


def _read_manifest(facts: dict[str, Any], where: str) -> Manifest:
    found = _read_fields({"protocol": "", **facts}, _MANIFEST, where)
    levels = found["levels"] = check_levels(found["levels"], where)
    for name, facts in found["splits"].items():
        found["splits"][name] = split = _read_fields(facts, _SPLIT, where)
        if not is_safe_split(name):
            raise InputError(f"{where}: a split has the name {short(name)}; expected {_SPLIT_NAME[2]}.")
        if set(split["classes"]) != set(levels):
            raise InputError(
                f"{where}: split {short(name)} counts classes of the levels {short(list(split['classes']))}; expected "
                f"one count for each of {short(list(levels))}."
            )
        _read_fields(split["classes"], dict.fromkeys(levels, _COUNT), where)
    for name, file in found["files"].items():
        found["files"][name] = _read_fields(file, _FILE, where)
        if not re.fullmatch(FILE_PATTERN, name):
            raise InputError(f"{where}: a file has the name {short(name)}; expected a file name without folders.")
    _read_fields(found["rejected"], dict.fromkeys(found["rejected"], _COUNT), where)
    found["shards"] = tuple(ShardFacts(**_read_fields(shard, _SHARD, where)) for shard in found["shards"])
    if len({shard.name for shard in found["shards"]}) != len(found["shards"]):
        raise InputError(f"{where}: a shard is listed twice; expected each once.")
    return Manifest(**found)
