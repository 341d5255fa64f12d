"""Reading Wikibase's answers: recorded ones if HGLD_DATA has them, and every oddity of their shape."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.scrape.wiki_api import (
    Entity,
    best_values,
    entities_by_ids,
    entities_by_titles,
    parse_entity,
)
from tests.pipelines.wikimedia_server import Canned, statement

URL = "http://127.0.0.1/w/api.php"


@pytest.fixture
def recorded():
    if "HGLD_DATA" not in os.environ:
        pytest.skip("HGLD_DATA is not set: no recorded answers")
    folder = Path(os.environ["HGLD_DATA"]) / "wikimedia_fixtures"
    return lambda name: json.loads((folder / name).read_text(encoding="utf-8"))


def test_a_recorded_item_with_several_values(recorded):
    raw = recorded("entitydata_Q8646.json")["entities"]["Q8646"]
    entity = parse_entity(raw, "en")
    assert (entity.item, entity.label, entity.language) == ("Q8646", "Hong Kong", "en")
    assert [s["rank"] for s in raw["claims"]["P31"]].count("preferred") == 2
    assert len(raw["claims"]["P31"]) == 4
    assert entity.instance_of == ("Q779415", "Q515")


def test_recorded_items_of_all_ages(recorded):
    assert parse_entity(recorded("wptools_wikidata.json")["entities"]["Q42"], "en").instance_of == ("Q5",)
    assert parse_entity(recorded("entity_Q60_pywikibot.json"), "en").instance_of[0].startswith("Q")
    band = recorded("wptools_wikidata_novalue_snak.json")["entities"]["Q483718"]
    assert best_values(band["claims"]["P576"]) == ()


def linked(item: str, title: str, **facts: Any) -> dict[str, Any]:
    return {"id": item, "sitelinks": {"commonswiki": {"site": "commonswiki", "title": title}}, **facts}


def test_answers_map_back_to_titles():
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


def test_a_merged_item_answers_to_the_id_that_was_asked():
    """Wikibase keys the answer by the id that was asked for, and gives the new one inside."""
    raw = {"id": "Q2", "redirects": {"from": "Q1", "to": "Q2"}, "labels": {"en": {"language": "en", "value": "x"}}}
    assert entities_by_ids(Canned({"entities": {"Q1": raw}}), URL, ["Q1"], "en")["Q1"].item == "Q2"
    assert entities_by_ids(Canned({"entities": {"Q2": raw}}), URL, ["Q1"], "en")["Q1"].item == "Q2"


def test_ranks_and_kinds_of_values():
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


def labels(**texts: str) -> dict[str, Any]:
    return {"id": "Q1", "labels": {code: {"language": code, "value": text} for code, text in texts.items()}}


def test_labels_fall_back_and_say_their_language():
    assert parse_entity(labels(en="castle", de="Burg"), "de").label == "Burg"
    assert parse_entity(labels(fr="château", de="Burg"), "en") == Entity("Q1", "château", "fr")
    assert parse_entity(labels(eo="kastelo"), "en") == Entity("Q1", "kastelo", "eo")
    assert parse_entity(labels(en="  "), "en") == Entity("Q1")
    raw = {"id": "Q1", "labels": {"en": {"language": "mul", "for-language": "en", "value": "x"}}}
    assert parse_entity(raw, "en").language == "mul"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["id", "labels", "claims", "missing", "redirects"]), json_values))
def test_an_entity_of_any_shape_is_read_or_taken_as_nothing(raw):
    assert isinstance(parse_entity(raw, "en"), Entity)
    for claims in ({"P31": raw}, {"P31": [raw]}, {"P31": [{"mainsnak": raw}]}):
        assert parse_entity({"id": "Q1", "claims": claims}, "en").instance_of == ()
