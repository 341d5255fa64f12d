"""Questions to the action APIs of Commons and Wikidata, for at most 50 titles or ids per request.

Wikidata gives the facts of items (``wbgetentities``). Commons says whether a category exists, which category replaces
a renamed one, and which item a page states.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...web import AnswerError, PoliteClient
from .titles import canonical_category

INSTANCE_OF, SUBCLASS_OF, MAIN_TOPIC = "P31", "P279", "P301"
WIKIMEDIA_CATEGORY = "Q4167836"
BATCH = 50
MAX_LABEL = 1000
# Fallbacks, in this order, for items without a label in the wanted language.
FALLBACK_LANGUAGES = ("mul", "en", "fr", "de", "es", "it", "pt", "nl", "pl", "sv", "ru", "uk", "ja", "zh", "ko", "ar")
_ITEM_ID = re.compile(r"Q[1-9][0-9]{0,11}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entity:
    """The facts of a Wikidata item that a build needs.

    Attributes:
        item: id of the item; None if the item was deleted. A merged item has the id of the item that replaced it.
        label: label of the item; None if it has no label in any language.
        language: language of the label: the wanted language, or the first fallback language with a label.
        instance_of: ids of the item's P31 values of the best rank, in the item's order.
        subclass_of: ids of the item's P279 values of the best rank.
        main_topic: ids of the item's P301 values of the best rank: the subject of a category's item.
    """

    item: str | None
    label: str | None = None
    language: str | None = None
    instance_of: tuple[str, ...] = ()
    subclass_of: tuple[str, ...] = ()
    main_topic: tuple[str, ...] = ()


def is_item_id(text: str) -> bool:
    """Tell whether a text is the id of an item, such as Q42 (not of a property or a lexeme)."""
    return _ITEM_ID.fullmatch(text) is not None


def entities_by_titles(
    client: PoliteClient, url: str, titles: Sequence[str], language: str
) -> dict[str, tuple[str, Entity] | None]:
    """Ask for the item linked to each Commons page, in one request of at most 50 titles.

    Returns:
        (the item's id, the item) by title, or None for a title without an item. Titles missing in the answer are
        absent.
    """
    which = {"sites": "commonswiki", "titles": "|".join(titles), "sitefilter": "commonswiki"}
    answer = _ask(client, url, "sitelinks|labels|claims", which, language)
    found: dict[str, tuple[str, Entity] | None] = {}
    for raw in answer.values():
        entity = parse_entity(raw, language)
        link = as_object(as_object(raw.get("sitelinks")).get("commonswiki"))
        # If a question has one title, the server may spell the title differently.
        title = titles[0] if len(titles) == 1 else raw.get("title" if "missing" in raw else "", link.get("title"))
        found[str(title)] = (entity.item, entity) if entity.item else None
    return {title: found[title] for title in titles if title in found}


def entities_by_ids(client: PoliteClient, url: str, ids: Sequence[str], language: str) -> dict[str, Entity]:
    """Ask for the items of at most 50 ids in one request; ids missing in the answer are absent."""
    answer = _ask(client, url, "labels|claims", {"ids": "|".join(ids)}, language)
    found: dict[str, Entity] = {}
    for key, raw in answer.items():
        asked = as_object(raw.get("redirects")).get("from", key)
        found[str(asked)] = parse_entity(raw, language)
    return {item: found[item] for item in ids if item in found}


def parse_entity(raw: Mapping[str, Any], language: str) -> Entity:
    """Return the facts of one entity of a ``wbgetentities`` (or ``Special:EntityData``) answer.

    Only statements of the best rank count: the preferred statements if there are any, else the normal statements.
    Deprecated statements, unknown values (somevalue) and values stated not to exist (novalue) are skipped.
    """
    item = raw.get("id")
    if "missing" in raw or not isinstance(item, str) or not is_item_id(item):
        return Entity(None)
    claims = as_object(raw.get("claims"))
    label = _label(as_object(raw.get("labels")), language)
    return Entity(item, *label, *(best_values(claims.get(one)) for one in (INSTANCE_OF, SUBCLASS_OF, MAIN_TOPIC)))


def best_values(statements: Any) -> tuple[str, ...]:
    """Return the item ids in a property's statements of the best rank, each once, in their order.

    >>> def statement(item, rank="normal"):
    ...     return {"mainsnak": {"snaktype": "value", "datavalue": {"value": {"id": item}}}, "rank": rank}
    >>> best_values([statement("Q1"), statement("Q2", "preferred"), statement("Q3", "deprecated")])
    ('Q2',)
    """
    by_rank: dict[str, dict[str, None]] = {"preferred": {}, "normal": {}}
    for statement in statements if isinstance(statements, list) else []:
        snak = as_object(as_object(statement).get("mainsnak"))
        value = as_object(as_object(snak.get("datavalue")).get("value"))
        rank = by_rank.get(str(as_object(statement).get("rank", "normal")))
        item = value.get("id") or f"Q{value.get('numeric-id')}"  # answers from before 2016 have only the number
        if rank is not None and snak.get("snaktype") == "value" and isinstance(item, str) and is_item_id(item):
            rank[item] = None
    return tuple(by_rank["preferred"] or by_rank["normal"])


def _ask(
    client: PoliteClient, url: str, props: str, which: Mapping[str, str], language: str
) -> dict[str, dict[str, Any]]:
    params = {
        "action": "wbgetentities",
        "props": props,
        "languages": "|".join(_languages(language)),
        "languagefallback": "1",
        **which,
    }
    entities = client.api(url, params).get("entities")
    if not isinstance(entities, dict):
        raise AnswerError("no-entities", f"{url} sent no entities; expected Wikibase's wbgetentities")
    return {key: raw for key, raw in entities.items() if isinstance(raw, dict)}


def _languages(language: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((language, *FALLBACK_LANGUAGES)))


def _label(labels: Mapping[str, Any], language: str) -> tuple[str | None, str | None]:
    for asked in (*_languages(language), *sorted(labels)):
        label = as_object(labels.get(asked))
        text = label.get("value")
        if isinstance(text, str) and text.strip():
            return text.strip()[:MAX_LABEL], str(label.get("language", asked))[:40]
    return None, None


def as_object(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object, else an empty object: PHP writes an empty object as ``[]``."""
    return value if isinstance(value, dict) else {}


# -- Commons ----------------------------------------------------------------------------------------------------------

# Names under which pages use Template:Category redirect, in lower case, without spaces and hyphens.
_REDIRECT_TEMPLATES = {
    "categoryredirect", "catredirect", "catredir", "catred", "categoryredir", "catmove", "categorymove",
    "seecat", "seecategory", "redirectcategory", "redirectcat", "redircat", "movecat",
    "synonymtaxoncategoryredirect", "invalidtaxoncategoryredirect", "monotypictaxoncategoryredirect",
}  # fmt: skip
# Hostile pages must not make matching slow. So white space is matched possessively, names have a bounded length, and an
# open <nowiki> ends with the page.
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
        state: state of the page: ``exists``, ``missing``, ``invalid`` (an impossible title) or ``loop`` (redirects to
            itself).
        title: the page's own title, after hard redirects.
        item: the Wikidata item that the page states, if any.
        moved_to: title of the category that a ``{{Category redirect}}`` on the page names; None if the page has no such
            template.
    """

    state: str
    title: str
    item: str | None = None
    moved_to: str | None = None


def category_pages(client: PoliteClient, url: str, titles: Sequence[str]) -> dict[str, CategoryPage]:
    """Ask Commons about at most 50 titles; titles missing in the answers are absent.

    One request asks for page properties, hard redirects and the text. The text is needed because most renamed
    categories have the template ``{{Category redirect|New name}}``, which ``redirects=1`` does not follow.
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
            raise AnswerError("no-query", f"{url} sent no query object; expected MediaWiki's action=query")
        _merge(query, steps, pages)
        more = answer.get("continue")
        if not isinstance(more, dict):
            break
        continuation = {str(key): str(value) for key, value in more.items()}
    else:
        raise AnswerError("continuation", f"{url} splits its answer into too many parts")
    return {title: page for title in titles if (page := _page(title, steps, pages)) is not None}


def redirect_target(wikitext: str) -> str | None:
    """Return the title of the category in a page's ``{{Category redirect}}``; None if the page has no such template.

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
    """Add the title changes and pages of one response to the results of earlier responses."""
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
    """Return the objects of a JSON list; other values have none."""
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []
