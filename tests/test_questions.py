"""Questions of newcomers: the page and heading of each answer exist, and the site search finds the page."""

import json
import math
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

DOCS = Path(__file__).parents[1] / "docs"
QUESTIONS = yaml.safe_load((DOCS / "questions.yaml").read_text(encoding="utf-8"))
STOP = frozenset(
    re.findall(
        r"\w+",
        """
    a an and are by can do does has have how i in is it me my of on or should that the there to was what which why with
""",
    )
)


def headings_of(page: str) -> list[str]:
    """Return the headings of a page, as text."""
    tokens = MarkdownIt().parse((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    pairs = pairwise(tokens)
    return [inline.content.replace("`", "") for before, inline in pairs if before.type == "heading_open"]


def test_heading_that_answers_each_question_exists():
    assert len(QUESTIONS) == 40
    assert len({q["question"] for q in QUESTIONS}) == 40
    missing = [q for q in QUESTIONS if q["heading"] not in headings_of(q["page"])]
    assert not missing, missing


class Index:
    """Search index written by Sphinx: for each word stem, the pages that have it in a title or in the text."""

    def __init__(self, file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        data = json.loads(re.sub(r"^Search\.setIndex\(|\)\s*$", "", text))
        self.names = data["docnames"]
        self.weights: dict[str, Counter[int]] = defaultdict(Counter)
        # As in Sphinx's search, a page gets 15 points for a word in a title and 5 points for a word in its text.
        for field, points in (("terms", 5), ("titleterms", 15)):
            for term, pages in data[field].items():
                for page in [pages] if isinstance(pages, int) else pages:
                    self.weights[term][page] += points

    def search(self, words: list[str]) -> list[str]:
        """Return the pages by descending points; rare words have more weight."""
        points: dict[int, float] = defaultdict(float)
        for word in words:
            found = self.weights.get(word, Counter())
            for page, weight in found.items():
                points[page] += weight * math.log(1 + len(self.names) / len(found))
        return [self.names[page] for page in sorted(points, key=lambda page: -points[page])]


def stems_of(question: str) -> list[str]:
    """Return the stems of a question's words."""
    from snowballstemmer import stemmer

    words = [word for word in re.findall(r"[\w@]+", question.lower()) if word not in STOP]
    parts = [part for word in words for part in re.findall(r"\w+", word)]
    return stemmer("english").stemWords(parts)


def unanswered(site: Path) -> list[str]:
    """Return the questions whose page is not among the first three search results."""
    index = Index(site / "searchindex.js")
    lost = []
    for asked in QUESTIONS:
        found = [page for page in index.search(stems_of(asked["question"])) if not page.startswith("notebooks/")]
        if asked["page"] not in found[:3]:
            lost.append(f"{asked['question']!r} finds {found[:4]}, not {asked['page']}")
    return lost
