"""Parser of short English noun phrases, which finds the head noun: the kind of thing that a name states.

Class names are noun phrases. In English the head noun comes last, before any preposition: a "Washington state park" is
a park, and an "unincorporated community in the United States" is a community. The grammar follows Huddleston and
Pullum, The Cambridge Grammar of the English Language, ch. 5, with closed classes of words. Two classes of nouns cannot
be heads alone:

* *general* nouns (building, site, area, house ...) say little by themselves, so the head includes the word before them:
  "Catholic church building" -> "church building". If there is no such word, the head includes the "of" phrase: "place
  of worship".
* *transparent* nouns (group, section ...) name an amount of the thing after "of", which is the head: "group of lakes"
  -> "lake".

``languages.py`` decides which names are English.
"""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import yaml

WORDS = Path(__file__).with_name("closed_words.yaml")
_CLASSES = {name: words.split() for name, words in yaml.safe_load(WORDS.read_text(encoding="utf-8")).items()}
GENERAL_NOUNS = frozenset(_CLASSES["general_nouns"])
TRANSPARENT_NOUNS = frozenset(_CLASSES["transparent_nouns"])
_PREPOSITIONS, _DETERMINERS = frozenset(_CLASSES["prepositions"]), frozenset(_CLASSES["determiners"])
_IRREGULAR_PLURALS = dict(pair.split(":") for pair in _CLASSES["irregular_plurals"])
_PARTICIPLE = re.compile(r"(?:[^e]ed|built|known|made)$")
_NOT_PARTICIPLE = re.compile(r"(?:bed|shed|sled)$")

_SAME_IN_PLURAL = re.compile(
    r"(?:works|barracks|headquarters|headwaters|narrows|rapids|series|species|sports|aircraft|gallows|tennis|news|means"
    r"|^(?:alps|atlas|canvas|chaos|cosmos|falls|gas|lens|pancreas|physics))$"
)
_PLURAL_ENDINGS = (  # the first pattern that matches applies; the text of its parenthesis is removed
    (re.compile(r"..(ies)$"), "y"),  # cemeteries
    (re.compile(r"(?:ss|sh|ch|x|zz|o|[^aeo]us)(es)$"), ""),  # churches, buses; not houses
    (re.compile(r"eau(s)$"), ""),  # plateaus
    (re.compile(r"(?:ss|us|is)()$"), ""),  # glass, campus, basis stay
    (re.compile(r"..(s)$"), ""),  # lakes
)

_ASIDES = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_BREAKS = re.compile(r"[,;/()\[\]|]")
_WORD = re.compile(r"[^\W_]+(?:['’.&‐‑-][^\W_]+)*")
_DESIGNATOR = re.compile(r"^(?:[\d.-]+|[a-z])$")


@dataclass(frozen=True)
class NounPhrase:
    """The parts of a name, every word in lower case and singular.

    Attributes:
        head: the noun that states the kind.
        modifiers: the words before the head, in order.
        complement: the content words after the head.
    """

    head: str
    modifiers: tuple[str, ...]
    complement: tuple[str, ...]


def head_noun(name: str) -> str:
    """Return the head of a short English noun phrase, in lower case and singular.

    Args:
        name: name of a class; text in brackets is ignored.

    Returns:
        One word, or a general noun with the word before it (or its "of" phrase). A name without any word is returned
        stripped and in lower case.

    >>> [head_noun(name) for name in ("Washington state park", "church building", "Run-of-river hydroelectricity")]
    ['park', 'church building', 'hydroelectricity']
    >>> head_noun("unincorporated community in the United States"), head_noun("groups of lakes")
    ('community', 'lake')
    >>> head_noun("place of worship")
    'place of worship'
    """
    _, before, after = _see_through(_words(name))
    head, object_of = singular(before[-1]), _object_of(after)
    if head not in GENERAL_NOUNS | TRANSPARENT_NOUNS:
        return head
    if len(before) > 1:
        return f"{before[-2]} {head}"
    return " ".join([head, "of", *object_of[:-1], singular(object_of[-1])]) if object_of else head


def noun_phrase(name: str) -> NounPhrase:
    """Split a name into head, modifiers and complement (:class:`NounPhrase`); the head is one word.

    >>> noun_phrase("former railway stations in Japan")
    NounPhrase(head='station', modifiers=('former', 'railway'), complement=('japan',))
    """
    amounts, before, after = _see_through(_words(name))
    *modifiers, head = (singular(word) for word in (*amounts, *before))
    complement = (singular(word) for word in after if word not in _PREPOSITIONS | _DETERMINERS)
    return NounPhrase(head, tuple(modifiers), tuple(complement))


def singular(word: str) -> str:
    """Return the singular of an English noun, by rules and a list of irregular nouns for places.

    >>> [singular(word) for word in ("churches", "cemeteries", "houses", "falls", "campus", "wharves")]
    ['church', 'cemetery', 'house', 'falls', 'campus', 'wharf']
    """
    if word in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[word]
    if _SAME_IN_PLURAL.search(word):
        return word
    for pattern, ending in _PLURAL_ENDINGS:
        if found := pattern.search(word):
            return word[: found.start(1)] + ending
    return word


def plain_words(name: str) -> list[str]:
    """Return the words of a name in lower case; a name without any word counts as one word.

    >>> plain_words("Acer platanoides (L.)")
    ['acer', 'platanoides', 'l']
    """
    text = unicodedata.normalize("NFC", name).strip().lower()
    return _WORD.findall(text) or [text]


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case, up to the first comma or similar sign; at least one word."""
    text = unicodedata.normalize("NFC", name).strip().lower()
    for part in _BREAKS.split(_ASIDES.sub(" ", text)) + _BREAKS.split(text):
        if words := _WORD.findall(part):
            return words
    return [text]


def _see_through(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the words that only name amounts ("group of"), and the two parts of the other words by :func:`_divide`."""
    amounts: list[str] = []
    before, after = _divide(words)
    while singular(before[-1]) in TRANSPARENT_NOUNS and _object_of(after):
        amounts += before
        before, after = _divide(after[1:])
    return amounts, before, after


def _divide(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words up to the head noun, at least one, and the words from the first preposition on."""
    start = next((i for i, word in enumerate(words[:-1]) if word not in _DETERMINERS), len(words) - 1)
    words = words[start:]
    stop = next((i for i, word in enumerate(words) if i and word in _PREPOSITIONS), len(words))
    before, after = words[:stop], words[stop:]
    if after and len(before) > 1 and _PARTICIPLE.search(before[-1]) and not _NOT_PARTICIPLE.search(before[-1]):
        before = before[:-1]  # removes the participle of "community known as ...", "area protected by ..."
    while len(before) > 1 and _DESIGNATOR.search(before[-1]):
        before = before[:-1]  # "Highway 101"
    return before, after


def _object_of(after: list[str]) -> list[str]:
    """Return the words after "of" up to the next preposition, without determiners; empty if there is no "of"."""
    if after[:1] != ["of"]:
        return []
    stop = next((i for i, word in enumerate(after) if i and word in _PREPOSITIONS), len(after))
    return [word for word in after[1:stop] if word not in _DETERMINERS]
