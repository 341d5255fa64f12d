"""Words of the build report and their explanations: linked where they stand, listed at the end if they were used."""

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from markupsafe import Markup, escape

FILE = Path(__file__).with_name("words.yaml")


class Words:
    """The explanations, and which of them a page has used.

    >>> words = Words()
    >>> str(words.link("medoid"))
    '<a class="word" href="#word-medoid">medoid</a>'
    >>> str(words.mark("margin <.1"))
    '<a class="word" href="#word-margin">margin</a> &lt;.1'
    >>> [word for word, _ in words.used()]
    ['medoid', 'margin']
    """

    def __init__(self) -> None:
        known = yaml.safe_load(FILE.read_text(encoding="utf-8"))
        self._texts: dict[str, str] = {word: entry["text"] for word, entry in known.items()}
        self._spelled = {s: word for word, entry in known.items() for s in entry.get("find", ())}
        longest_first = sorted(self._spelled, key=len, reverse=True)
        self._pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b")
        self._used: set[str] = set()

    def link(self, word: str, shown: str | None = None) -> Markup:
        """Return the word as a link to its explanation, or as plain text where there is none.

        Args:
            word: the word; of ``error(timeout)`` the explanation is that of ``error``.
            shown: the text to show in its place.
        """
        text = escape(word if shown is None else shown)
        key = word if word in self._texts else word.partition("(")[0]
        if key not in self._texts:
            return text
        self._used.add(key)
        return Markup('<a class="word" href="#word-{}">{}</a>').format(_anchor(key), text)

    def mark(self, text: str) -> Markup:
        """Return a text with the known words in it linked."""
        parts, end = [], 0
        for found in self._pattern.finditer(text):
            parts += [escape(text[end : found.start()]), self.link(self._spelled[found[0]], found[0])]
            end = found.end()
        return Markup("").join([*parts, escape(text[end:])])

    def used(self) -> Sequence[tuple[str, str]]:
        """Return the words that were linked so far and their explanations, in the order of the file."""
        return [(word, text) for word, text in self._texts.items() if word in self._used]

    @staticmethod
    def anchor(word: str) -> str:
        """Return the part of an address that leads to the word's explanation."""
        return _anchor(word)


def _anchor(word: str) -> str:
    return word.replace(" ", "-")
