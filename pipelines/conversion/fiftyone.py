"""The files of a FiftyOne dataset (``fiftyone.types.FiftyOneDataset``): a sample an item, a field a level.

Their layout is the one without a version, which every release reads and upgrades: ``samples.json`` and
``metadata.json`` beside the pictures.
"""

import json
import mimetypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgld.errors import ConfigError, quoted

if TYPE_CHECKING:
    from .convert import Conversion, ConvertedItem

_TAKEN = {"id", "filepath", "tags", "metadata", "media_type", "created_at", "last_modified_at", "key", "box"}
_TAKEN |= {"decided_by"}
# Declared, for FiftyOne extends its schema sample by sample else, a few in a second.
_TEXT = "fiftyone.core.fields.StringField"
_CLASS = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Classification)"
_BOX = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Detection)"


def write(folder: Path, conversion: "Conversion") -> None:
    """Write ``samples.json`` and ``metadata.json``, see :class:`hgld.pipelines.conversion.convert.Format`.

    Fields: the key, one classification a level, after decisions ``reviewed_LEVEL`` (of the finest level where it
    changed) and ``decided_by``; ``box`` where an item is a part of its picture. Tags: the split, ``decided``,
    ``dropped``.

    Raises:
        ConfigError: two levels whose names make one field, or pictures that do not lie on a disk.
    """
    at, facts = conversion.at, conversion.facts
    if at is not None and "://" in at:
        raise ConfigError(f"{quoted(at)} is an address, and FiftyOne reads pictures from a disk: name a folder.")
    pictures = Path("data") if at is None else Path(at).absolute()
    fields = field_names(conversion.hierarchy.levels)
    info = {**facts, "fields": dict(zip(conversion.hierarchy.levels, fields, strict=True))}
    declared = {"key": _TEXT, **dict.fromkeys(fields, _CLASS), **({"box": _BOX} if conversion.boxes else {})}
    if conversion.verdicts is not None:
        declared |= {"decided_by": _TEXT, **{f"reviewed_{field}": _CLASS for field in fields}}
    metadata = {"name": facts["name"], "media_type": "image", "sample_fields": declared, "info": info}
    (folder / "metadata.json").write_text(json.dumps(metadata, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    with open(folder / "samples.json", "w", encoding="utf-8") as file:
        file.write('{"samples": [')
        for number, item in enumerate(conversion.items):
            file.write(",\n" if number else "\n")
            json.dump(_sample(item, fields, pictures), file, ensure_ascii=False)
        file.write("\n]}\n")


def field_names(levels: tuple[str, ...]) -> list[str]:
    """Return the field of every level: its name, where MongoDB and FiftyOne leave it to the data.

    >>> field_names(("species", "natural or.human", "id", "_x", "été"))
    ['species', 'natural_or_human', 'level_id', 'level__x', 'été']
    """
    plain = [re.sub(r"\W", "_", level) for level in levels]
    found = [f"level_{name}" if name in _TAKEN or re.match(r"_|\d|reviewed_", name) else name for name in plain]
    if len(set(found)) < len(found):
        raise ConfigError(f"levels {', '.join(levels)} would make the fields {', '.join(found)}; take fewer levels.")
    return found


def _sample(item: "ConvertedItem", fields: list[str], pictures: Path) -> dict[str, Any]:
    kind = mimetypes.guess_type(item.file)[0]
    size = {"width": item.size[0], "height": item.size[1]}
    metadata = {"_cls": "ImageMetadata", "size_bytes": item.bytes, "mime_type": kind, **size}
    tags = [item.split, *(["decided"] if item.verdict else [])]
    sample: dict[str, Any] = {
        "filepath": str(pictures / item.file),
        "tags": tags,
        "metadata": metadata,
        "key": item.key,
    }
    sample |= {field: _class(name) for field, name in zip(fields, item.path, strict=True) if name is not None}
    if item.box is not None:
        left, top, right, bottom = item.box
        width, height = item.size
        box = [left / width, top / height, (right - left) / width, (bottom - top) / height]
        sample["box"] = {"_cls": "Detection", "label": item.path[0], "bounding_box": box}
    if item.verdict is not None:
        sample["decided_by"] = ", ".join(item.verdict.who)
        if item.verdict.path is None:
            tags.append("dropped")
        else:
            after = list(zip(fields, item.verdict.path, strict=True))
            after = after if item.verdict.path[0] not in (None, item.path[0]) else after[1:]
            sample |= {f"reviewed_{field}": _class(name) for field, name in after if name is not None}
    return sample


def _class(name: str) -> dict[str, str]:
    return {"_cls": "Classification", "label": name}
