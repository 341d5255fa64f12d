"""The formats of taxonomies: one registry, from which reading, ``--tree-format`` and the help follow.

A format is found out from the content, never from the file's name, and said.
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

from hgld.errors import ConfigError, HierarchyError, SchemaError, TableError, quoted
from hgld.files import parse_json, write_atomic
from hgld.hierarchy import FILE, Hierarchy
from hgld.tables import csv_text, decode_table, table_rows
from hgld.taxonomy import AUTO
from hgld.taxonomy.graph import MOST_NODES, MOST_STEPS, Taxonomy, TaxonomyBuilder, distinct_names, short
from hgld.taxonomy.levels import EvenLevels, ParentsRule, even_levels, levels_as_they_are

MOST_BYTES = 1 << 30
_HEAD = 1 << 16


class Document:
    """A file, or a folder, of unknown format; its bytes are bounded and read when they are asked for.

    Attributes:
        path: its path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise HierarchyError(f"{self.path} is not there; expected a file or folder with a taxonomy.")
        self.is_folder = self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB of the file."""
        return b"" if self.is_folder else self._bytes(_HEAD, whole=False)

    @cached_property
    def text(self) -> str:
        """The whole file as text."""
        return decode_table(self.path, self._bytes(MOST_BYTES))

    @cached_property
    def json(self) -> Any:
        """The file's JSON object or list; None if it does not begin as one."""
        if self.head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
            return None
        return parse_json(self._bytes(MOST_BYTES), str(self.path))

    @property
    def separator(self) -> str:
        """The character between the cells of a table: a tab if the first line has one, else a comma."""
        return "\t" if b"\t" in self.head.partition(b"\n")[0] else ","

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The cells of the first line of a table, () if it is none."""
        try:
            first = self.head.decode("utf-8-sig", errors="replace")
            row = next(csv.reader(io.StringIO(first, newline=""), delimiter=self.separator), [])
        except csv.Error:
            return ()
        return tuple(cell.strip() for cell in row)

    def rows(self, *, header: bool = True) -> Iterator[tuple[int, list[str]]]:
        """Yield the line in which each row of a table begins (from 1) and its cells; skip empty lines.

        Args:
            header: leave out the first row, and refuse rows that are not as long.
        """
        rows = table_rows(self.path, self.text, self.separator, len(self.columns) if header else None)
        yield from islice(rows, int(header), None)

    def select(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the line of each row and its stripped cells of these columns, ``""`` where the table lacks one."""
        for column in columns:
            if self.columns.count(column) > 1:
                raise TableError(f"{self.path} has the column {short(column)} twice; expected it once.")
        places = [self.columns.index(column) if column in self.columns else -1 for column in columns]
        for line, row in self.rows():
            yield line, [row[place].strip() if place >= 0 else "" for place in places]

    def missing_column(self, column: str, fix: str = "") -> TableError:
        """Return the error that says that a column is not there."""
        found = ", ".join(map(short, self.columns[:20]))
        return TableError(f"{self.path} lacks the column {short(column)}; found {found}. {fix}".rstrip())

    def _bytes(self, most: int, *, whole: bool = True) -> bytes:
        try:
            with open(self.path, "rb") as file:
                data = file.read(most + whole)
        except OSError as error:
            raise HierarchyError(
                f"{self.path} cannot be read ({error.strerror}); expected a file with a taxonomy."
            ) from error
        if len(data) > most:
            raise HierarchyError(f"{self.path} has more than {most >> 20:,} MiB; that is too large for a taxonomy.")
        return data


def _text(value: Any) -> str:
    """Return a text of JSON without blanks around it; empty for a value that is no text."""
    return value.strip() if isinstance(value, str) else ""


def _keys(document: Document) -> set[str]:
    """Return the keys of a JSON object; none for other documents."""
    return set(document.json) if isinstance(document.json, dict) else set()


# -- hgld's own files --------------------------------------------------------------------------------------------------


def _is_parquet(document: Document) -> bool:
    return (document.path / FILE).is_file() if document.is_folder else document.head.startswith(b"PAR1")


