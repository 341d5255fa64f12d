"""WordNet's database files (wndb(5WN)): ``data.noun`` with the synsets, ``index.noun`` with the senses of each word.

A synset's id is its part of speech and byte offset, ``n02084071``, as ImageNet writes it; its name is its first word.
Parents are its hypernyms, those of instances too.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from hgld.errors import HierarchyError, TableError
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder, short

FORMAT = "wordnet"
_HYPERNYMS = ("@", "@i")
_LINE = re.compile(rb"\d{8} \d\d [nvasr] [0-9a-f]{2} ", re.MULTILINE)
_DATA = re.compile(r"data\.(noun|verb)")
_LICENCE = "  1 Written by hgld in the layout of WordNet's database files.  \n"


def is_wordnet(document: Document) -> bool:
    """Tell whether the document is a folder with ``data.noun``, or a file of synsets."""
    if document.is_folder:
        return (document.path / "data.noun").is_file()
    lines = document.head.split(b"\n")
    first = next((line for line in lines if not line.startswith(b"  ")), b"")
    return _LINE.match(first) is not None


def read_wordnet(document: Document) -> Taxonomy:
    """Read the nouns of a database folder, or the synsets of one data file; the index beside it if there is one.

    Raises:
        TableError: a line is not a synset.
        HierarchyError: an offset is there twice, a hypernym is not there, or hypernyms form a cycle.
    """
    file = Document(document.path / "data.noun") if document.is_folder else document
    made = TaxonomyBuilder(str(file.path), FORMAT)
    for line, text in enumerate(file.text.split("\n"), 1):
        if text and not text.startswith("  "):
            _read_synset(made, text, line)
    index = file.path.with_name(f"index.{file.path.suffix[1:]}")
    has_index = _DATA.fullmatch(file.path.name) is not None and index.is_file()
    if has_index:
        _read_index(made, Document(index))
    return made.finish(declared=True, by_usage=has_index)


def _read_synset(made: TaxonomyBuilder, text: str, line: int) -> None:
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
        if symbol in _HYPERNYMS:
            made.link(synset, f"{part}{target}", line)


def _read_index(made: TaxonomyBuilder, document: Document) -> None:
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
        senses[fields[0]] = [f"{fields[1]}{offset}" for offset in offsets]
        for synset in senses[fields[0]]:
            if synset not in made:
                raise HierarchyError(
                    f"{document.path}, line {line:,}: {short(fields[0])} means {short(synset)}, which "
                    f"{made.source} does not have. Take both files of one release."
                )
    made.order_senses({word.replace("_", " "): synsets for word, synsets in senses.items()})


def write_wordnet(taxonomy: Taxonomy, folder: Path) -> None:
    """Write ``data.noun`` and ``index.noun`` into a folder, which exists.

    Offsets are the positions of the lines in bytes, as WordNet's own programs seek them. Ids and ranks are lost.

    Raises:
        HierarchyError: a name cannot be a word of WordNet, where spaces are underscores.
    """
    words = [_word(name, taxonomy.source) for name in taxonomy.names]
    pointers = list(_pointers(taxonomy))
    blank = ["0" * 8] * len(taxonomy)
    offsets, position = [], len(_LICENCE.encode())
    for place in range(len(taxonomy)):
        offsets.append(f"{position:08d}")
        position += len(_synset(place, words, pointers, blank).encode())
    if position >= 10**8:
        raise HierarchyError(f"{taxonomy.source} is too large for WordNet's format, whose offsets have 8 digits.")
    lines = [_synset(place, words, pointers, offsets) for place in range(len(taxonomy))]
    (folder / "data.noun").write_text(_LICENCE + "".join(lines), encoding="utf-8", newline="\n")
    senses: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        senses.setdefault(word.lower(), []).append(place)
    rows = [
        _index_line(word, places, sorted({symbol for p in places for symbol, _ in pointers[p]}), offsets)
        for word, places in sorted(senses.items())
    ]
    (folder / "index.noun").write_text(_LICENCE + "".join(rows), encoding="utf-8", newline="\n")


def _word(name: str, source: str) -> str:
    word = name.replace(" ", "_")
    if "_" in name or word.split() != [word] or "|" in word:
        raise HierarchyError(
            f"{source}: the name {short(name)} cannot be written as a word of WordNet, which has no blanks but "
            "spaces, no '_' and no '|'. Write another format."
        )
    return word


def _pointers(taxonomy: Taxonomy) -> Iterator[list[tuple[str, int]]]:
    for parents, children in zip(taxonomy.parents, taxonomy.children, strict=True):
        yield [("@", p) for p in parents] + [("~", p) for p in children]


def _synset(place: int, words: list[str], pointers: list[list[tuple[str, int]]], offsets: list[str]) -> str:
    led = "".join(f" {symbol} {offsets[target]} n 0000" for symbol, target in pointers[place])
    return f"{offsets[place]} 03 n 01 {words[place]} 0 {len(pointers[place]):03d}{led} | {words[place]}  \n"


def _index_line(word: str, places: list[int], symbols: list[str], offsets: list[str]) -> str:
    pointed = "".join(f" {symbol}" for symbol in symbols)
    senses = " ".join(offsets[p] for p in places)
    return f"{word} n {len(places)} {len(symbols)}{pointed} {len(places)} 0 {senses}  \n"
