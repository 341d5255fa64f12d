"""``croissant.json``: a dataset directory described in Croissant 1.1 (docs.mlcommons.org/croissant).

Of every item the record set ``items`` has the facts (shard, offset and size of its bytes, labels), read from the index
alone, and ``images`` the image with its labels and split, read from the tars. Every tar is a FileObject with its
SHA-256.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hgld.data.format import BOX, HIERARCHY, IMAGE_SUFFIXES, INDEX, Manifest

from .cards import own_licence

if TYPE_CHECKING:
    from .cards import DataCard

_TERMS = (  # the terms of Croissant's own vocabulary that its context abbreviates
    "arrayShape citeAs column containedIn equivalentProperty extract field fileProperty fileObject fileSet format "
    "includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)
_COLUMNS = {  # of the index: type and description
    "key": ("sc:Text", "Name of the item: its image is KEY.SUFFIX in the shard, its facts KEY.json."),
    "shard": ("sc:Text", "File name of the tar that holds the item."),
    "offset": ("cr:Int64", "Where the image's bytes begin in the tar."),
    "size": ("cr:Int64", "Number of the image's bytes."),
    "suffix": ("sc:Text", "Suffix of the image's name."),
    "width": ("cr:Int32", "Pixels as stored, before the EXIF orientation is applied."),
    "height": ("cr:Int32", "Pixels as stored, before the EXIF orientation is applied."),
    "orientation": ("cr:Int8", "EXIF orientation, 1 to 8."),
    "sha256": ("sc:Text", "SHA-256 of the image's bytes."),
    "duplicate_of": ("sc:Text", "Key of the first item with the same bytes; empty where this is the first."),
    "class_run": ("cr:Int32", "Number, within the shard, of the run of items of one class that the item stands in."),
}
_CLASS_COLUMNS = {
    "level": ("sc:Text", "Name of the level."),
    "label": ("cr:Int32", "Number of the class within its level, as items have it."),
    "name": ("sc:Text", "Name of the class."),
    "parent": ("cr:Int32", "Label of the class above, at the next coarser level; empty at the coarsest."),
}
_BOX_TEXT = "Side of the box to crop to, in pixels of the upright image; empty for the whole image."
_IMAGES = "pictures"
_WITHOUT_SUFFIX = rf"^(.+?)(?:\.(?:{'|'.join(IMAGE_SUFFIXES)}))?$"


def croissant(manifest: Manifest, card: "DataCard | None", *, boxes: bool = False) -> dict[str, Any]:
    """Return the content of ``croissant.json``.

    Args:
        manifest: of the dataset directory; its ``files`` hold the index and the hierarchy.
        card: of the dataset; None: its own manifest states description and licence.
        boxes: True if the index has boxes to crop to.
    """
    stated = manifest.provenance.get("description") if card is None else card.sections.get("Source")
    items = sum(split["items"] for split in manifest.splits.values())
    description = str(stated or "") or (
        f"{card.title if card else manifest.name}: {items} images with labels at the levels "
        f"{', '.join(manifest.levels)}, as WebDataset shards with an index."
    )
    licence = own_licence(manifest) if card is None else card.licence
    # mlcroissant reads application/x-parquet, not the registered application/vnd.apache.parquet
    tables = [_file(name, manifest.files[name], "application/x-parquet") for name in (INDEX, HIERARCHY)]
    tars = [_file(s.name, {"bytes": s.bytes, "sha256": s.sha256}, "application/x-tar") for s in manifest.shards]
    fields = _item_fields(manifest.levels, boxes)
    return {
        "@context": {
            "@language": "en",
            "@vocab": "https://schema.org/",
            "sc": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/",
            "rai": "http://mlcommons.org/croissant/RAI/",
            "dct": "http://purl.org/dc/terms/",
            "conformsTo": "dct:conformsTo",
            "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
            **{term: f"cr:{term}" for term in _TERMS.split()},
            **{term: {"@id": f"cr:{term}", "@type": "@json"} for term in ("examples", "data")},
            **{term: {"@container": "@language"} for term in ("name", "description")},
        },
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", manifest.name) or "dataset",
        "description": description,
        **({"license": licence} if licence else {}),
        "version": f"1.0.0+{manifest.files[INDEX]['sha256'][:12]}",  # other items or labels make another
        "distribution": [
            *tables,
            *tars,
            {
                **_named("cr:FileSet", _IMAGES, "The images in the tars."),
                "containedIn": [{"@id": shard.name} for shard in manifest.shards],
                "encodingFormat": "image/jpeg",
                "includes": [f"*.{suffix}" for suffix in IMAGE_SUFFIXES],
            },
        ],
        "recordSet": [
            {
                **_named("cr:RecordSet", "splits", "The splits of the dataset."),
                "key": {"@id": "splits/name"},
                "field": [_field("splits", "name", "The split.", "sc:Text")],
                "dataType": "cr:Split",
                "data": [{"splits/name": name} for name in manifest.splits],
            },
            {
                **_named("cr:RecordSet", "classes", "The tree of classes, one record a class."),
                "key": [{"@id": "classes/level"}, {"@id": "classes/label"}],
                "field": [
                    _field("classes", name, text, kind, _column(HIERARCHY, name))
                    for name, (kind, text) in _CLASS_COLUMNS.items()
                ],
            },
            {
                **_named("cr:RecordSet", "items", "One record an item, in the order of the shards."),
                "key": {"@id": "items/key"},
                "field": fields,
            },
            {
                **_named("cr:RecordSet", "images", "One record an image, with its labels and split."),
                "key": {"@id": "images/key"},
                "field": _image_fields(fields),
            },
        ],
    }


def _named(kind: str, name: str, description: str, place: str = "") -> dict[str, Any]:
    return {"@type": kind, "@id": place or name, "name": name, "description": description}


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
    record: str, name: str, description: str, kind: str, source: Mapping[str, Any] | None = None, **more: object
) -> dict[str, Any]:
    named = _named("cr:Field", name, description, f"{record}/{name}")
    return {**named, "dataType": kind, **({"source": source} if source else {}), **more}


def _column(file: str, column: str) -> dict[str, Any]:
    return {"fileObject": {"@id": file}, "extract": {"column": column}}


def _item_fields(levels: Sequence[str], boxes: bool) -> list[dict[str, Any]]:
    fields = [_field("items", name, text, kind, _column(INDEX, name)) for name, (kind, text) in _COLUMNS.items()]
    split = {"field": {"@id": "splits/name"}}
    fields.append(_field("items", "split", "Split of the item.", "sc:Text", _column(INDEX, "split"), references=split))
    for c, level in enumerate(levels):
        own = re.fullmatch(r"[A-Za-z0-9_.-]+", level) and not level.startswith("level_")
        text = f"Class at level {c} of {len(levels)}, {level!r} (0 is the finest): label in classes; -1 is unknown."
        fields.append(_field("items", level if own else f"level_{c}", text, "cr:Int32", _column(INDEX, level)))
    sides = BOX if boxes else ()
    return fields + [_field("items", side, _BOX_TEXT, "cr:Int32", _column(INDEX, side)) for side in sides]


def _image_fields(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields of images: key and image out of the tars, joined by key with labels and split."""
    files = {"fileSet": {"@id": _IMAGES}}
    # mlcroissant applies the transform twice, so that what it leaves must pass unchanged
    key = {**files, "extract": {"fileProperty": "fullpath"}, "transform": {"regex": _WITHOUT_SUFFIX}}
    index = {"fileObject": {"@id": INDEX}, "extract": {"column": "key"}}
    return [
        _field("images", "key", "Name of the item.", "sc:Text", key, references=index),
        _field("images", "image", "The picture.", "sc:ImageObject", {**files, "extract": {"fileProperty": "content"}}),
        *(
            {term: value for term, value in field.items() if term != "references"} | {"@id": f"images/{field['name']}"}
            for field in items
            if field["name"] not in _COLUMNS
        ),
    ]