def taxonomy_of(hierarchy: Hierarchy, source: str = "hierarchy") -> Taxonomy:
    """Return a hierarchy's classes, finest level first, with their level as rank.

    An id is the name; if classes of several levels share it, the level is appended.
    """
    classes = [(level, name) for level, names in zip(hierarchy.levels, hierarchy.names, strict=True) for name in names]
    times = Counter(name for _, name in classes)
    ids = [f"{name} [{level}]" if times[name] > 1 else name for level, name in classes]
    if len(set(ids)) < len(ids):  # a class is named like another one's id
        ids, _ = distinct_names([name for _, name in classes], [f"{level} {i}" for i, (level, _) in enumerate(classes)])
    parents, first = list[tuple[int, ...]](), 0
    for c, names in enumerate(hierarchy.names):
        first += len(names)  # of the next level
        column = hierarchy.parents[c].tolist() if c < len(hierarchy.parents) else [-1] * len(names)
        parents += [(first + parent,) if parent >= 0 else () for parent in column]
    ranks, names = [level for level, _ in classes], [name for _, name in classes]
    return Taxonomy(tuple(ids), tuple(names), tuple(parents), tuple(ranks), source=source, format="hgld")


# -- tables ------------------------------------------------------------------------------------------------------------

_EDGES = ("child", "parent", "name", "rank")


def _read_edge_list(document: Document) -> Taxonomy:
    """Read a row per link, with name and rank of the child if there; without a header its two columns are the link.

    A row without a parent declares a class at the top.
    """
    made = TaxonomyBuilder(str(document.path), "edge-list")
    is_headed = {"child", "parent"} <= set(document.columns)
    for line, cells in document.select(_EDGES) if is_headed else document.rows(header=False):
        if not is_headed and len(cells) != 2:
            raise TableError(
                f"{document.path}, line {line:,}: {len(cells)} cells; expected two, child and parent, or a first line "
                "that names the columns."
            )
        child, parent, name, rank = (*map(str.strip, cells), *([""] * (4 - len(cells))))
        if parent:
            made.link(child, parent, line)
        elif child not in made:
            made.add(child, row=line)
        made.describe(child, name, rank)
    return made.finish()


def _read_paths(document: Document) -> Taxonomy:
    """Read a column ``path`` that leads from the top to the class of each row; ``name`` or ``label`` name the last.

    A class's id is its path. A path that is there twice has two names.
    """
    if "path" not in document.columns:
        raise document.missing_column("path")
    made = TaxonomyBuilder(str(document.path), "paths")
    declared: set[str] = set()
    for line, (path, name, label) in document.select(("path", "name", "label")):
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
    """Read the columns of these levels, finest first; all columns if none are named.

    A class is (level, name); it may have several parents at the next level. Empty cells are unknown: the class is put
    under the next level that is known.
    """
    chosen = tuple(levels) or document.columns
    missing = [level for level in chosen if level not in document.columns]
    if missing or not chosen:
        raise document.missing_column("".join(missing[:1]), "Name its levels, finest first: --levels A,B,C.")
    made = TaxonomyBuilder(str(document.path), "columns")
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


def _read_darwin_core(document: Document) -> Taxonomy:
    """Read taxa of GBIF and museums by their parent ids; synonyms (another accepted taxon) are further names of it."""
    made = TaxonomyBuilder(str(document.path), "darwin-core")
    columns = ("taxonID", "acceptedNameUsageID", "parentNameUsageID", "scientificName", "taxonRank", "vernacularName")
    synonyms: list[tuple[int, str, str]] = []
    for line, (taxon, accepted, parent, name, rank, common) in document.select(columns):
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
                f"{document.path}, line {line:,}: a synonym of {short(accepted)}, which the file does not have. Add "
                "it, or remove this row."
            )
        if name:
            made.call(name, accepted)
    made.count("synonyms (further names of other taxa)", len(synonyms))
    return made.finish(declared=True)


# -- JSON --------------------------------------------------------------------------------------------------------------


_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")  # above the species, coarsest first


def _entries(document: Document) -> list[Any]:
    """Return the categories of a document: a list, or an object with one under "categories"; [] if it has none."""
    data = document.json.get("categories") if isinstance(document.json, dict) else document.json
    return data if isinstance(data, list) and data and isinstance(data[0], dict) else []


