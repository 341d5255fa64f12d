"""``croissant.json``: a dataset directory described in Croissant 1.1 (docs.mlcommons.org/croissant).

Of every item the record set ``items`` has the facts (shard, offset and size of its bytes, labels), read from the index
alone, and ``images`` the picture with its labels and split, read from the tars. Every tar is a FileObject with its
SHA-256.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hgld.data.format import BOX, HIERARCHY, IMAGE_SUFFIXES, INDEX, Manifest
from hgld.errors import ConfigError

if TYPE_CHECKING:
    from .cards import DataCard

_CROISSANT = "http://mlcommons.org/croissant/1.1"
_JSON_TYPE = {"examples": "cr:examples", "data": "cr:data"}
_TERMS = (  # the terms of Croissant's own vocabulary that its context abbreviates
    *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileProperty"),
    *("fileObject", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5"),
    *("parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator"),
    *("source", "subField", "transform"),
)
_TYPES = {
    "key": "sc:Text",
    "shard": "sc:Text",
    "offset": "cr:Int64",
    "size": "cr:Int64",
    "suffix": "sc:Text",
    "width": "cr:Int32",
    "height": "cr:Int32",
    "orientation": "cr:Int8",
    "sha256": "sc:Text",
    "duplicate_of": "sc:Text",
    "class_run": "cr:Int32",
}
_DESCRIPTIONS = {
    "key": "Name of the item: its image is KEY.SUFFIX in the shard, its facts KEY.json.",
    "shard": "File name of the tar that holds the item.",
    "offset": "Where the image's bytes begin in the tar.",
    "size": "Number of the image's bytes.",
    "suffix": "Suffix of the image's name.",
    "width": "Pixels as stored, before the EXIF orientation is applied.",
    "height": "Pixels as stored, before the EXIF orientation is applied.",
    "orientation": "EXIF orientation, 1 to 8.",
    "sha256": "SHA-256 of the image's bytes.",
    "duplicate_of": "Key of the first item with the same bytes; empty where this is the first.",
    "class_run": "Number, within the shard, of the run of items of one class that the item stands in.",
    "split": "Split of the item.",
    **dict.fromkeys(BOX, "Side of the box to crop to, in pixels of the upright image; empty for the whole image."),
}


def card_facts(card: "DataCard | None", manifest: Manifest) -> dict[str, str]:
    """Return the title, description and license of a dataset, by its card or, without one, by its own manifest."""
    if card is None:
        stated = {"description": manifest.provenance.get("description"), "license": own_licence(manifest)}
        return {fact: text for fact, text in stated.items() if isinstance(text, str) and text}
    description = card.sections.get("Source", "")
    return {"title": card.title, "license": card.licence, **({"description": description} if description else {})}


def own_licence(manifest: Manifest) -> str:
    """Return the licence that the builder of a dataset stated; empty where none was."""
    licence = manifest.provenance.get("licence")
    return licence if isinstance(licence, str) and licence != "not stated" else ""


def facts_of_known(manifest: Manifest) -> dict[str, str]:
    """Return :func:`card_facts` of a dataset, from hgld's card of that name where there is one."""
    from .cards import load_card

    try:
        return card_facts(load_card(manifest.name), manifest)
    except ConfigError:
        return card_facts(None, manifest)


def croissant(manifest: Manifest, card_facts: Mapping[str, str], *, boxes: bool = False) -> dict[str, Any]:
    """Return the content of ``croissant.json``.

    Args:
        manifest: of the dataset directory; its ``files`` hold the index and the hierarchy.
        card_facts: ``title``, ``description``, ``license``, ``url``, ``citation``, as far as known.
        boxes: True if the index has boxes to crop to.
    """
    items = sum(split["items"] for split in manifest.splits.values())
    described = card_facts.get("description") or (
        f"{card_facts.get('title', manifest.name)}: {items} images with labels at the levels "
        f"{', '.join(manifest.levels)}, as WebDataset shards with an index."
    )
    stated = {"license": "license", "url": "url", "citeAs": "citation"}
    # mlcroissant reads application/x-parquet, not the registered application/vnd.apache.parquet
    tables = [_file(name, manifest.files[name], "application/x-parquet") for name in (INDEX, HIERARCHY)]
    tars = [_file(s.name, {"bytes": s.bytes, "sha256": s.sha256}, "application/x-tar") for s in manifest.shards]
    items_of_index = _items(manifest.levels, boxes)
    return {
        "@context": _context(),
        "@type": "sc:Dataset",
        "conformsTo": _CROISSANT,
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", manifest.name) or "dataset",
        "description": described,
        **{term: card_facts[fact] for term, fact in stated.items() if card_facts.get(fact)},
        "version": f"1.0.0+{manifest.files[INDEX]['sha256'][:12]}",  # other items or labels make another
        "distribution": [*tables, *tars, _pictures([s.name for s in manifest.shards])],
        "recordSet": [_splits(list(manifest.splits)), _classes(), items_of_index, _images(items_of_index["field"])],
    }


