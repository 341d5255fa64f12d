"""The lexical encoder, which needs no model weights: it uses words by their role, letters, and kinds of things.

A name's features are three blocks of unit length; latent semantic analysis makes them dense:

* *words*: TF-IDF over the names, weighted by role (``head_noun.py``). The head noun has the largest weight. A general
  head noun (building, site) has less weight than the word before it. Modifiers farther from the head have less weight.
* *letters*: n-grams of the same words with the same weights, so that theater is near theatre, and footbridge near
  bridge.
* *kinds*: the kinds of the head in hgld's lexicon of place nouns, ``place_nouns.yaml``. Words and letters have no
  meaning: "bay" and "strait" share nothing. The lexicon states that both are coast and sea. The lexicon was written
  from general knowledge, without any labelled data. The block is empty for names outside the lexicon.

The encoder is fitted on the names of one build. Its key is a hash of these names, and its space does not suit other
names. Outside the lexicon, two heads without common letters or modifiers are unrelated.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import svd_flip
from threadpoolctl import threadpool_limits

from ...stage import Progress, silent
from ..names.languages import EVERY, English, script_of
from .head_noun import (
    GENERAL_NOUNS,
    TRANSPARENT_NOUNS,
    NounPhrase,
    noun_phrase,
    plain_words,
)

LEXICON = Path(__file__).with_name("place_nouns.yaml")
# minimum number of letters of a noun that may end a closed compound: "boat" in "fireboat", not "el" in "lapel"
_LEAST_SUFFIX = 4


class NounKinds:
    """The lexicon's nouns with their chains of kinds, coarsest first; ``fingerprint`` is a hash of the content.

    >>> from hgld.pipelines.hierarchy.encoders.head_noun import noun_phrase
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
        """Read hgld's lexicon."""
        return NounKinds(dict(_chains(yaml.safe_load(LEXICON.read_text(encoding="utf-8")), ())))

    def of(self, phrase: NounPhrase) -> tuple[str, ...]:
        """Return the chain of kinds of a phrase; ``()`` for an unknown phrase.

        A compound of two words is looked up before its head, because a "power station" is not a station. A general head
        (building, site) counts only if the word before it is unknown: a "church building" is a church. An unknown word
        gets the chain of the longest known noun at its end, because the last part heads an English compound.
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


# -- the encoder ---------------------------------------------------------------------------------------------------

VERSION = 2
# share of the kinds of nouns in the squared length; values from 0.3 to 0.7 give about the same measured agreement
KINDS = 0.5
COARSER = 0.8  # weight of a kind of noun relative to the next finer kind
# share of the letters in the squared length that the kinds of nouns leave; 0.4 to 0.8 give about the same agreement
LETTERS = 0.5
GENERAL_HEAD, MODIFIER, FARTHER, COMPLEMENT = 0.35, 0.5, 0.6, 0.15
NGRAMS = (3, 4, 5)
SIGNS = (1, 2, 3)
# axes grow with the square root of the number of names: 30 for 221 names, 151 for 5,700
_AXES_PER_ROOT, _LEAST_AXES = 2.0, 24
_DENSE_NAMES = 1000  # maximum number of names for the exact decomposition, which is cheap for few names
_POWER_ITERATIONS = 5
_NO_LENGTH = 1e-9


class LexicalEncoder:
    """An encoder of names by features of words, letters and kinds, fitted at its first use.

    Args:
        names: the names to fit, at least one; order and repetitions do not matter.
        lexicon: whether to use the lexicon of nouns; without it only words and letters count.
        english: function that tells which names have a head and modifiers; in other names all words have the same
            weight.

    Attributes:
        name: ``lexical``.
        key: the version, and a hash of the lexicon and the fitted names.
        templates: prompt templates; always empty, because the encoder uses no prompts.
    """

    name = "lexical"
    templates: tuple[str, ...] = ()

    def __init__(self, names: Sequence[str], *, lexicon: bool = True, english: English = EVERY) -> None:
        self._names = sorted(set(names))
        self._kinds = NounKinds.read() if lexicon else NounKinds({})
        self._english = english
        foreign = [repr(name) for name in self._names if not english(name)]
        stated = [self._kinds.fingerprint, *map(repr, self._names), *(["not English", *foreign] if foreign else [])]
        self.key = f"lexical/{VERSION}/{hashlib.sha256(chr(10).join(stated).encode()).hexdigest()}"

    @cached_property
    def _space(self) -> "_Space":
        return _Space(self._names, self._kinds, self._english)

    @property
    def dim(self) -> int:
        """Dimension D, at most the number of distinct names; fits the encoder."""
        return self._space.dim

    def encode(self, names: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """Return the (N, D) float32 rows of fitted or new names.

        Rows have unit length, but a new name that shares nothing with the fitted names has a zero row. Fitted names
        that share nothing with any other fitted name are outside all axes; they get one additional axis together.
        """
        rows = self._space.rows(names) if names else np.zeros((0, self.dim))
        progress("embed", len(names), len(names))
        return rows.astype(np.float32)


class _Space:
    """The features of some names and their axes."""

    def __init__(self, names: Sequence[str], lexicon: NounKinds, english: English) -> None:
        self._lexicon, self._english = lexicon, english
        roles = [self._roles(name) for name in names]
        self._kinds = DictVectorizer().fit([self._kinds_of(name) for name in names])
        self._words = DictVectorizer().fit(roles)
        self._rarity = TfidfTransformer().fit(self._words.transform(roles))
        spelt = [_ngrams(word) for word in self._words.feature_names_]
        self._ngrams = DictVectorizer().fit(spelt)
        self._ngram_rarity = TfidfTransformer().fit(self._ngrams.transform(spelt))
        features = self._features(names)
        self._axes = _axes(features, len(names))
        lost = _length(features @ self._axes) <= _NO_LENGTH
        self._lost = frozenset(name for name, is_lost in zip(names, lost, strict=True) if is_lost)
        self.dim = self._axes.shape[1] + bool(self._lost)

    def rows(self, names: Sequence[str]) -> np.ndarray:
        rows = np.zeros((len(names), self.dim))
        rows[:, : self._axes.shape[1]] = self._features(names) @ self._axes
        rows[_length(rows) <= _NO_LENGTH] = 0.0
        rows[[name in self._lost for name in names], -1] = 1.0
        return np.asarray(normalize(rows))

    def _roles(self, name: str) -> dict[str, float]:
        if self._english(name):
            return _roles(noun_phrase(name))
        return {part: 1.0 for word in plain_words(name) for part in word.split("-")}

    def _kinds_of(self, name: str) -> dict[str, float]:
        return _kinds(noun_phrase(name), self._lexicon) if self._english(name) else {}

    def _features(self, names: Sequence[str]) -> sparse.csr_matrix:
        roles = [self._roles(name) for name in names]
        words = self._rarity.transform(self._words.transform(roles))
        own_words = DictVectorizer().fit(roles)
        spelt = self._ngrams.transform([_ngrams(word) for word in own_words.feature_names_])
        letters = normalize(own_words.transform(roles) @ self._ngram_rarity.transform(spelt))
        kinds = self._kinds.transform([self._kinds_of(name) for name in names])
        kinds = normalize(kinds) if self._kinds.feature_names_ else kinds  # normalize fails if there is no feature
        spelling = sparse.hstack([np.sqrt(1 - LETTERS) * words, np.sqrt(LETTERS) * letters])
        return sparse.csr_matrix(sparse.hstack([np.sqrt(1 - KINDS) * spelling, np.sqrt(KINDS) * kinds]))


def _roles(phrase: NounPhrase) -> dict[str, float]:
    """Return the words of a phrase with their weights; a repeated word gets its larger weight."""
    general = phrase.head in GENERAL_NOUNS | TRANSPARENT_NOUNS
    weights = [MODIFIER * FARTHER**steps for steps in range(len(phrase.modifiers))]
    if general and weights:
        weights[0] = 1.0
    object_of = 1.0 if general and not weights else COMPLEMENT
    counted = [
        (phrase.head, GENERAL_HEAD if general else 1.0),
        *zip(reversed(phrase.modifiers), weights, strict=True),
        *((word, object_of) for word in phrase.complement),
    ]
    roles: dict[str, float] = {}
    for compound, weight in counted:
        for word in compound.split("-"):
            roles[word] = max(weight, roles.get(word, 0.0))
    return roles


def _kinds(phrase: NounPhrase, lexicon: NounKinds) -> dict[str, float]:
    """Return the kinds of a phrase with their weights, the finest kind with the largest; empty if unknown."""
    chain = lexicon.of(phrase)
    return {"/".join(chain[: i + 1]): COARSER ** (len(chain) - 1 - i) for i in range(len(chain))}


def _ngrams(word: str) -> Counter[str]:
    """Return the letter n-grams of a word with its ends marked; for a very short word, the word itself.

    N-grams in Chinese, Japanese or Korean are shorter, because one character is as informative as two or three letters.
    """
    marked = f"^{word}$"
    lengths = SIGNS if script_of(word) == "cjk" else NGRAMS
    return Counter([marked[i : i + n] for n in lengths for i in range(len(marked) - n + 1)] or [marked])


def _length(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1)


def _axes(features: sparse.csr_matrix, names: int) -> np.ndarray:
    """Return the first right singular vectors of the (names, F) features, (F, D), largest first, with fixed signs."""
    count = min(names, max(_LEAST_AXES, round(_AXES_PER_ROOT * names**0.5)))
    if names > _DENSE_NAMES:  # randomized, because ARPACK fails if many singular values are equal
        found = TruncatedSVD(count, algorithm="randomized", n_iter=_POWER_ITERATIONS, random_state=0).fit(features)
        spread, right = found.singular_values_, np.asarray(found.components_)
    else:
        with threadpool_limits(limits=1):  # more threads do not help at this size
            left, spread, right = np.linalg.svd(features.toarray(), full_matrices=False)
        _, right = svd_flip(left, right)
    return right[:count][spread[:count] > _NO_LENGTH].T
