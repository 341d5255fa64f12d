"""Readers of taxonomies in many formats, and the registry of these formats.

The format is detected from the content, never from the file's name.
"""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from hgld.errors import ConfigError, HierarchyError, SchemaError, TableError, excerpt, quoted
from hgld.files import parse_json, write_atomic
from hgld.hierarchy import FILE, Hierarchy
from hgld.tables import csv_text, decode_table, table_rows
from hgld.taxonomy import AUTO
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder, distinct_names, short
from hgld.taxonomy.levels import EvenLevels, ParentsRule, even_levels, levels_as_they_are

MOST_BYTES = 1 << 30
_HEAD = 1 << 16


class Document:
    """A file or folder of unknown format, whose content is read on demand and up to a limit.

    Attributes:
        path: path of the file or folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise HierarchyError(f"{self.path} does not exist; expected a file or folder with a taxonomy.")
        self.is_folder = self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB of the file; empty for a folder."""
        return b"" if self.is_folder else self._read(_HEAD)[:_HEAD]

    @cached_property
    def text(self) -> str:
        """The whole file as text."""
        return decode_table(self.path, self._read_whole())

    @cached_property
    def json(self) -> Any:
        """The file's JSON object or list; None if the file does not begin like JSON."""
        is_json = self.head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
        return parse_json(self._read_whole(), str(self.path)) if is_json else None

    @property
    def separator(self) -> str:
        """The character between the cells of a table: a tab if the first line has one, else a comma."""
        return "\t" if b"\t" in self.head.partition(b"\n")[0] else ","

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The cells of a table's first line; empty if the file is not a table."""
        try:
            first = io.StringIO(self.head.decode("utf-8-sig", errors="replace"), newline="")
            return tuple(cell.strip() for cell in next(csv.reader(first, delimiter=self.separator), []))
        except csv.Error:
            return ()

    def rows(self, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number of each row and its cells in these columns; missing optional columns are empty.

        Raises:
            TableError: a required column is missing, a column occurs twice, or a row has another number of cells than
                the header.
        """
        columns = (*required, *optional)
        for column in columns:
            times = self.columns.count(column)
            if times > 1 or (times == 0 and column in required):
                raise TableError(
                    f"{self.path} {'has' if times else 'lacks'} the column {short(column)}{' twice' if times else ''}; "
                    f"found {excerpt(', '.join(map(short, self.columns[:20])))}. Name its levels with --levels "
                    "A,B,C (finest first), or another --format."
                )
        places = [self.columns.index(column) if column in self.columns else -1 for column in columns]
        for line, row in islice(table_rows(self.path, self.text, self.separator, len(self.columns)), 1, None):
            yield line, [row[place].strip() if place >= 0 else "" for place in places]

    def _read_whole(self) -> bytes:
        data = self._read(MOST_BYTES)
        if len(data) > MOST_BYTES:
            raise HierarchyError(f"{self.path} has more than {MOST_BYTES >> 20:,} MiB; too large for a taxonomy.")
        return data

    def _read(self, most: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                return file.read(most + 1)
        except OSError as error:
            raise HierarchyError(
                f"{self.path} cannot be read ({error.strerror}); expected a file with a taxonomy."
            ) from error


def _strip_text(value: Any) -> str:
    """Return a JSON text without blanks around it; an empty text for any other value."""
    return value.strip() if isinstance(value, str) else ""


# -- hgld's own files --------------------------------------------------------------------------------------------------


def _is_parquet(document: Document) -> bool:
    return (document.path / FILE).is_file() if document.is_folder else document.head.startswith(b"PAR1")


def taxonomy_of(hierarchy: Hierarchy, source: str = "hierarchy") -> Taxonomy:
    """Return a hierarchy as a taxonomy: its classes, finest level first, with their level as rank.

    The id of a class is its name. If classes of several levels share a name, the level is appended.
    """
    classes = [(level, name) for level, names in zip(hierarchy.levels, hierarchy.names, strict=True) for name in names]
    times = Counter(name for _, name in classes)
    ids = [f"{name} [{level}]" if times[name] > 1 else name for level, name in classes]
    if len(set(ids)) < len(ids):  # the name of one class equals the id of another
        ids, _ = distinct_names([name for _, name in classes], [f"{level} {i}" for i, (level, _) in enumerate(classes)])
    parents, first = list[tuple[int, ...]](), 0
    for c, names in enumerate(hierarchy.names):
        first += len(names)  # index of the first class of the next level
        column = hierarchy.parents[c].tolist() if c < len(hierarchy.parents) else [-1] * len(names)
        parents += [(first + parent,) if parent >= 0 else () for parent in column]
    ranks, names = [level for level, _ in classes], [name for _, name in classes]
    return Taxonomy(tuple(ids), tuple(names), tuple(parents), tuple(ranks), source=source, format="hgld")


# -- tables ------------------------------------------------------------------------------------------------------------

_EDGES = ("child", "parent", "name", "rank")
_TAXA = ("taxonID", "parentNameUsageID")


def _read_edge_list(document: Document) -> Taxonomy:
    """Read one link per row, with the child's name and rank if the table has them.

    A row without a parent declares a class at the top.
    """
    made = TaxonomyBuilder(str(document.path), "edge-list")
    for line, (child, parent, name, rank) in document.rows(_EDGES[:2], _EDGES[2:]):
        if parent:
            made.link(child, parent, line)
        elif child not in made:
            made.add(child, row=line)
        made.describe(child, name, rank)
    return made.finish()


def _read_paths(document: Document) -> Taxonomy:
    """Read a column ``path``, which leads from the top to a class; ``name`` or ``label`` is the name of the class.

    The id of a class is its path. If several rows have the same path, their names are all names of the class.
    """
    made = TaxonomyBuilder(str(document.path), "paths")
    declared: set[str] = set()
    for line, (path, name, label) in document.rows(["path"], ("name", "label")):
        parts = [part.strip() for part in path.split(">")]
        if not all(parts):
            raise TableError(
                f"{document.path}, line {line:,}: the path {short(path)} has an empty part; expected parts between '>'."
            )
        here = made.link_chain([("", part) for part in parts], line)
        if here not in declared:
            made.describe(here, name or label)
        else:
            made.count("repeated paths (their names are further names)")
            if name or label:
                made.call(name or label, here)
        declared.add(here)
    return made.finish()


def _read_level_columns(document: Document, levels: Sequence[str] = ()) -> Taxonomy:
    """Read the columns of these levels, finest first; all columns by default.

    A class is a pair of level and name, and may have several parents. If a cell is empty, the class is unknown. The
    class below it then becomes a child of the next known level.
    """
    made = TaxonomyBuilder(str(document.path), "columns")
    chosen = tuple(levels) or document.columns
    for line, cells in document.rows(chosen):
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


def _read_darwin_core(document: Document) -> Taxonomy:
    """Read taxa of GBIF and museums with their parent ids; a synonym becomes a further name of its accepted taxon."""
    made = TaxonomyBuilder(str(document.path), "darwin-core")
    optional = ("acceptedNameUsageID", "scientificName", "taxonRank", "vernacularName")
    synonyms: list[tuple[int, str, str]] = []
    for line, (taxon, parent, accepted, name, rank, common) in document.rows(_TAXA, optional):
        if accepted and accepted != taxon:
            synonyms.append((line, accepted, name))
            continue
        made.add(taxon, name, rank, line)
        if parent:
            made.link(taxon, parent, line)
        if common:
            made.call(common, taxon)
    for line, accepted, name in synonyms:
        if accepted not in made:
            raise HierarchyError(
                f"{document.path}, line {line:,}: a synonym of {short(accepted)}, which is not in the file. Add "
                "it, or remove this row."
            )
        if name:
            made.call(name, accepted)
    made.count("synonyms (further names of other taxa)", len(synonyms))
    return made.finish(declared=True)


# -- JSON --------------------------------------------------------------------------------------------------------------


_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")  # the ranks above species, coarsest first


def _entries(document: Document) -> list[Any]:
    """Return a document's list of categories, the whole JSON or the value of "categories"; [] if there is no list."""
    data = document.json.get("categories") if isinstance(document.json, dict) else document.json
    return data if isinstance(data, list) and data and isinstance(data[0], dict) else []


def _read_categories(document: Document) -> Taxonomy:
    """Read iNaturalist's categories, which state a class per rank, or COCO's categories, which have a supercategory.

    iNaturalist's supercategories do not follow the ranks, so this reader excludes and counts them.
    """
    entries = _entries(document)
    if not entries:
        raise SchemaError(f"{document.path}: expected a JSON list of categories, or an object that has one.")
    made = TaxonomyBuilder(str(document.path), "categories", "entry")
    is_ranked = any(rank in entries[0] for rank in _RANKS)
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int) or not _strip_text(entry.get("name")):
            raise SchemaError(
                f"{document.path}: category {number:,} is {short(str(entry))}; expected an object with a number id and "
                "a name."
            )
        ranks = _RANKS if is_ranked else ("supercategory",)
        above = made.link_chain([(rank, _strip_text(entry.get(rank))) for rank in ranks], number)
        leaf = f"id {entry['id']}"
        made.add(leaf, entry["name"], "species" if is_ranked else "category", number)
        if above:
            made.link(leaf, above, number)
        if common := _strip_text(entry.get("common_name")):
            made.call(common, leaf)
        made.count("supercategories (across the ranks)", int(is_ranked and "supercategory" in entry))
    return made.finish()


