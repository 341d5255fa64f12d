"""Parsing of Commons and Wikidata responses: recorded responses of HGLD_DATA, unusual JSON, hostile pages."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.scrape.wiki_api import (
    CategoryPage,
    Entity,
    best_values,
    category_pages,
    entities_by_ids,
    entities_by_titles,
    parse_entity,
    redirect_target,
)
from tests.pipelines.wikimedia_server import Canned, statement
from tests.rows import each_row

URL = "http://127.0.0.1/w/api.php"


@pytest.fixture
def recorded(real_data):
    return lambda name: json.loads((real_data / "wikimedia_fixtures" / name).read_text(encoding="utf-8"))


def test_recorded_item_has_its_values_of_preferred_rank(recorded):
    raw = recorded("entitydata_Q8646.json")["entities"]["Q8646"]
    entity = parse_entity(raw, "en")
    assert (entity.item, entity.label, entity.language) == ("Q8646", "Hong Kong", "en")
    assert [s["rank"] for s in raw["claims"]["P31"]].count("preferred") == 2
    assert len(raw["claims"]["P31"]) == 4
    assert entity.instance_of == ("Q779415", "Q515")


def test_recorded_items_of_old_formats_are_read(recorded):
    assert parse_entity(recorded("wptools_wikidata.json")["entities"]["Q42"], "en").instance_of == ("Q5",)
    assert parse_entity(recorded("entity_Q60_pywikibot.json"), "en").instance_of[0].startswith("Q")
    band = recorded("wptools_wikidata_novalue_snak.json")["entities"]["Q483718"]
    assert best_values(band["claims"]["P576"]) == ()


def linked(item, title, **facts):
    return {"id": item, "sitelinks": {"commonswiki": {"site": "commonswiki", "title": title}}, **facts}


def test_items_are_returned_under_the_requested_title():
    answer = {
        "entities": {
            "Q1": linked("Q1", "Category:A", claims={"P31": [statement("Q7")]}),
            "-1": {"site": "commonswiki", "title": "Category:B", "missing": ""},
        }
    }
    client = Canned(answer)
    found = entities_by_titles(client, URL, ["Category:B", "Category:A", "Category:C"], "de")
    assert found == {"Category:B": None, "Category:A": ("Q1", Entity("Q1", instance_of=("Q7",)))}
    asked = client.asked[0]
    assert (asked["sites"], asked["titles"]) == ("commonswiki", "Category:B|Category:A|Category:C")
    assert asked["props"] == "sitelinks|labels|claims"
    assert asked["languages"].startswith("de|mul|en|")


def test_merged_item_is_returned_under_the_requested_id():
    """Wikibase's response has the requested or the new id as key; the object inside has the new id."""
    raw = {"id": "Q2", "redirects": {"from": "Q1", "to": "Q2"}, "labels": {"en": {"language": "en", "value": "x"}}}
    assert entities_by_ids(Canned({"entities": {"Q1": raw}}), URL, ["Q1"], "en")["Q1"].item == "Q2"
    assert entities_by_ids(Canned({"entities": {"Q2": raw}}), URL, ["Q1"], "en")["Q1"].item == "Q2"


def test_only_known_values_of_the_best_rank_are_used():
    unknown = statement("Q1", "preferred", snaktype="somevalue")
    assert best_values([statement("Q1"), statement("Q2")]) == ("Q1", "Q2")
    assert best_values([statement("Q1"), statement("Q2", "preferred"), statement("Q3", "preferred")]) == ("Q2", "Q3")
    assert best_values([statement("Q1", "deprecated")]) == ()
    assert best_values([unknown, statement("Q2")]) == ("Q2",)
    assert best_values([statement("Q1"), statement("Q1")]) == ("Q1",)
    assert best_values([statement("Q1") | {"rank": []}, statement("Q2") | {"rank": {}}, statement("Q3")]) == ("Q3",)
    old = statement("Q12")
    del old["mainsnak"]["datavalue"]["value"]["id"]
    assert best_values([old]) == ("Q12",)


def labels(**texts):
    return {"id": "Q1", "labels": {code: {"language": code, "value": text} for code, text in texts.items()}}


def test_label_falls_back_to_another_language():
    assert parse_entity(labels(en="castle", de="Burg"), "de").label == "Burg"
    assert parse_entity(labels(fr="château", de="Burg"), "en") == Entity("Q1", "château", "fr")
    assert parse_entity(labels(eo="kastelo"), "en") == Entity("Q1", "kastelo", "eo")
    assert parse_entity(labels(en="  "), "en") == Entity("Q1")
    raw = {"id": "Q1", "labels": {"en": {"language": "mul", "for-language": "en", "value": "x"}}}
    assert parse_entity(raw, "en").language == "mul"