def _read_categories(document: Document) -> Taxonomy:
    """Read iNaturalist's categories, which name a class per rank, or COCO's, which have a supercategory.

    iNaturalist's supercategories lie across the ranks and are left out.
    """
    entries = _entries(document)
    if not entries:
        raise SchemaError(f"{document.path}: expected a JSON list of categories, or an object that has one.")
    made = TaxonomyBuilder(str(document.path), "categories", "entry")
    is_ranked = any(rank in entries[0] for rank in _RANKS)
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int) or not _text(entry.get("name")):
            raise SchemaError(
                f"{document.path}: category {number:,} is {short(str(entry))}; expected an object with a number id and "
                "a name."
            )
        ranks = _RANKS if is_ranked else ("supercategory",)
        above = made.link_chain([(rank, _text(entry.get(rank))) for rank in ranks], number)
        leaf = f"id {entry['id']}"
        made.add(leaf, entry["name"], "species" if is_ranked else "category", number)
        if above:
            made.link(leaf, above, number)
        if common := _text(entry.get("common_name")):
            made.call(common, leaf)
        made.count("supercategories (across the ranks)", int(is_ranked and bool(_text(entry.get("supercategory")))))
    return made.finish()


def _read_open_images(document: Document) -> Taxonomy:
    """Read Open Images' nested objects, with the names of ``*class-descriptions*.csv`` in the file's folder.

    A class may have several parents. Parts (``Part``) are no subclasses.
    """
    made = TaxonomyBuilder(str(document.path), "open-images", "entry")
    names: dict[str, str] = {}
    for table in sorted(document.path.parent.glob("*class-descriptions*.csv")):
        for _, row in Document(table).rows(header=False):
            if len(row) >= 2 and row[0] != "LabelName":
                names.setdefault(row[0].strip(), row[1].strip())
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
            made.add(label, names.get(label, ""), row=entries)
        if parent:
            made.link(label, parent, entries)
        waiting += [(sub, label, depth + 1) for sub in reversed(below)]
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
    """Read WordNet's database files (wndb(5WN)): the synsets of ``data.noun``, the senses of ``index.noun`` beside it.

    A synset's id is its part of speech and byte offset, ``n02084071``, as ImageNet writes it; its name is its first
    word. Parents are its hypernyms, those of instances too.
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
    """Read the senses of each word in their order, the most usual first."""
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
                f"{document.path}, line {line:,}: {short(text)} is not a word's senses; expected WordNet's index."
            ) from error
        meant = [f"{fields[1]}{offset}" for offset in offsets]
        if lost := [synset for synset in meant if synset not in made]:
            raise HierarchyError(
                f"{document.path}, line {line:,}: {short(fields[0])} means {short(lost[0])}, which "
                f"{made.source} does not have. Take both files of one release."
            )
        senses[fields[0].replace("_", " ")] = meant
    made.order_senses(senses)


# -- folders -----------------------------------------------------------------------------------------------------------


def _read_folders(document: Document) -> Taxonomy:
    """Read the folders below a folder; hidden ones and links to folders are left out and counted."""
    if not document.is_folder:
        raise HierarchyError(f"{document.path} is a file; expected a folder whose subfolders are classes.")
    made = TaxonomyBuilder(str(document.path), "folders", "folder")

    def refuse(error: OSError) -> None:
        raise HierarchyError(f"{error.filename} cannot be read ({error.strerror}).") from error

    for place, below, _ in os.walk(document.path, onerror=refuse):
        parts = Path(place).relative_to(document.path).parts
        if len(parts) > MOST_STEPS:
            raise HierarchyError(f"{place} lies deeper than {MOST_STEPS:,} folders; that is no taxonomy.")
        links = [name for name in below if Path(place, name).is_symlink()]
        hidden = [name for name in below if name.startswith(".") and name not in links]
        made.count("links to folders", len(links))
        made.count("hidden folders", len(hidden))
        below[:] = sorted(set(below) - {*links, *hidden})  # what os.walk goes into
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
        read: makes the taxonomy of a document.
        fits: tells whether a document is of this format.
    """

    read: Callable[[Document], Taxonomy]
    fits: Callable[[Document], bool]