def _read_open_images(document: Document) -> Taxonomy:
    """Read Open Images' nested objects, with the names of ``*class-descriptions*.csv`` in the file's folder.

    A class may have several parents. Entries under ``Part`` are parts, not subclasses, so they are ignored.
    """
    made = TaxonomyBuilder(str(document.path), "open-images", "entry")
    names: dict[str, str] = {}
    for table in sorted(document.path.parent.glob("*class-descriptions*.csv")):
        for _, row in table_rows(table, Document(table).text):
            if len(row) >= 2 and row[0] != "LabelName":
                names.setdefault(row[0].strip(), row[1].strip())
    waiting: list[tuple[Any, str]] = [(document.json, "")]
    entries = 0
    while waiting:
        entry, parent = waiting.pop()
        entries += 1
        label = entry.get("LabelName") if isinstance(entry, dict) else None
        below = entry.get("Subcategory", []) if isinstance(entry, dict) else None
        if not isinstance(label, str) or not label or not isinstance(below, list):
            raise SchemaError(
                f"{made.source}: entry {entries:,}{f' under {short(parent)}' if parent else ''} is "
                f"{short(str(entry))}; expected an object with LabelName and, if it has any, a list Subcategory."
            )
        made.count("parts (not subclasses)", len(entry["Part"]) if isinstance(entry.get("Part"), list) else 0)
        if label not in made:
            made.add(label, names.get(label, ""), row=entries)
        if parent:
            made.link(label, parent, entries)
        waiting += [(sub, label) for sub in reversed(below)]
    if names:
        made.count("classes without a description", sum(label not in names for label in made.ids))
    return made.finish()