def _context() -> dict[str, Any]:
    return {
        "@language": "en",
        "@vocab": "https://schema.org/",
        "sc": "https://schema.org/",
        "cr": "http://mlcommons.org/croissant/",
        "rai": "http://mlcommons.org/croissant/RAI/",
        "dct": "http://purl.org/dc/terms/",
        "conformsTo": "dct:conformsTo",
        "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
        **{term: f"cr:{term}" for term in _TERMS},
        **{term: {"@id": place, "@type": "@json"} for term, place in _JSON_TYPE.items()},
        **{term: {"@container": "@language"} for term in ("name", "description")},
    }


def _file(name: str, facts: Mapping[str, Any], form: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{facts['bytes']} B",
        "encodingFormat": form,
        "sha256": facts["sha256"],
    }


def _field(
    record: str, name: str, description: str, kind: str, *, file: str, column: str, **more: object
) -> dict[str, Any]:
    source = {"fileObject": {"@id": file}, "extract": {"column": column}}
    own = {"@type": "cr:Field", "@id": f"{record}/{name}", "name": name, "description": description, "dataType": kind}
    return {**own, "source": source, **more}


def _items(levels: Sequence[str], boxes: bool) -> dict[str, Any]:
    fields = [
        _field("items", name, _DESCRIPTIONS[name], kind, file=INDEX, column=name) for name, kind in _TYPES.items()
    ]
    split = {"references": {"field": {"@id": "splits/name"}}}
    fields.append(_field("items", "split", _DESCRIPTIONS["split"], "sc:Text", file=INDEX, column="split", **split))
    for c, level in enumerate(levels):
        own = re.fullmatch(r"[A-Za-z0-9_.-]+", level) and not level.startswith("level_")
        plain = level if own else f"level_{c}"
        text = f"Class at level {c} of {len(levels)}, {level!r} (0 is the finest): label in classes; -1 is unknown."
        fields.append(_field("items", plain, text, "cr:Int32", file=INDEX, column=level))
    sides = BOX if boxes else ()
    fields += [_field("items", side, _DESCRIPTIONS[side], "cr:Int32", file=INDEX, column=side) for side in sides]
    text = "One record an item, in the order of the shards."
    return _record_set("items", text, [{"@id": "items/key"}], fields)


_PICTURES = "pictures"


def _pictures(tars: Sequence[str]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": _PICTURES,
        "name": _PICTURES,
        "description": "The images in the tars.",
        "containedIn": [{"@id": tar} for tar in tars],
        "encodingFormat": "image/jpeg",
        "includes": [f"*.{suffix}" for suffix in IMAGE_SUFFIXES],
    }


def _images(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the record set of pictures: key and image out of the tars, joined by key with labels and split."""
    picture = {"fileSet": {"@id": _PICTURES}}
    key = {
        "@type": "cr:Field",
        "@id": "images/key",
        "name": "key",
        "description": "Name of the item.",
        "dataType": "sc:Text",
        # mlcroissant applies it twice, so that what it leaves must pass unchanged
        "source": {**picture, "extract": {"fileProperty": "fullpath"}, "transform": {"regex": _WITHOUT_SUFFIX}},
        "references": {"fileObject": {"@id": INDEX}, "extract": {"column": "key"}},
    }
    image = {
        "@type": "cr:Field",
        "@id": "images/image",
        "name": "image",
        "description": "The picture.",
        "dataType": "sc:ImageObject",
        "source": {**picture, "extract": {"fileProperty": "content"}},
    }
    labels = [
        {term: value for term, value in field.items() if term != "references"} | {"@id": f"images/{field['name']}"}
        for field in items
        if field["name"] not in _TYPES
    ]
    text = "One record an image, with its labels and split."
    return _record_set("images", text, [{"@id": "images/key"}], [key, image, *labels])


_WITHOUT_SUFFIX = rf"^(.+?)(?:\.(?:{'|'.join(IMAGE_SUFFIXES)}))?$"


def _classes() -> dict[str, Any]:
    columns = {
        "level": ("sc:Text", "Name of the level."),
        "label": ("cr:Int32", "Number of the class within its level, as items have it."),
        "name": ("sc:Text", "Name of the class."),
        "parent": ("cr:Int32", "Label of the class above, at the next coarser level; empty at the coarsest."),
    }
    fields = [
        _field("classes", name, text, kind, file=HIERARCHY, column=name) for name, (kind, text) in columns.items()
    ]
    key = [{"@id": "classes/level"}, {"@id": "classes/label"}]
    return _record_set("classes", "The tree of classes, one record a class.", key, fields)


def _splits(names: Sequence[str]) -> dict[str, Any]:
    field = {
        "@type": "cr:Field",
        "@id": "splits/name",
        "name": "name",
        "description": "The split.",
        "dataType": "sc:Text",
    }
    record = _record_set("splits", "The splits of the dataset.", [{"@id": "splits/name"}], [field])
    return {**record, "dataType": "cr:Split", "data": [{"splits/name": name} for name in names]}


def _record_set(name: str, description: str, key: list[dict[str, str]], fields: list[dict[str, Any]]) -> dict[str, Any]:
    start = {"@type": "cr:RecordSet", "@id": name, "name": name, "description": description}
    return {**start, "key": key[0] if len(key) == 1 else key, "field": fields}
