import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.names.clean import NameRules, name_key

RULES = NameRules.read()


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("church building (1172-1954)", "church building"),
        ("church building (1172–1954)", "church building"),
        ("fort (19th century)", "fort"),
        ("railway station (closed in 1964)", "railway station"),
        ("library building (University of Washington Libraries)", "library building"),
        ("town hall (in Germany)", "town hall"),
        ("city gate (of the Old Town (Prague))", "city gate"),
        ("寺院（日本）", "寺院"),
        ("замок (Киев)", "замок"),
        ("county hall (", "county hall"),
        ("county hall (Washing", "county hall"),
        ("county hall)", "county hall"),
        ("arch ()", "arch"),
        ("  urban \t\u00a0 park\n", "urban park"),
        ("king’s palace", "king's palace"),
        ("cafe\u0301", "café"),
        ("light\u00adhouse\u200b", "lighthouse"),
        ("bridge, ", "bridge"),
        ("run‑of‑river hydroelectricity", "run-of-river hydroelectricity"),
        # what stays
        ("US Wilderness Area", "US Wilderness Area"),
        ("Washington state park", "Washington state park"),
        ("tower (chess)", "tower (chess)"),
        ("башня (здание)", "башня (здание)"),
        ("former railway station", "former railway station"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("Japanese castle & moat", "Japanese castle & moat"),
        # nothing left
        ("(1889)", ""),
        (" ,;", ""),
        ("x" * 251, ""),
    ],
)
def test_canonical_spellings(raw, canonical):
    assert RULES.canonical(raw) == canonical


@pytest.mark.parametrize(
    "name",
    [
        "Wikimedia category",
        "wikimedia disambiguation page",
        "Wikimedia list article",
        "list page",
        "List of castles in Wales",
        "Q123456",
        "human",
        "family name",
        "1889",
        "taxon",
    ],
)
def test_names_that_do_not_say_what_a_landmark_is(name):
    assert RULES.irrelevance(name)


@pytest.mark.parametrize(
    "name", ["list building", "human settlement", "enlisted club", "Q-shaped tower", "tourist attraction"]
)
def test_names_that_only_look_irrelevant(name):
    assert RULES.irrelevance(name) is None


def test_irrelevant_classes_are_known_in_any_language():
    assert RULES.irrelevance("Wikimedia-Kategorie", "Q4167836") == RULES.irrelevance("Wikimedia category")
    assert RULES.irrelevance("Kategorie", "Q41176") is None


pieces = st.sampled_from(
    ["church", "Turm", " ", "(", ")", "1889", "(1172-1954)", "(Rome)", "（", "’", "–", "\u0301", ",", "a"]
)
texts = st.one_of(st.text(max_size=40), st.lists(pieces, max_size=14).map("".join))


@given(texts)
@example("e(1889)\u0301")
@example("(1889(1889(1889)))")
@example("(" * 250)
def test_canonical_is_idempotent_and_tidy(raw):
    name = RULES.canonical(raw)
    assert RULES.canonical(name) == name
    assert name == unicodedata.normalize("NFC", name) == name.strip()
    assert "  " not in name
    assert name_key(name) == name_key(name.upper().lower()) or not name.isascii()


@given(texts)
def test_only_separators_and_parentheses_are_lost(raw):
    """A name of plain words and single spaces is left as it is."""
    words = "".join(c if c.isalnum() and c.isascii() else " " for c in raw).split()
    assert RULES.canonical(" ".join(words)) == " ".join(words)
