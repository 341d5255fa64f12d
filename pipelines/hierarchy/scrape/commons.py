"""Questions to Commons: a category's existence, its new name if it was renamed, and the Wikidata item of its page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...web import AnswerError, Client
from .titles import canonical_category
from .wikidata import as_object, is_item_id

# The redirects of Template:Category redirect that pages really use, without spaces, hyphens and case.
_REDIRECT_TEMPLATES = {
    "categoryredirect", "catredirect", "catredir", "catred", "categoryredir", "catmove", "categorymove",
    "seecat", "seecategory", "redirectcategory", "redirectcat", "redircat", "movecat",
    "synonymtaxoncategoryredirect", "invalidtaxoncategoryredirect", "monotypictaxoncategoryredirect",
}  # fmt: skip
# Anybody may write a page: possessive white space, names of bounded length and <nowiki> that ends with the page keep
# the worst text linear.
_TEMPLATE = re.compile(
    r"\{\{\s*+(?:[Tt]emplate\s*+:\s*+)?([^{}|<>\[\]\s][^{}|<>\[\]\n]{0,79}?)\s*+\|([^{}]{1,1000}?)\}\}"
)
_IGNORED = re.compile(r"<!--.*?(?:-->|\Z)|<nowiki>.*?(?:</nowiki>|\Z)", re.DOTALL)
_MAX_WIKITEXT = 1 << 16
_MAX_CONTINUATIONS = 100


@dataclass(frozen=True, slots=True)
class CategoryPage:
    """The answer of Commons about a title.

    Attributes:
        state: ``exists``, ``missing``, ``invalid`` (no wiki can have such a title) or ``loop`` (redirects to itself).
        title: the page's own title, after hard redirects.
        item: the Wikidata item that the page states, if any.
        moved_to: title of the category that a ``{{Category redirect}}`` on the page names, if any.
    """

    state: str
    title: str
    item: str | None = None
    moved_to: str | None = None


def category_pages(client: Client, url: str, titles: Sequence[str]) -> dict[str, CategoryPage]:
    """Ask Commons about at most 50 titles; a title that the answers do not account for is absent.

    One request gives everything: page properties, the text (a renamed category mostly is a page with the template
    ``{{Category redirect|New name}}``, which ``redirects=1`` does not follow) and hard redirects.
    """
    params = {
        "action": "query",
        "titles": "|".join(titles),
        "redirects": "1",
        "prop": "pageprops|revisions",
        "ppprop": "wikibase_item",
        "rvprop": "content",
        "rvslots": "main",
    }
    steps: dict[str, str] = {}
    pages: dict[str, dict[str, Any]] = {}
    continuation: dict[str, str] = {}
    for _ in range(_MAX_CONTINUATIONS):
        answer = client.api(url, {**params, **continuation})
        query = answer.get("query", {})
        if not isinstance(query, dict):
            raise AnswerError("no-query", f"{url} answered no query object; expected MediaWiki's action=query")
        _merge(query, steps, pages)
        more = answer.get("continue")
        if not isinstance(more, dict):
            break
        continuation = {str(key): str(value) for key, value in more.items()}
    else:
        raise AnswerError("continuation", f"{url} continues its answer too often")
    return {title: page for title in titles if (page := _page(title, steps, pages)) is not None}


def redirect_target(wikitext: str) -> str | None:
    """Return the title of the category that a page's ``{{Category redirect}}`` names, None if there is none.

    >>> redirect_target("{{Category redirect|1=:category:Tower Bridge, London}}")
    'Category:Tower Bridge, London'
    """
    text = _IGNORED.sub("", wikitext[:_MAX_WIKITEXT])
    for match in _TEMPLATE.finditer(text):
        if re.sub(r"[\s_-]", "", match[1]).lower() not in _REDIRECT_TEMPLATES:
            continue
        for part in match[2].split("|"):
            name, equals, value = part.partition("=")
            if equals and name.strip() != "1":
                continue
            target = (value if equals else part).strip().strip("[]").lstrip(":").strip()
            prefixed = target if target.lower().startswith("category:") else f"Category:{target}"
            return canonical_category(prefixed)
    return None


def _merge(query: Mapping[str, Any], steps: dict[str, str], pages: dict[str, dict[str, Any]]) -> None:
    """Add one answer's title changes and pages to those of the answers that it continues."""
    for kind in ("converted", "normalized", "redirects"):
        for step in _objects(query.get(kind)):
            steps[str(step.get("from"))] = str(step.get("to"))
    for page in _objects(query.get("pages")):
        pages.setdefault(str(page.get("title")), {}).update(page)


def _page(title: str, steps: Mapping[str, str], pages: Mapping[str, dict[str, Any]]) -> CategoryPage | None:
    last, seen = title, set()
    while last in steps:
        seen.add(last)
        last = steps[last]
        if last in seen:
            return CategoryPage("loop", title)
    raw = pages.get(last)
    if raw is None:
        return None
    if "invalid" in raw:
        return CategoryPage("invalid", last)
    if "missing" in raw:
        return CategoryPage("missing", last)
    item = as_object(raw.get("pageprops")).get("wikibase_item")
    item = item if isinstance(item, str) and is_item_id(item) else None
    return CategoryPage("exists", last, item, redirect_target(_wikitext(raw)))


def _wikitext(raw: Mapping[str, Any]) -> str:
    for revision in _objects(raw.get("revisions")):
        content = as_object(as_object(revision.get("slots")).get("main")).get("content")
        if isinstance(content, str):
            return content
    return ""


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a JSON list, or of an object of objects as format version 1 writes pages."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [member for member in members if isinstance(member, dict)]
