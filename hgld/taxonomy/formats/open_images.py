"""Open Images' hierarchy JSON: nested objects with LabelName and Subcategory, and class descriptions beside it.

``bbox_labels_600_hierarchy.json`` names classes by ids such as /m/0242l; the table ``class-descriptions*.csv`` in the
same folder says what they are called. A class may stand under several others. Parts (``Part``) are no subclasses.
"""

import json
from typing import Any

from hgld.errors import HierarchyError, SchemaError
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.graph import MOST_NODES, MOST_STEPS, Taxonomy, TaxonomyBuilder, short

FORMAT = "open-images"
ROOT = "/m/0bl9f"  # Open Images' own class of everything


def is_open_images(document: Document) -> bool:
    """Tell whether the document is a JSON object with a LabelName."""
    data = document.json if document.looks_like_json else None
    return isinstance(data, dict) and "LabelName" in data


def read_open_images(document: Document) -> Taxonomy:
    """Read the hierarchy, with the names of a table of class descriptions in its folder.

    Raises:
        SchemaError: an object is not a class.
        HierarchyError: the hierarchy is too deep or large, or has a cycle.
        TableError: the class descriptions cannot be read.
    """
    made = TaxonomyBuilder(str(document.path), FORMAT, "entry")
    described = _descriptions(document)
    waiting: list[tuple[Any, str, int]] = [(document.json, "", 0)]
    entries = 0
    while waiting:
        entry, parent, depth = waiting.pop()
        entries += 1
        if depth > MOST_STEPS or entries > MOST_NODES:
            raise HierarchyError(
                f"{made.source}: deeper than {MOST_STEPS:,} or larger than {MOST_NODES:,}; that is no taxonomy."
            )
        label = entry.get("LabelName") if isinstance(entry, dict) else None
        below = entry.get("Subcategory", []) if isinstance(entry, dict) else None
        if not isinstance(label, str) or not label or not isinstance(below, list):
            raise SchemaError(
                f"{made.source}: entry {entries:,}{f' under {short(parent)}' if parent else ''} is "
                f"{short(str(entry))}; expected an object with LabelName and, if it has any, a list Subcategory."
            )
        made.count("parts (not subclasses)", len(entry["Part"]) if isinstance(entry.get("Part"), list) else 0)
        if label not in made:
            made.add(label, row=entries)
        shown = entry.get("DisplayName")
        made.describe(label, shown if isinstance(shown, str) else described.get(label, ""))
        if parent:
            made.link(label, parent, entries)
        waiting += [(sub, label, depth + 1) for sub in reversed(below)]
    if described:
        made.count("classes without a description", sum(label not in described for label in made.ids))
    return made.finish()


def write_open_images(taxonomy: Taxonomy) -> str:
    """Return the hierarchy's JSON, under Open Images' own class of everything; a class under several parents recurs.

    Names stand in a key of their own (DisplayName), which other readers pass over; ranks are lost.

    Raises:
        HierarchyError: classes under several parents would recur too often.
    """
    top = ROOT
    while top in set(taxonomy.ids):
        top += "_"
    made: list[dict[str, Any]] = [{} for _ in taxonomy.ids]  # an object that recurs is written where it recurs
    size = [0] * len(taxonomy)
    for place in reversed(taxonomy.order.tolist()):
        named = taxonomy.names[place]
        made[place]["LabelName"] = taxonomy.ids[place]
        if named != taxonomy.ids[place]:
            made[place]["DisplayName"] = named
        if taxonomy.children[place]:
            made[place]["Subcategory"] = [made[child] for child in taxonomy.children[place]]
        size[place] = 1 + sum(size[child] for child in taxonomy.children[place])
    roots = [place for place, parents in enumerate(taxonomy.parents) if not parents]
    if sum(size[place] for place in roots) > MOST_NODES or int(taxonomy.steps_to_top.max(initial=0)) > 200:
        raise HierarchyError(
            f"{taxonomy.source} is too deep, or recurs too often, for nested JSON. Write an edge list."
        )
    whole = {"LabelName": top, "DisplayName": "Entity", "Subcategory": [made[place] for place in roots]}
    return json.dumps(whole, ensure_ascii=False) + "\n"


def _descriptions(document: Document) -> dict[str, str]:
    """Return the names of classes by their ids, of all tables of class descriptions in the file's folder."""
    names: dict[str, str] = {}
    for table in sorted(document.path.parent.glob("*class-descriptions*.csv")):
        for _, row in Document(table).rows(header=False):
            if len(row) >= 2 and row[0] != "LabelName":
                names.setdefault(row[0].strip(), row[1].strip())
    return names
