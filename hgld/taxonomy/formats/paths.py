"""Paths: a table whose column ``path`` leads from the top to the class of each row, as in ``animal > dog > beagle``.

A column ``name`` or ``label``, if there, says what the last part is called.
"""

from hgld.errors import HierarchyError, TableError
from hgld.tables import csv_text
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder, short

FORMAT = "paths"
BETWEEN = ">"


def is_paths(document: Document) -> bool:
    """Tell whether the document is a table with a column path."""
    return "path" in document.columns


def read_paths(document: Document) -> Taxonomy:
    """Read a table of paths; a class's id is its path. A path that is there twice has two names.

    Raises:
        TableError: it is not such a table, or a path has an empty part.
    """
    if not is_paths(document):
        shown = ", ".join(map(short, document.columns[:20]))
        raise TableError(f"{document.path} lacks the column 'path'; found {shown}.")
    made = TaxonomyBuilder(str(document.path), FORMAT)
    declared: set[str] = set()
    for line, (path, name, label) in document.select(("path", "name", "label")):
        parts = [part.strip() for part in path.split(BETWEEN)]
        if not all(parts):
            raise TableError(
                f"{document.path}, line {line:,}: the path {short(path)} has an empty part; expected parts between "
                f"{BETWEEN!r}."
            )
        ids = [f" {BETWEEN} ".join(parts[: depth + 1]) for depth in range(len(parts))]
        for depth, (here, part) in enumerate(zip(ids, parts, strict=True)):
            if here in made:
                continue
            made.add(here, part, row=line)
            if depth:
                made.link(here, ids[depth - 1], line)
        if ids[-1] not in declared:
            made.describe(ids[-1], name or label)
        else:
            made.count("repeated paths (their names are further names)")
            if name or label:
                made.call(name or label, ids[-1])
        declared.add(ids[-1])
    return made.finish()


def write_paths(taxonomy: Taxonomy) -> str:
    """Return a table of paths, a row a class.

    Raises:
        HierarchyError: a class has several parents, or a name cannot be part of a path.
    """
    whole: dict[int, str] = {}
    for place in taxonomy.order.tolist():
        name, parents = taxonomy.names[place], taxonomy.parents[place]
        if len(parents) > 1 or BETWEEN in name or name != name.strip():
            raise HierarchyError(
                f"{taxonomy.source}: {short(name)} has several parents, {BETWEEN!r} in its name or blanks around it, "
                "so it has no path. Write an edge list."
            )
        whole[place] = f"{whole[parents[0]]} {BETWEEN} {name}" if parents else name
    return csv_text([("path",), *((whole[place],) for place in range(len(taxonomy)))])
