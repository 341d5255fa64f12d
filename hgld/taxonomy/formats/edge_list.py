"""Edge lists: a table with a row for each link of a class to its parent.

Columns ``child`` and ``parent``, by comma or tab; if there, ``name`` and ``rank`` of the child. A row without a parent
declares a class at the top.
"""

from collections.abc import Iterator

from hgld.errors import TableError
from hgld.tables import csv_text
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder

FORMAT = "edge-list"
COLUMNS = ("child", "parent", "name", "rank")


def is_edge_list(document: Document) -> bool:
    """Tell whether the document is a table with columns child and parent."""
    return {"child", "parent"} <= set(document.columns)


def read_edge_list(document: Document) -> Taxonomy:
    """Read a table of links; without a header its two columns are child and parent.

    Raises:
        HierarchyError: an id is empty, or links form a cycle.
        TableError: it is not such a table.
    """
    made = TaxonomyBuilder(str(document.path), FORMAT)
    headed = is_edge_list(document)
    rows = document.select(COLUMNS) if headed else _pairs(document)
    for line, (child, parent, name, rank) in rows:
        if parent:
            made.link(child, parent, line)
        elif child not in made:
            made.add(child, row=line)
        made.describe(child, name, rank)
    return made.finish()


def _pairs(document: Document) -> Iterator[tuple[int, list[str]]]:
    for line, row in document.rows(header=False):
        if len(row) != 2:
            raise TableError(
                f"{document.path}, line {line:,}: {len(row)} cells; expected two, child and parent, or a first line "
                "that names the columns."
            )
        yield line, [row[0].strip(), row[1].strip(), "", ""]


def write_edge_list(taxonomy: Taxonomy) -> str:
    """Return the text of an edge list: child, parent, name, rank."""
    rows = (
        (child, taxonomy.ids[parent] if parent >= 0 else "", taxonomy.names[place], taxonomy.ranks[place] or "")
        for place, child in enumerate(taxonomy.ids)
        for parent in taxonomy.parents[place] or (-1,)
    )
    return csv_text([COLUMNS, *rows])
