"""What kinds of things nouns name, by a lexicon that hgld states: ``place_nouns.yaml``.

Words and letters alone know no meanings: "bay" and "strait" share nothing. The lexicon states the common knowledge
that both are coast and sea. It was written from general knowledge of places, without sight of any labelled set.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipelines.head_noun import GENERAL_NOUNS, TRANSPARENT_NOUNS, NounPhrase

LEXICON = Path(__file__).with_name("place_nouns.yaml")
_LEAST_SUFFIX = 4  # letters of a noun that may end a compound written as one word: "fireboat", not "lapel" as "el"


class NounKinds:
    """The lexicon's nouns with their chains of kinds, coarsest first; ``fingerprint`` is a hash of its content.

    >>> from pipelines.head_noun import noun_phrase
    >>> kinds = NounKinds.read()
    >>> kinds.of(noun_phrase("glacial lake"))
    ('natural feature', 'inland water', 'standing water')
    >>> kinds.of(noun_phrase("fireboat")) == kinds.of(noun_phrase("boat"))
    True
    """

    def __init__(self, chains: Mapping[str, tuple[str, ...]]) -> None:
        self._chains = dict(chains)
        self.fingerprint = hashlib.sha256(repr(sorted(self._chains.items())).encode()).hexdigest()

    @staticmethod
    @cache
    def read() -> "NounKinds":
        """The lexicon that ships with hgld."""
        return NounKinds(dict(_chains(yaml.safe_load(LEXICON.read_text(encoding="utf-8")), ())))

    def of(self, phrase: NounPhrase) -> tuple[str, ...]:
        """The chain of kinds of what a phrase names; ``()`` if the lexicon does not know it.

        A compound of two words is looked up before its head, because "lock keeper" is no lock. A general head
        (building, site) counts only where the word before it is not known: a "church building" is a church. A word
        that is not known takes the chain of the longest known noun that it ends in, since English compounds are headed
        by their last part.
        """
        before = phrase.modifiers[-1] if phrase.modifiers else ""
        general = phrase.head in GENERAL_NOUNS | TRANSPARENT_NOUNS
        words = [f"{before} {phrase.head}", *((before, phrase.head) if general else (phrase.head,))]
        for word in words:
            if found := self._chains.get(word):
                return found
        return next(filter(None, map(self._ending, words[1:])), ())

    def _ending(self, word: str) -> tuple[str, ...]:
        for start in range(1, len(word) - _LEAST_SUFFIX + 1):
            if found := self._chains.get(word[start:].lstrip("-")):
                return found
        return ()


def _chains(kinds: Any, above: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(kinds, Mapping):
        for kind, below in kinds.items():
            yield from _chains(below, (*above, kind))
    else:
        for noun in kinds:
            yield noun, above
