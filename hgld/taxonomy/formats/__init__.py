"""The formats of taxonomies: one registry, from which reading, writing, ``--tree-format`` and the help follow.

A format is found out from the content, never from the file's name, and said.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hgld.errors import ConfigError, SchemaError, quoted
from hgld.files import write_atomic, write_folder
from hgld.hierarchy import Hierarchy
from hgld.taxonomy.format_names import AUTO
from hgld.taxonomy.formats import (
    categories,
    darwin_core,
    edge_list,
    folders,
    level_columns,
    node_link,
    open_images,
    paths,
    ranked_hierarchy,
    wordnet,
)
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.formats.ranked_hierarchy import taxonomy_of
from hgld.taxonomy.graph import Taxonomy, short
from hgld.taxonomy.levels import EvenLevels, ParentsRule, even_levels, levels_as_they_are


@dataclass(frozen=True)
class TaxonomyFormat:
    """A format of taxonomies.

    Attributes:
        read: makes the taxonomy of a document.
        sniff: tells whether a document is of this format.
        text: makes a file's text of a taxonomy; None: this format is not written so.
        fill: writes a taxonomy into a folder; None: this format is not a folder.
        keeps_ranks: whether a written file says which level a class is of.
    """

    read: Callable[[Document], Taxonomy]
    sniff: Callable[[Document], bool]
    text: Callable[[Taxonomy], str] | None = None
    fill: Callable[[Taxonomy, Path], None] | None = None
    keeps_ranks: bool = False


def _own(read: Callable[[Document], Hierarchy]) -> Callable[[Document], Taxonomy]:
    return lambda document: taxonomy_of(read(document), str(document.path))


def _leads(direction: str) -> Callable[[Document], bool]:
    return lambda document: node_link.is_node_link(document) and node_link.direction_of(document) == direction


FORMATS: dict[str, TaxonomyFormat] = {
    ranked_hierarchy.PARQUET: TaxonomyFormat(
        _own(ranked_hierarchy.read_hierarchy_parquet),
        ranked_hierarchy.is_hierarchy_parquet,
        keeps_ranks=True,
    ),
    ranked_hierarchy.JSON: TaxonomyFormat(
        _own(ranked_hierarchy.read_hierarchy_json),
        ranked_hierarchy.is_hierarchy_json,
        keeps_ranks=True,
    ),
    wordnet.FORMAT: TaxonomyFormat(
        wordnet.read_wordnet,
        wordnet.is_wordnet,
        fill=wordnet.write_wordnet,
    ),
    node_link.DOWN: TaxonomyFormat(
        partial(node_link.read_node_link, direction=node_link.DOWN),
        _leads(node_link.DOWN),
        node_link.write_node_link,
        keeps_ranks=True,
    ),
    node_link.UP: TaxonomyFormat(
        partial(node_link.read_node_link, direction=node_link.UP),
        _leads(node_link.UP),
    ),
    open_images.FORMAT: TaxonomyFormat(
        open_images.read_open_images,
        open_images.is_open_images,
        open_images.write_open_images,
    ),
    categories.INATURALIST: TaxonomyFormat(
        categories.read_inaturalist,
        categories.is_inaturalist,
        categories.write_inaturalist,
        keeps_ranks=True,
    ),
    categories.COCO: TaxonomyFormat(
        categories.read_coco,
        categories.is_coco,
        categories.write_coco,
    ),
    darwin_core.FORMAT: TaxonomyFormat(
        darwin_core.read_darwin_core,
        darwin_core.is_darwin_core,
        darwin_core.write_darwin_core,
        keeps_ranks=True,
    ),
    edge_list.FORMAT: TaxonomyFormat(
        edge_list.read_edge_list,
        edge_list.is_edge_list,
        edge_list.write_edge_list,
        keeps_ranks=True,
    ),
    paths.FORMAT: TaxonomyFormat(paths.read_paths, paths.is_paths, paths.write_paths),
    level_columns.FORMAT: TaxonomyFormat(
        level_columns.read_level_columns,
        lambda document: False,  # any table might be one: its levels are named
        level_columns.write_level_columns,
        keeps_ranks=True,
    ),
    folders.FORMAT: TaxonomyFormat(
        folders.read_folders,
        lambda document: document.is_folder,
        fill=folders.write_folders,
    ),
}
"""The formats by name, in the order in which a document is tried; ``format_names.py`` says what each is."""

_BY_SUFFIX = {".parquet": ranked_hierarchy.PARQUET, ".json": ranked_hierarchy.JSON, ".csv": edge_list.FORMAT}


def sniff(document: Document) -> str:
    """Return the name of a document's format.

    Raises:
        SchemaError: it is of none.
        InputError: it cannot be read.
    """
    for name, known in FORMATS.items():
        if known.sniff(document):
            return name
    raise SchemaError(
        f"{document.path}: {_found(document)}; expected a taxonomy. Name its format ({', '.join(FORMATS)}), or the "
        "columns that are its levels, finest first: --levels A,B,C."
    )


def _found(document: Document) -> str:
    if document.looks_like_json:
        keys = document.json if isinstance(document.json, dict) else {}
        return f"JSON with the keys {', '.join(map(short, list(keys)[:10]))}" if keys else "JSON of an unknown form"
    if len(document.columns) > 1:
        return f"a table with the columns {', '.join(map(short, document.columns[:10]))}"
    return "a file of unknown content"


def read_taxonomy(path: str | Path, format: str = AUTO, *, columns: Sequence[str] = ()) -> Taxonomy:  # noqa: A002
    """Read a taxonomy of any of :data:`FORMATS`.

    Args:
        path: the file or folder.
        format: its format; ``auto``: found out from the content.
        columns: the columns of a table that are its levels, finest first; they make ``auto`` take a table for one.

    Raises:
        ConfigError: there is no such format.
        InputError: the file is not a taxonomy of that format.
    """
    return _read(Document(path), format, columns)


def _read(document: Document, format: str, columns: Sequence[str]) -> Taxonomy:  # noqa: A002
    if format != AUTO and format not in FORMATS:
        raise ConfigError(f"there is no format {quoted(format)}; expected {AUTO} or one of {', '.join(FORMATS)}.")
    are_columns = format == AUTO and columns and set(columns) <= set(document.columns)
    if format == level_columns.FORMAT or are_columns:
        return level_columns.read_level_columns(document, columns)
    name = sniff(document) if format == AUTO else format
    return FORMATS[name].read(document)


def read_levels(
    path: str | Path,
    format: str = AUTO,  # noqa: A002
    *,
    parents: ParentsRule = "refuse",
    cut: str = "",
    levels: Sequence[str] = (),
) -> EvenLevels:
    """Read a taxonomy and make even levels of it (:func:`hgld.taxonomy.levels.even_levels`).

    hgld's own files without rules keep their class ids.

    Args:
        path: the file or folder.
        format: its format; ``auto``: found out from the content.
        parents: rule for classes under several parents.
        cut: rule for uneven depth.
        levels: names of the levels, finest first; of a table with these columns, the columns.

    Raises:
        ConfigError: the options cannot be served.
        InputError: the file is not a taxonomy, or not what the rules need.
    """
    document = Document(path)
    name = sniff(document) if format == AUTO and not levels else format
    if name in _OWN and not cut and not levels:
        hierarchy = _OWN[name](document)
        return levels_as_they_are(hierarchy, taxonomy_of(hierarchy, str(path)))
    taxonomy = _read(document, name, levels)  # what was read to find out the format is not read again
    if taxonomy.format == level_columns.FORMAT and levels and not cut:
        cut = f"ranks:{','.join(levels)}"
    return even_levels(taxonomy, parents=parents, cut=cut, levels=levels)


def write_hierarchy(hierarchy: Hierarchy, path: str | Path, format: str = AUTO) -> None:  # noqa: A002
    """Write a hierarchy in one of :data:`FORMATS`, whole or not at all.

    Args:
        hierarchy: the classes.
        path: the file, or the folder, which must not hold anything yet.
        format: its format; ``auto``: by the name's end (.parquet, .json: hgld's own; .csv: an edge list).

    Raises:
        ConfigError: there is no such format, it is not written, or the folder is not empty.
        HierarchyError: the format has no place for such a hierarchy.
        StorageError: the disk is full or read-only.
    """
    file = Path(path)
    name = _BY_SUFFIX.get(file.suffix.lower(), "") if format == AUTO else format
    written = [known for known, facts in FORMATS.items() if facts.text or facts.fill or known in _OWN]
    if name not in written:
        raise ConfigError(
            f"{file}: "
            f"{f'the format {quoted(format)} is not written' if format != AUTO else 'its end names no format'}; "
            f"expected one of {', '.join(written)}."
        )
    if name == ranked_hierarchy.PARQUET:
        write_atomic(file, hierarchy.to_parquet)
    elif name == ranked_hierarchy.JSON:
        write_atomic(file, hierarchy.to_json)
    elif text := FORMATS[name].text:
        write_atomic(file, text(taxonomy_of(hierarchy)))
    elif fill := FORMATS[name].fill:
        if file.exists() and (not file.is_dir() or any(file.iterdir())):
            raise ConfigError(f"{file} is there already; name a new or empty folder.")
        write_folder(file, lambda folder: fill(taxonomy_of(hierarchy), folder))


_OWN = {
    ranked_hierarchy.PARQUET: ranked_hierarchy.read_hierarchy_parquet,
    ranked_hierarchy.JSON: ranked_hierarchy.read_hierarchy_json,
}