# -- WordNet -----------------------------------------------------------------------------------------------------------

_SYNSET = re.compile(rb"\d{8} \d\d [nvasr] [0-9a-f]{2} ")


def _is_wordnet(document: Document) -> bool:
    if document.is_folder:
        return (document.path / "data.noun").is_file()
    return _SYNSET.match(next((line for line in document.head.split(b"\n") if line[:2] != b"  "), b"")) is not None


def _read_wordnet(document: Document) -> Taxonomy:
    """Read WordNet's database files (wndb(5WN)): the synsets in ``data.noun`` and the senses in ``index.noun``.

    The id of a synset is its part of speech and byte offset, as in ImageNet: ``n02084071``. Its name is its first word.
    Its parents are its hypernyms or, for an instance, the classes of the instance.
    """
    file = Document(document.path / "data.noun") if document.is_folder else document
    made = TaxonomyBuilder(str(file.path), "wordnet")
    for line, text in enumerate(file.text.split("\n"), 1):
        if not text or text.startswith("  "):
            continue
        fields = text.partition("|")[0].split()
        try:
            offset, _, kind, count = fields[:4]
            start = 4 + 2 * int(count, 16)
            words, end = fields[4:start:2], start + 1 + 4 * int(fields[start])
            if not words or len(offset) != 8 or not offset.isdigit() or not start < end <= len(fields):
                raise ValueError
            pointers = [fields[p : p + 4] for p in range(start + 1, end, 4)]
        except (ValueError, IndexError) as error:
            raise TableError(
                f"{made.source}, line {line:,}: {short(text)} is not a synset; expected offset, file number, part of "
                "speech, words and pointers, as in WordNet's data.noun."
            ) from error
        synset = f"{kind}{offset}"
        made.add(synset, words[0].replace("_", " "), row=line)
        for word in words:
            made.call(word.replace("_", " "), synset)
        for symbol, target, part, _ in pointers:
            if symbol in ("@", "@i"):
                made.link(synset, f"{part}{target}", line)
    index = file.path.with_name(f"index.{file.path.suffix[1:]}")
    has_index = file.path.name in ("data.noun", "data.verb") and index.is_file()
    if has_index:
        _read_senses(made, Document(index))
    return made.finish(declared=True, by_usage=has_index)


