from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.encoders.head_noun import head_noun, noun_phrase, singular
from tests.rows import each_row


@each_row(
    ("name", "head"),
    [
        ("Washington state park", "park"),
        ("unincorporated community in the United States", "community"),
        ("Rock formations in the United States", "rock formation"),
        ("Run-of-river hydroelectricity", "hydroelectricity"),
        ("church building", "church building"),
        ("Catholic church building", "church building"),
        ("building of public administration", "building of public administration"),
        ("former railway station", "railway station"),
        ("group of lakes", "lake"),
        ("section of a series of lagoons", "lagoon"),
        ("library building (University of Washington Libraries)", "library building"),
        ("wharf(-ves)", "wharf"),
        ("the lighthouse, in ruins", "lighthouse"),
        ("community known as a hamlet", "community"),
        ("flower bed in a park", "bed"),
        ("place of worship for the Sikhs", "place of worship"),
        ("Église paroissiale", "paroissiale"),
        ("神社", "神社"),
        ("  ??? ", "???"),
        ("(redirect)", "redirect"),
        ("of", "of"),
        ("", ""),
    ],
)
def test_head_noun_is_found_in_names(name, head):
    assert head_noun(name) == head


@each_row(
    ("plural", "one"),
    [
        ("lakes", "lake"), ("churches", "church"), ("houses", "house"), ("buses", "bus"), ("boxes", "box"),
        ("abbeys", "abbey"), ("cemeteries", "cemetery"), ("glasses", "glass"),
        ("plateaus", "plateau"), ("oases", "oasis"), ("women", "woman"), ("wolves", "wolf"), ("caves", "cave"),
        ("campus", "campus"), ("basis", "basis"), ("fortress", "fortress"), ("waterworks", "waterworks"),
        ("barracks", "barracks"), ("bus", "bus"), ("gas", "gas"), ("ties", "tie"),
    ],
)  # fmt: skip
def test_plural_nouns_get_their_singular(plural, one):
    assert singular(plural) == one


def test_noun_phrase_has_head_modifiers_and_complement():
    phrase = noun_phrase("Group of Catholic church buildings in the north of Spain")
    assert phrase.head == "building"
    assert phrase.modifiers == ("group", "catholic", "church")
    assert phrase.complement == ("north", "spain")


@given(st.text(max_size=60))
def test_any_nonblank_text_has_a_head_noun(name):
    head = head_noun(name)
    assert bool(head) == bool(name.strip())
    phrase = noun_phrase(name)
    assert all((phrase.head or not name.strip(), *phrase.modifiers, *phrase.complement))


def test_very_long_name_is_parsed_without_error():
    assert head_noun("group of " * 1000 + "lakes") == "lake"
