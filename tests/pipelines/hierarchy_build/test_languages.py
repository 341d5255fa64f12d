"""Names in several languages and scripts: English names are detected, and other names stay unchanged."""

import pytest

from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.groups.group_names import Member, propose_labels
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.hierarchy.names.clean import NameRules
from hgld.pipelines.hierarchy.names.languages import (
    common_words,
    english_names,
    has_english_words,
    is_english,
)
from tests.pipelines.hierarchy_build.conftest import labels

GERMAN = ["Alte Brücke", "Neue Brücke", "Steinerne Brücke", "Hohe Brücke", "Roter Apfel", "Grüner Apfel", "Süßer Apfel"]
JAPANESE = ["大阪城", "姫路城", "名古屋城", "松本城", "浅草寺", "清水寺", "金閣寺", "東大寺"]
ARABIC = ["جسر قديم", "جسر جديد", "جسر حجري", "تفاح أحمر", "تفاح أخضر", "تفاح حلو"]
LATIN = ["Acer platanoides", "Acer saccharum", "Acer rubrum", "Corvus corax", "Corvus corone", "Corvus frugilegus"]
LISTS = {
    "German": (GERMAN, {"Brücke", "Apfel"}),
    "Japanese": (JAPANESE, {"城", "寺"}),
    "Arabic": (ARABIC, {"جسر", "تفاح"}),
    "Latin": (LATIN, {"Acer", "Corvus"}),
}


@pytest.mark.parametrize("language", LISTS)
def test_names_in_any_script_are_grouped_and_labelled_with_whole_words(build, language):
    names, words = LISTS[language]
    made = build(["name", *names], cluster=ClusterConfig(groups=2))
    found = {row["name"]: row["group"] for row in labels(made)}
    assert list(found) == names
    assert set(found.values()) == words
    assert all(label.lower() in name.lower() for name, label in found.items())


def test_english_names_are_detected_from_the_list_and_the_single_name():
    names = ["seafood restaurant", "afghan restaurant", "Haus am See", "Acer platanoides", "red apple", "café noir"]
    english = english_names(names)
    assert [english(name) for name in names] == [True, True, False, False, True, False]
    assert english("green plum")
    assert not english("grüne Pflaume")
    few = english_names(["red apple", *(f"Platz {letter}" for letter in "abcdefgh")])
    assert not few("red apple")
    assert english_names(["x", "y"], ["en-GB", None], "de").known == {"x": True, "y": False}
    assert [is_english(code) for code in ("en", "EN_us", "eng", "de", "enm")] == [True, True, True, False, False]


def test_english_word_list_has_no_words_of_other_languages():
    words = common_words()
    assert all(word.isascii() and word.islower() and word.isalpha() for word in words)
    german = (
        "Apfel Birne Kirche Schloss Brücke Haus Bahnhof Hammer Tiger Hund Katze Pferd Rathaus Museum Park Hotel Berg"
    )
    french = "pomme poire église château pont maison gare marteau tigre chien chat cheval mairie musée parc hôtel place"
    spanish = "manzana pera iglesia castillo puente casa estación martillo tigre perro gato caballo museo parque hotel"
    assert not [word for word in f"{german} {french} {spanish}".split() if has_english_words(word)]


def members(*names, english=True):
    return [Member(name, 1, (), 1.0 - i / 100, english) for i, name in enumerate(names)]


def labels_of(*groups):
    made = propose_labels(groups, ClassGraph({}, {}), NameRules.read(domain="general"), "general")
    return [(one.label, one.method) for one in made]


def test_label_is_made_singular_only_if_the_singular_is_a_known_word():
    assert labels_of(members("Downy Picoides pubescens", "Hairy Picoides pubescens")) == [("pubescens", "shared-word")]
    assert labels_of(members("red zorbs", "green zorbs")) == [("zorbs", "shared-word")]
    assert labels_of(members("red zorbs", "green zorb")) == [("zorb", "head-noun")]
    assert labels_of(members("red apples", "green apples")) == [("apple", "head-noun")]
