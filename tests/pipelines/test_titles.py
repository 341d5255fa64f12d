import string
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.scrape.titles import canonical_category, category_title, page_url
from tests.rows import each_row

WIKI = "https://commons.wikimedia.org/wiki/"


@each_row(
    ("url", "title"),
    [
        (
            "http://commons.wikimedia.org/wiki/Category:Lime_Kiln_Point_State_Park",
            "Category:Lime Kiln Point State Park",
        ),
        ("https://commons.m.wikimedia.org/wiki/Category:Eiffel_Tower", "Category:Eiffel Tower"),
        ("  https://COMMONS.wikimedia.org:443/wiki/Category:A \n", "Category:A"),
        (WIKI + "Category:Ch%C3%A2teau_d%27If", "Category:Château d'If"),
        (WIKI + "Category:Cha%CC%82teau", "Category:Château"),  # NFD text becomes NFC
        (WIKI + "Category:Caf%E9", "Category:Café"),  # some old links are encoded in windows-1252
        (WIKI + "Category:Saint%2527s", "Category:Saint's"),  # this URL is percent-encoded twice
        (WIKI + "Category:%22Old%22_Bridge,_Mostar", 'Category:"Old" Bridge, Mostar'),
        (WIKI + "category:eiffel__Tower_", "Category:Eiffel Tower"),
        (WIKI + "Category%3AEiffel_Tower?uselang=de#map", "Category:Eiffel Tower"),
        (WIKI + "Category:_ßtrange", "Category:ßtrange"),
        (WIKI + "Category:თბილისი", "Category:თბილისი"),
        (WIKI + "Category:éfeso", "Category:Éfeso"),
        (WIKI + "Category:What%3F", "Category:What?"),
        ("https://commons.wikimedia.org/w/index.php?title=Category:A+b&action=edit", "Category:A b"),
    ],
)
def test_category_title_is_found_in_every_form_of_its_url(url, title):
    assert category_title(url) == title


@each_row(
    "url",
    [
        "",
        "Category:Eiffel Tower",
        "https://en.wikipedia.org/wiki/Category:Castles",
        "https://commons.wikimedia.org.evil.example/wiki/Category:A",
        "https://commons.wikimedia.org@evil.example/wiki/Category:A",
        "ftp://commons.wikimedia.org/wiki/Category:A",
        "http://[commons.wikimedia.org/wiki/Category:A",
        WIKI,
        WIKI + "File:A.jpg",
        WIKI + "Category:",
        WIKI + "Category:A|B",
        WIKI + "Category:%3Cscript%3E",
        WIKI + "Category:A%0AB",
        WIKI + "Category:" + "a" * 256,
        "https://commons.wikimedia.org/w/index.php?curid=12",
        "https://commons.wikimedia.org/w/api.php?titles=Category:A",
    ],
)
def test_other_urls_have_no_category_title(url):
    assert category_title(url) is None


TITLE_CHARACTERS = st.characters(exclude_characters="#<>[]|{}%_~", exclude_categories=["Cc", "Cf", "Cs", "Co", "Cn"])


@given(st.text(TITLE_CHARACTERS, min_size=1, max_size=40))
def test_title_read_from_its_url_is_unchanged(text):
    title = canonical_category(f"Category:{text}")
    if title is not None:
        assert canonical_category(title) == title
        assert category_title(WIKI + quote(title.replace(" ", "_"))) == title


@given(st.text(max_size=200) | st.text(string.printable, max_size=80).map(WIKI.__add__))
def test_any_text_gives_a_valid_title_or_none(text):
    title = category_title(text)
    assert title is None or (title.startswith("Category:") and len(title.encode()) <= 264)


def test_page_urls_are_allowed_by_robots_txt():
    commons = "https://commons.wikimedia.org/w/api.php"
    assert page_url(commons, "Category:Château d'If?", "en") == WIKI + "Category:Ch%C3%A2teau_d'If%3F"
    assert page_url(commons, "Category:A", "de") == WIKI + "Category:A?uselang=de"
    mirror = page_url("http://127.0.0.1:8080/api.php", "Category:A&b", "de")
    assert mirror == "http://127.0.0.1:8080/index.php?title=Category:A%26b&uselang=de"
