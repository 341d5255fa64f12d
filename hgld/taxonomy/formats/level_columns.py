"""Tables with a column a level, a row an item or class: GLDv2's label files, manifests, anybody's spreadsheet."""

from collections.abc import Sequence

from hgld.errors import HierarchyError, TableError
from hgld.tables import csv_text
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder, short

FORMAT = "columns"


def read_level_columns(document: Document, levels: Sequence[str] = ()) -> Taxonomy:
    """Read the columns of these levels, finest first; of all columns if none are named.

    A class is (level, name); it may stand under several of the next level. Empty cells are unknown: the class is put
    under the next level that is known.

    Raises:
        TableError: a column is missing, or it is no table.
        HierarchyError: no row has a class.
    """
    chosen = tuple(levels) or document.columns
    missing = [level for level in chosen if level not in document.columns]
    if missing or not chosen:
        raise TableError(
            f"{document.path} lacks the column {short(missing[0]) if missing else ''}; found "
            f"{', '.join(map(short, document.columns[:20]))}. Name its levels, finest first: --levels A,B,C."
        )
    made = TaxonomyBuilder(str(document.path), FORMAT)
    for line, cells in document.select(chosen):
        below = ""
        for level, name in zip(chosen, cells, strict=True):
            if not name:
                continue
            here = f"{level}: {name}"
            if here not in made:
                made.add(here, name, level, line)
            if below and not made.has_link(below, here):
                made.link(below, here, line)
            below = here
    return made.finish()


def write_level_columns(taxonomy: Taxonomy) -> str:
    """Return a table with a column a rank, a row a class that nothing lies below.

    Raises:
        HierarchyError: a class has no rank or several parents.
    """
    if taxonomy.with_several_parents or not all(taxonomy.ranks):
        raise HierarchyError(f"{taxonomy.source}: a table of levels has one parent and one level a class.")
    levels = list(dict.fromkeys(str(rank) for rank in taxonomy.ranks))
    rows = [levels]
    for leaf in taxonomy.leaves.tolist():
        cells, place = dict.fromkeys(levels, ""), leaf
        cells[str(taxonomy.ranks[place])] = taxonomy.names[place]
        while taxonomy.parents[place]:
            place = taxonomy.parents[place][0]
            cells[str(taxonomy.ranks[place])] = taxonomy.names[place]
        rows.append([*cells.values()])
    return csv_text(rows)
