"""Lists of categories as JSON: iNaturalist's competitions, with a column a rank, and COCO's, with a supercategory.

``categories.json`` is the list itself; annotation files have it under "categories".
"""

import json
from typing import Any

from hgld.errors import HierarchyError, SchemaError
from hgld.taxonomy.formats.document import Document, text_of
from hgld.taxonomy.formats.ranked_chain import RANKS, add_chain
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder, short

INATURALIST, COCO = "inaturalist", "coco"
SPECIES = "species"


def is_inaturalist(document: Document) -> bool:
    """Tell whether the document lists categories with ranks."""
    return any(rank in entry for entry in _entries(document)[:1] for rank in RANKS)


def is_coco(document: Document) -> bool:
    """Tell whether the document lists categories with a supercategory and no ranks."""
    return not is_inaturalist(document) and any("supercategory" in entry for entry in _entries(document)[:1])


def read_inaturalist(document: Document) -> Taxonomy:
    """Read iNaturalist's categories: kingdom, phylum, class, order, family, genus, and the name of the species.

    Its supercategories lie across the ranks and are left out; the format :data:`COCO` reads them.

    Raises:
        SchemaError: an entry is not a category.
        HierarchyError: an id is there twice.
    """
    made = TaxonomyBuilder(str(document.path), INATURALIST, "entry")
    for number, entry in enumerate(_checked(document), 1):
        above = add_chain(made, RANKS, [text_of(entry.get(rank)) for rank in RANKS], number)
        leaf = f"id {entry['id']}"
        made.add(leaf, entry["name"], SPECIES, number)
        if above:
            made.link(leaf, above, number)
        if common := text_of(entry.get("common_name")):
            made.call(common, leaf)
        made.count("supercategories (across the ranks)", int(bool(text_of(entry.get("supercategory")))))
    return made.finish()


def read_coco(document: Document) -> Taxonomy:
    """Read categories and their supercategories.

    Raises:
        SchemaError: an entry is not a category.
        HierarchyError: an id is there twice.
    """
    made = TaxonomyBuilder(str(document.path), COCO, "entry")
    for number, entry in enumerate(_checked(document), 1):
        leaf, above = f"id {entry['id']}", text_of(entry.get("supercategory"))
        made.add(leaf, entry["name"], "category", number)
        if not above:
            continue
        parent = f"supercategory {above}"
        if parent not in made:
            made.add(parent, above, "supercategory", number)
        made.link(leaf, parent, number)
    return made.finish()


def write_inaturalist(taxonomy: Taxonomy) -> str:
    """Return categories with iNaturalist's ranks, one a class that nothing lies below.

    Raises:
        HierarchyError: the ranks of the taxonomy are others, or a class has several parents.
    """
    allowed = {*RANKS, SPECIES}
    if taxonomy.with_several_parents or not set(taxonomy.ranks) <= allowed or None in taxonomy.ranks:
        raise HierarchyError(
            f"{taxonomy.source}: iNaturalist's categories have one parent a class and the levels {SPECIES}, "
            f"{', '.join(reversed(RANKS))}; expected these. Write another format, or name the levels so."
        )
    entries = []
    for leaf in taxonomy.leaves.tolist():
        if taxonomy.ranks[leaf] != SPECIES:
            raise HierarchyError(
                f"{taxonomy.source}: {short(taxonomy.names[leaf])} is a {taxonomy.ranks[leaf]} without species; "
                "iNaturalist's categories are species. Write another format."
            )
        ranked: dict[str, str] = dict.fromkeys(RANKS, "")
        place = leaf
        while taxonomy.parents[place]:
            place = taxonomy.parents[place][0]
            ranked[str(taxonomy.ranks[place])] = taxonomy.names[place]
        entries.append({"id": len(entries), "name": taxonomy.names[leaf], **ranked})
    return json.dumps(entries, ensure_ascii=False, indent=1) + "\n"


def write_coco(taxonomy: Taxonomy) -> str:
    """Return categories with a supercategory, for a taxonomy of at most two levels.

    Raises:
        HierarchyError: it has more levels, or a class has several parents.
    """
    inner = {parent for parents in taxonomy.parents for parent in parents}
    if taxonomy.with_several_parents or any(taxonomy.parents[place] for place in inner):
        raise HierarchyError(f"{taxonomy.source}: COCO's categories have two levels and one parent a class.")
    entries = []
    for place, parents in enumerate(taxonomy.parents):
        if place not in inner:
            above = {"supercategory": taxonomy.names[parents[0]]} if parents else {}
            entries.append({"id": len(entries), "name": taxonomy.names[place], **above})
    return json.dumps({"categories": entries}, ensure_ascii=False, indent=1) + "\n"


def _entries(document: Document) -> list[dict[str, Any]]:
    """Return the categories of a document, [] where it has none."""
    data = document.json if document.looks_like_json else None
    data = data.get("categories") if isinstance(data, dict) else data
    return data if isinstance(data, list) and data and all(isinstance(entry, dict) for entry in data[:1]) else []


def _checked(document: Document) -> list[dict[str, Any]]:
    entries = _entries(document)
    if not entries:
        raise SchemaError(f"{document.path}: expected a JSON list of categories, or an object that has one.")
    for number, entry in enumerate(entries, 1):
        fits = isinstance(entry, dict) and isinstance(entry.get("id"), int) and text_of(entry.get("name"))
        if not fits:
            raise SchemaError(
                f"{document.path}: category {number:,} is {short(str(entry))}; expected an object with a number id and "
                "a name."
            )
    return entries
