"""Questions to Wikidata: the facts of items from ``wbgetentities``, 50 titles or ids at a time."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...web import AnswerError, Client

INSTANCE_OF, SUBCLASS_OF, MAIN_TOPIC = "P31", "P279", "P301"
WIKIMEDIA_CATEGORY = "Q4167836"
BATCH = 50
MAX_LABEL = 1000
# Languages asked for beside the wanted one, and taken in this order where it has no label.
FALLBACK_LANGUAGES = ("mul", "en", "fr", "de", "es", "it", "pt", "nl", "pl", "sv", "ru", "uk", "ja", "zh", "ko", "ar")
_ITEM_ID = re.compile(r"Q[1-9][0-9]{0,11}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entity:
    """The facts of a Wikidata item that a build needs.

    Attributes:
        item: its id; not the one asked for if that item was merged into this one, None if it was deleted.
        label: its label in ``language``, the wanted one or the first fallback that has one; None if none has.
        instance_of: ids of its P31 values of the best rank, in the item's order.
        subclass_of: the same for P279.
        main_topic: the same for P301 (the subject of a category's item).
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
    client: Client, url: str, titles: Sequence[str], language: str
) -> dict[str, tuple[str, Entity] | None]:
    """Ask for the item linked to each Commons page, in one request of at most 50 titles.

    Returns:
        title -> (the item's id, the item), or None if no item has that title as its sitelink. A title that the
        answer does not account for is absent.
    """
    which = {"sites": "commonswiki", "titles": "|".join(titles), "sitefilter": "commonswiki"}
    answer = _ask(client, url, "sitelinks|labels|claims", which, language)
    found: dict[str, tuple[str, Entity] | None] = {}
    for raw in answer.values():
        entity = parse_entity(raw, language)
        link = as_object(as_object(raw.get("sitelinks")).get("commonswiki"))
        # The answer to a single title belongs to that title, however the server spells it.
        title = titles[0] if len(titles) == 1 else raw.get("title" if "missing" in raw else "", link.get("title"))
        found[str(title)] = (entity.item, entity) if entity.item else None
    return {title: found[title] for title in titles if title in found}


def entities_by_ids(client: Client, url: str, ids: Sequence[str], language: str) -> dict[str, Entity]:
    """Ask for the items of at most 50 ids, in one request; an id that the answer does not account for is absent."""
    answer = _ask(client, url, "labels|claims", {"ids": "|".join(ids)}, language)
    found: dict[str, Entity] = {}
    for key, raw in answer.items():
        asked = as_object(raw.get("redirects")).get("from", key)
        found[str(asked)] = parse_entity(raw, language)
    return {item: found[item] for item in ids if item in found}


def parse_entity(raw: Mapping[str, Any], language: str) -> Entity:
    """Return the facts of one entity of a ``wbgetentities`` (or ``Special:EntityData``) answer.

    Statements count by rank: the preferred ones if there are any, else the normal ones, never deprecated ones; values
    that are unknown (somevalue) or stated not to exist (novalue) are skipped.
    """
    item = raw.get("id")
    if "missing" in raw or not isinstance(item, str) or not is_item_id(item):
        return Entity(None)
    claims = as_object(raw.get("claims"))
    label, spoken = _label(as_object(raw.get("labels")), language)
    return Entity(
        item,
        label,
        spoken,
        best_values(claims.get(INSTANCE_OF)),
        best_values(claims.get(SUBCLASS_OF)),
        best_values(claims.get(MAIN_TOPIC)),
    )


def best_values(statements: Any) -> tuple[str, ...]:
    """Return the item ids of a property's statements of the best rank, each once, in their order.

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
        item = value.get("id") or f"Q{value.get('numeric-id')}"  # answers before 2016 have the number alone
        if rank is not None and snak.get("snaktype") == "value" and isinstance(item, str) and is_item_id(item):
            rank[item] = None
    return tuple(by_rank["preferred"] or by_rank["normal"])


def _ask(client: Client, url: str, props: str, which: Mapping[str, str], language: str) -> dict[str, dict[str, Any]]:
    params = {
        "action": "wbgetentities",
        "props": props,
        "languages": "|".join(_languages(language)),
        "languagefallback": "1",
        **which,
    }
    entities = client.api(url, params).get("entities")
    if not isinstance(entities, dict):
        raise AnswerError("no-entities", f"{url} answered no entities; expected Wikibase's wbgetentities")
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
    """Return the value if it is a JSON object, else an empty one: PHP writes an empty object as ``[]``."""
    return value if isinstance(value, dict) else {}
