"""Detection of English names: English rules (singular forms, articles, head nouns) apply only to them.

A stated language decides: the language of the name, else the language of the whole list. Otherwise, a name is evidently
English if it has Latin letters without accents, a word of ``english_words.txt`` and no function word of another
language (``foreign_words.txt``). These English words are rare in other languages. If at least a fifth of the names in
Latin letters are evidently English, these names count as English. A name without accents and foreign words then counts
as English too if its last word is in one of these names: "afghan restaurant" beside "seafood restaurant". All other
names stay unchanged, such as "platanoides" and "Brücke".
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hgld.tables import read_parquet

WORDS = Path(__file__).with_name("english_words.txt")
LEAST_SHARE = 0.2
_WORD = re.compile(r"[^\W\d_]+")
FOREIGN_WORDS = Path(__file__).with_name("foreign_words.txt")


def script_of(text: str) -> str:
    """Return the script of most letters of a text, in lower case; empty if the text has no letter.

    Chinese, Japanese and Korean letters are one script, ``cjk``.

    >>> [script_of(text) for text in ("Brücke", "Замок", "大阪城", "ラーメン", "قلعة", "747")]
    ['latin', 'cyrillic', 'cjk', 'cjk', 'arabic', '']
    """
    counts: dict[str, int] = {}
    for letter in text:
        if letter.isalpha():
            script = _script(letter)
            counts[script] = counts.get(script, 0) + 1
    return max(counts, key=lambda script: (counts[script], script), default="")


@cache
def _script(letter: str) -> str:
    script = unicodedata.name(letter, "other").split(" ", 1)[0].split("-", 1)[0].lower()
    return "cjk" if script in ("cjk", "hiragana", "katakana", "hangul", "halfwidth", "ideographic") else script


def common_words() -> frozenset[str]:
    """Return the words that show that a name is English."""
    return _words(WORDS)


@cache
def _words(file: Path) -> frozenset[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def is_english(language: str) -> bool:
    """Tell whether a language code is English: ``en``, ``en-GB``, ``eng``."""
    return re.split("[-_]", language.lower(), maxsplit=1)[0] in ("en", "eng")


def has_english_words(name: str) -> bool:
    """Tell whether the words of a name show that it is English.

    >>> [has_english_words(name) for name in ("Norway maples", "Acer platanoides", "Haus am See", "lake")]
    [True, False, False, True]
    """
    common = common_words()
    return any(word in common or (word.endswith("s") and word[:-1] in common) for word in _plain_words(name))


def _plain_words(name: str) -> list[str]:
    """Return the words of a name in lower case; no words if it has accents or a function word of another language."""
    words = [word.lower() for word in _WORD.findall(name)]
    return words if name.isascii() and not _words(FOREIGN_WORDS).intersection(words) else []


@dataclass(frozen=True)
class English:
    """A function that tells whether a name is English.

    Attributes:
        known: whether a name is English, by name; only names with a known language.
        others: whether all other names are English; None: the words of each name decide.
    """

    known: Mapping[str, bool] = field(default_factory=dict)
    others: bool | None = True

    def __call__(self, name: str) -> bool:
        found = self.known.get(name)
        if found is None:
            found = has_english_words(name) if self.others is None else self.others
        return found


EVERY = English()
"""All names are English, as landmarks' names from Wikidata are."""


def english_names(names: Sequence[str], languages: Sequence[str | None] = (), whole: str = "") -> English:
    """Find out which names of a list are English.

    Args:
        names: distinct names.
        languages: stated language of each name, if any.
        whole: language of all names without a stated language.
    """
    said = dict(zip(names, languages, strict=False))
    told = {name: is_english(language) for name in names if (language := said.get(name) or whole)}
    silent = [name for name in names if name not in told]
    latin = [name for name in silent if script_of(name) == "latin"]
    evident = {name for name in latin if has_english_words(name)}
    enough = bool(evident) and len(evident) >= LEAST_SHARE * len(latin)
    theirs = {word for name in evident for word in _plain_words(name)}
    found = evident | {name for name in latin if (words := _plain_words(name)) and words[-1] in theirs}
    known = {**told, **{name: enough and name in found for name in silent}}
    return English(known, is_english(whole) if whole else None if enough else False)


def read_english(names: Path, domain: str) -> English:
    """Return which names in clean's ``names.parquet`` are English; in the domain landmarks, all are."""
    if domain == "landmarks":
        return EVERY
    known = dict(read_parquet(names, columns=["name", "english"]).iter_rows())
    return English(known, None if any(known.values()) else False)