FORMATS: dict[str, TaxonomyFormat] = {
    "hgld": TaxonomyFormat(lambda d: taxonomy_of(Hierarchy.read(d.path), str(d.path)), _is_parquet),
    "wordnet": TaxonomyFormat(_read_wordnet, _is_wordnet),
    "open-images": TaxonomyFormat(_read_open_images, lambda d: "LabelName" in _keys(d)),
    "categories": TaxonomyFormat(
        _read_categories, lambda d: any({*_RANKS, "supercategory"} & set(entry) for entry in _entries(d)[:1])
    ),
    "darwin-core": TaxonomyFormat(_read_darwin_core, lambda d: {"taxonID", "parentNameUsageID"} <= set(d.columns)),
    "edge-list": TaxonomyFormat(_read_edge_list, lambda d: {"child", "parent"} <= set(d.columns)),
    "paths": TaxonomyFormat(_read_paths, lambda d: "path" in d.columns),
    "columns": TaxonomyFormat(_read_level_columns, lambda d: False),  # any table might be one: its levels are named
    "folders": TaxonomyFormat(_read_folders, lambda d: d.is_folder),
}
"""The formats by name, in the order in which a document is tried; ``hgld.taxonomy.FORMAT_LINES`` describes each."""


def sniff(document: Document) -> str:
    """Return the name of a document's format.

    Raises:
        SchemaError: it is of none.
        InputError: it cannot be read.
    """
    for name, known in FORMATS.items():
        if known.fits(document):
            return name
    found = "a file of unknown content"
    if document.json is not None:
        shown = ", ".join(map(short, list(document.json)[:10])) if isinstance(document.json, dict) else ""
        found = f"JSON with the keys {shown}" if shown else "JSON of an unknown form"
    elif len(document.columns) > 1:
        found = f"a table with the columns {', '.join(map(short, document.columns[:10]))}"
    raise SchemaError(
        f"{document.path}: {found}; expected a taxonomy. Name its format ({', '.join(FORMATS)}), or the columns that "
        "are its levels, finest first: --levels A,B,C."
    )


def read_taxonomy(path: str | Path, format: str = AUTO, *, columns: Sequence[str] = ()) -> Taxonomy:  # noqa: A002
    """Read a taxonomy in any of :data:`FORMATS`.

    Args:
        path: the file or folder.
        format: its format; ``auto``: detected from the content.
        columns: the columns of a table that are its levels, finest first; they make ``auto`` take a table for one.

    Raises:
        ConfigError: there is no such format.
        InputError: the file is not a taxonomy of that format.
    """
    document = Document(path)
    return _read(document, _format_of(document, format, columns), columns)


def _format_of(document: Document, format: str, columns: Sequence[str]) -> str:  # noqa: A002
    if format != AUTO and format not in FORMATS:
        raise ConfigError(f"there is no format {quoted(format)}; expected {AUTO} or one of {', '.join(FORMATS)}.")
    if format != AUTO:
        return format
    return "columns" if columns and set(columns) <= set(document.columns) else sniff(document)


def _read(document: Document, format: str, columns: Sequence[str]) -> Taxonomy:  # noqa: A002
    return _read_level_columns(document, columns) if format == "columns" else FORMATS[format].read(document)


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
        format: its format; ``auto``: detected from the content.
        parents: rule for classes under several parents.
        cut: rule for uneven depth.
        levels: names of the levels, finest first; of a table with these columns, the columns.

    Raises:
        ConfigError: the options cannot be served.
        InputError: the file is not a taxonomy, or not what the rules need.
    """
    document = Document(path)
    name = _format_of(document, format, levels)
    if name == "hgld" and not cut and not levels:
        hierarchy = Hierarchy.read(path)
        return levels_as_they_are(hierarchy, taxonomy_of(hierarchy, str(path)))
    if name == "columns" and levels and not cut:
        cut = f"ranks:{','.join(levels)}"
    return even_levels(_read(document, name, levels), parents=parents, cut=cut, levels=levels)


def write_edge_list(hierarchy: Hierarchy, path: str | Path) -> None:
    """Write a hierarchy as an edge list with the columns child, parent, name and rank, whole or not at all.

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