def _read_senses(made: TaxonomyBuilder, document: Document) -> None:
    """Read the senses of each word, the most frequent first."""
    senses: dict[str, list[str]] = {}
    for line, text in enumerate(document.text.split("\n"), 1):
        if not text.strip() or text.startswith("  "):
            continue
        fields = text.split()
        try:
            synsets = int(fields[2])
            offsets = fields[6 + int(fields[3]) :]
            if not synsets or len(offsets) != synsets:
                raise ValueError
        except (ValueError, IndexError) as error:
            raise TableError(
                f"{document.path}, line {line:,}: {short(text)} is not an entry of WordNet's index; expected a word, "
                "its part of speech, its number of synsets, ..., and the synsets' offsets."
            ) from error
        meant = [f"{fields[1]}{offset}" for offset in offsets]
        if lost := [synset for synset in meant if synset not in made]:
            raise HierarchyError(
                f"{document.path}, line {line:,}: {short(fields[0])} means {short(lost[0])}, which "
                f"{made.source} does not have. Use both files of one release."
            )
        senses[fields[0].replace("_", " ")] = meant
    made.order_senses(senses)


# -- folders -----------------------------------------------------------------------------------------------------------


def _read_folders(document: Document) -> Taxonomy:
    """Read the folders below a folder; exclude and count hidden folders and links to folders."""
    if not document.is_folder:
        raise HierarchyError(f"{document.path} is a file; expected a folder whose subfolders are classes.")
    made = TaxonomyBuilder(str(document.path), "folders", "folder")

    def refuse(error: OSError) -> None:
        raise HierarchyError(f"{error.filename} cannot be read ({error.strerror}).") from error

    for place, below, _ in os.walk(document.path, onerror=refuse):
        parts = Path(place).relative_to(document.path).parts
        links = [name for name in below if Path(place, name).is_symlink()]
        hidden = [name for name in below if name.startswith(".") and name not in links]
        made.count("links to folders", len(links))
        made.count("hidden folders", len(hidden))
        below[:] = sorted(set(below) - {*links, *hidden})  # os.walk then enters only these folders
        for name in below:
            here = "/".join((*parts, name))
            made.add(here, name, row=len(made) + 1)
            if parts:
                made.link(here, "/".join(parts), len(made))
    return made.finish()


# -- the registry ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaxonomyFormat:
    """A format of taxonomies.

    Attributes:
        read: function that reads the taxonomy of a document.
        fits: function that tells whether a document has this format.
    """

    read: Callable[[Document], Taxonomy]
    fits: Callable[[Document], bool]


FORMATS: dict[str, TaxonomyFormat] = {
    "hgld": TaxonomyFormat(lambda d: taxonomy_of(Hierarchy.read(d.path), str(d.path)), _is_parquet),
    "wordnet": TaxonomyFormat(_read_wordnet, _is_wordnet),
    "open-images": TaxonomyFormat(_read_open_images, lambda d: isinstance(d.json, dict) and "LabelName" in d.json),
    "categories": TaxonomyFormat(
        _read_categories, lambda d: any({*_RANKS, "supercategory"} & set(entry) for entry in _entries(d)[:1])
    ),
    "darwin-core": TaxonomyFormat(_read_darwin_core, lambda d: set(_TAXA) <= set(d.columns)),
    "edge-list": TaxonomyFormat(_read_edge_list, lambda d: set(_EDGES[:2]) <= set(d.columns)),
    "paths": TaxonomyFormat(_read_paths, lambda d: "path" in d.columns),
    # Any table has columns, so the caller must name the levels.
    "columns": TaxonomyFormat(_read_level_columns, lambda d: False),
    "folders": TaxonomyFormat(_read_folders, lambda d: d.is_folder),
}
"""The formats by name, in the order in which detection tries them; ``hgld.taxonomy.FORMAT_LINES`` describes each."""