def page(title, text=None, **facts):
    revisions = {} if text is None else {"revisions": [{"slots": {"main": {"content": text}}}]}
    return {"ns": 14, "title": title, **revisions, **facts}


def query(*pages, **rest):
    return {"query": {"pages": list(pages), **rest}}


def test_pages_that_exist_are_missing_invalid_or_in_a_redirect_loop_are_told_apart():
    answer = query(
        page("Category:Old", "{{Category redirect|New}}"),
        page("Category:Target", "text", pageprops={"wikibase_item": "Q5"}),
        page("Category:Gone", missing=True),
        page("Category:Bad", invalid=True, invalidreason="no"),
        page("Category:Empty", ""),
        normalized=[{"fromencoded": False, "from": "category:hard", "to": "Category:Hard"}],
        redirects=[
            {"from": "Category:Hard", "to": "Category:Middle"},
            {"from": "Category:Middle", "to": "Category:Target"},
            {"from": "Category:L1", "to": "Category:L2"},
            {"from": "Category:L2", "to": "Category:L1"},
        ],
    )
    client = Canned(answer)
    asked = [
        "category:hard",
        "Category:L1",
        *(f"Category:{name}" for name in ("Old", "Gone", "Bad", "Empty", "Unheard")),
    ]
    assert category_pages(client, URL, asked) == {
        "category:hard": CategoryPage("exists", "Category:Target", "Q5"),
        "Category:L1": CategoryPage("loop", "Category:L1"),
        "Category:Old": CategoryPage("exists", "Category:Old", None, "Category:New"),
        "Category:Gone": CategoryPage("missing", "Category:Gone"),
        "Category:Bad": CategoryPage("invalid", "Category:Bad"),
        "Category:Empty": CategoryPage("exists", "Category:Empty"),
    }
    assert client.asked[0]["redirects"] == "1"
    assert client.asked[0]["prop"] == "pageprops|revisions"


def test_responses_in_several_parts_are_merged():
    first = query(page("Category:A", pageprops={"wikibase_item": "Q1"}), page("Category:B"))
    second = query(page("Category:A"), page("Category:B", "{{catredir|C}}"))
    client = Canned({**first, "continue": {"rvcontinue": "5|6", "continue": "||"}}, second)
    assert category_pages(client, URL, ["Category:A", "Category:B"]) == {
        "Category:A": CategoryPage("exists", "Category:A", "Q1"),
        "Category:B": CategoryPage("exists", "Category:B", None, "Category:C"),
    }
    assert client.asked[1]["rvcontinue"] == "5|6"


@each_row(
    ("text", "target"),
    [
        ("{{Category redirect|Category:New name}}", "Category:New name"),
        ("{{ Cat-redirect | 1 = :Category:New_name | nocat = yes }}", "Category:New name"),
        ("{{Category redirect|[[:Category:New name]]}}", "Category:New name"),
        ("text\n{{Seecat|A, B (C)}}\n[[Category:X]]", "Category:A, B (C)"),
        ("{{Template:Category redirect|reason=moved|1=Á}}", "Category:Á"),
        ("{{Wikidata Infobox}}\n{{Category redirect|B}}", "Category:B"),
        ("{{Other|Category redirect}}", None),
        ("{{Category redirect}}", None),
        ("{{Category redirect|<script>}}", None),
        ("<!-- {{Category redirect|A}} -->", None),
        ("<nowiki>{{Category redirect|A}}</nowiki>", None),
        ("<nowiki>{{Category redirect|A}}", None),
        ("{{x\n|y}} {{seecat|D}}", "Category:D"),
        ("{{ template : Cat redirect \n|1=B}}", "Category:B"),
        ("Category redirect|A", None),
    ],
)
def test_redirect_target_is_found_in_wikitext(text, target):
    assert redirect_target(text) == target


@given(st.text(alphabet="{}|=[]:<>!- \nCategory redirect1x", max_size=300))
def test_any_wikitext_is_parsed_without_error(text):
    target = redirect_target(text)
    assert target is None or target.startswith("Category:")


@each_row(
    "text",
    [
        *("{{" * 40_000, "{{a|" * 20_000, "<!--" * 20_000, "{{Category redirect|" + "[" * 60_000),
        *("{{" + " " * 100_000, "{{template:" + "\n" * 100_000, ("{{a" + " " * 400) * 200, "<nowiki>" * 8_000),
    ],
)
def test_hostile_wikitext_is_parsed_quickly(text):
    started = time.process_time()
    assert redirect_target(text) is None
    assert time.process_time() - started < 1