def sniff(document: Document) -> str:
    """Return the name of a document's format.

    Raises:
        SchemaError: the document has none of the formats.
        InputError: the document cannot be read.
    """
    for name, known in FORMATS.items():
        if known.fits(document):
            return name
    found = "a file of unknown content"
    if document.json is not None:
        found = "JSON of an unknown form"
        if isinstance(document.json, dict) and document.json:
            found = f"JSON with the keys {', '.join(map(short, list(document.json)[:10]))}"
    elif len(document.columns) > 1:
        found = f"a table with the columns {', '.join(map(short, document.columns[:10]))}"
    raise SchemaError(
        f"{document.path}: {found}; expected a taxonomy. Give its format ({', '.join(FORMATS)}), or the columns that "
        "are its levels, finest first: --levels A,B,C."
    )


def read_taxonomy(path: str | Path, format: str = AUTO, *, columns: Sequence[str] = ()) -> Taxonomy:  # noqa: A002
    """Read a taxonomy in any of :data:`FORMATS`.

    Args:
        path: the file or folder.
        format: format of the taxonomy; ``auto``: detected from the content.
        columns: the columns of a table that are its levels, finest first. If a table has all of them, ``auto`` means
            ``columns``.

    Raises:
        ConfigError: there is no such format.
        InputError: the file is not a taxonomy of that format.
    """
    if format != AUTO and format not in FORMATS:
        raise ConfigError(f"there is no format {quoted(format)}; expected {AUTO} or one of {', '.join(FORMATS)}.")
    document = Document(path)
    if format == AUTO:
        format = "columns" if columns and set(columns) <= set(document.columns) else sniff(document)  # noqa: A001
    return _read_level_columns(document, columns) if format == "columns" else FORMATS[format].read(document)


def read_levels(
    path: str | Path,
    format: str = AUTO,  # noqa: A002
    *,
    parents: ParentsRule = "refuse",
    cut: str = "",
    levels: Sequence[str] = (),
) -> EvenLevels:
    """Read a taxonomy and cut it into even levels (:func:`hgld.taxonomy.levels.even_levels`).

    Without rules, a hierarchy that hgld wrote keeps its class ids.

    Args:
        path: the file or folder.
        format: format of the taxonomy; ``auto``: detected from the content.
        parents: rule for classes with several parents.
        cut: rule for uneven depth.
        levels: names of the levels, finest first. If a table has columns of these names, they are the levels.

    Raises:
        ConfigError: a rule is invalid, or the number of names differs from the number of levels.
        InputError: the file is not a taxonomy, or the rules cannot be applied to it.
    """
    taxonomy = read_taxonomy(path, format, columns=levels)
    if taxonomy.format == "hgld" and not cut and not levels:
        return levels_as_they_are(Hierarchy.read(path), taxonomy)
    if taxonomy.format == "columns" and levels and not cut:
        cut = f"ranks:{','.join(levels)}"
    return even_levels(taxonomy, parents=parents, cut=cut, levels=levels)


def write_edge_list(hierarchy: Hierarchy, path: str | Path) -> None:
    """Write a hierarchy as an edge list with the columns child, parent, name and rank.

    Raises:
        StorageError: the disk is full or read-only.
    """
    taxonomy = taxonomy_of(hierarchy)
    rows = (
        (child, taxonomy.ids[parents[0]] if parents else "", name, rank or "")
        for child, parents, name, rank in zip(
            taxonomy.ids, taxonomy.parents, taxonomy.names, taxonomy.ranks, strict=True
        )
    )
    write_atomic(Path(path), csv_text([_EDGES, *rows]))
