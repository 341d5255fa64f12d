"""The infobox of category pages: recorded, irregular and hostile pages."""

import time

import pytest

from hgld.errors import InputError
from hgld.pipelines.hierarchy.scrape.infobox import MAX_BYTES, MAX_TAGS, Infobox, instance_of
from tests.rows import each_row


def page(rows, *, before="", head=""):
    box = f'<table class="vevent infobox mw-collapsible" dir="ltr" id="wdinfobox"><tbody>{rows}</tbody></table>'
    return f"<!DOCTYPE html><html><head>{head}</head><body>{before}<div>{box}</div></body></html>".encode()


def row(value, heading="Instance of"):
    return f'<tr><th class="wikidatainfobox-lcell">{heading}</th><td>{value}</td></tr>'


def names(value):
    return instance_of(page(row(value))).names


def test_recorded_category_page_is_parsed(real_data):
    html = (real_data / "wikimedia_fixtures/commons_Category_Happy_Valley_Racecourse.html").read_bytes()
    assert instance_of(html) == Infobox(("horse racing venue",), None, None, present=True)
    assert instance_of(html, rows=("Inception",)).names == ("1846",)
    assert instance_of(html, rows=("Location",)).names == ("Happy Valley", "Wan Chai District", "Hong Kong", "PRC")


@each_row(
    ("value", "expected"),
    [
        ("castle", ("castle",)),
        ('<a href="/wiki/Category:Castles" title="Category:Castles">castle</a>', ("castle",)),
        ("<div class='plainlist'><ul><li><a href='/x'>castle</a></li><li>ruins</li></ul></div>", ("castle", "ruins")),
        ("<a href='/x'>castle</a>, <a href='/y'>museum</a>, ruins", ("castle", "museum", "ruins")),
        # a comma inside a link separates no values
        ("<a href='/x'>inn, tavern</a>, museum", ("inn, tavern", "museum")),
        ("<ul><li>city, or town</li></ul>", ("city, or town",)),  # a list item is one value, even with a comma
        ("church building (1172, 1954)", ("church building (1172, 1954)",)),
        ("<ul><li>castle</li><li>castle</li></ul>", ("castle",)),
        ("Roman Catholic <a href='/x'>church</a>", ("Roman Catholic church",)),
        ("  horse\n racing&nbsp;venue ", ("horse racing venue",)),
        ("<i>castle</i><sup class='reference'><a href='#n'>[1]</a></sup>", ("castle",)),
        ("castle <span class='penicon autoconfirmed-show'><a href='/e'>edit</a></span>", ("castle",)),
        ("<span style='Display : none'>0042</span>castle<span hidden>x</span><!-- hidden -->", ("castle",)),
        ("<style>.a{color:red}</style><script>var a;</script>castle", ("castle",)),
        ("<table><tr><td>castle</td></tr><tr><td>ruins</td></tr></table>", ("castle", "ruins")),
        ("", ()),
        ("–", ()),
    ],
)
def test_infobox_row_is_split_into_its_values(value, expected):
    assert names(value) == expected


def test_infobox_heading_is_found_regardless_of_case_space_and_markup():
    for heading in (" INSTANCE \n of ", "Instance&nbsp;of:", "<a href='/p'><b>Instance</b> of</a>"):
        assert instance_of(page(row("castle", heading))).names == ("castle",)
    html = page(row("Schloss", "ist ein(e)"))
    assert instance_of(html) == Infobox((), None, None, present=True)
    assert instance_of(html, rows=("Instance of", "ist ein(e)")).names == ("Schloss",)


def test_rows_of_nested_tables_are_ignored():
    nested = f"<table>{row('not this')}</table>"
    assert instance_of(page(f"<tr><td>{nested}</td></tr>" + row("castle"))).names == ("castle",)
    assert instance_of(page(f"<tr><td>{nested}</td></tr>")).names == ()
    assert instance_of(page(row("river", "Part of instance of") + row("castle"))).names == ("castle",)


# -- the subject's item ---------------------------------------------------------------------------------------

PENCIL = '<tr><td colspan="2"><a href="{}"><img alt="Edit infobox data on Wikidata" src="pencil.svg"></a></td></tr>'
COUNTRY = row('<a href="https://www.wikidata.org/wiki/Q55" title="d:Q55">Netherlands</a>', "Country")
UNNAMED = row('<a href="https://www.wikidata.org/wiki/Q77">Q77</a>', "Architect")


def test_item_is_read_from_the_link_of_the_edit_icon():
    for address in ("//m.wikidata.org/wiki/Q42#P31", "http://www.wikidata.org/wiki/Special:EntityPage/Q42"):
        assert instance_of(page(COUNTRY + UNNAMED + row("castle") + PENCIL.format(address))).item == "Q42"


@each_row(
    "rows",
    [
        COUNTRY + UNNAMED,
        PENCIL.format("https://www.wikidata.org/wiki/Q1") + PENCIL.format("https://www.wikidata.org/wiki/Q2"),
        PENCIL.format("https://www.wikidata.org.example.com/wiki/Q1"),
        PENCIL.format("https://www.wikidata.org/wiki/Q01"),
        PENCIL.format("https://www.wikidata.org/wiki/Property:P31"),
    ],
)
def test_ambiguous_or_foreign_links_give_no_item(rows):
    assert instance_of(page(rows + row("castle"))).item is None


# -- redirects ------------------------------------------------------------------------------------------------

SOFT = (
    '<table class="messagebox"><tr><td>This category is located at <b>{}</b>.<br>It should be empty.</td></tr></table>'
)


@each_row(
    ("address", "title"),
    [
        ("/wiki/Category:New_Name", "Category:New Name"),
        ("https://commons.wikimedia.org/wiki/Category:%C3%89glise_(Paris)", "Category:Église (Paris)"),
        ("/w/index.php?title=Category:New_name&amp;action=edit&amp;redlink=1", "Category:New name"),
        ("/wiki/Category%3aWhat%3F_%26_who", "Category:What? & who"),
        ("/wiki/category:new__name_#top", "Category:New name"),
        ("/wiki/File:Picture.jpg", None),
        ("/wiki/Category:", None),
    ],
)
def test_soft_redirect_gives_its_target(address, title):
    html = page("", before=SOFT.format(f"<a href='{address}'>there</a>")).replace(b"wdinfobox", b"other")
    assert instance_of(html) == Infobox((), None, title, present=False)


def test_soft_redirect_is_recognised_only_if_a_link_follows_its_fixed_text():
    prose = "This category is located at the corner of two <a href='/wiki/Category:Streets'>streets</a>"
    assert instance_of(page(row("castle"), before=prose)).redirected_to is None
    assert instance_of(page("", before=SOFT.format("[[broken]]"))).redirected_to is None
    both = prose + SOFT.format("<a href='/wiki/Category:B'>B</a>")
    assert instance_of(page("", before=both)).redirected_to == "Category:B"


def test_redirect_followed_by_the_server_gives_its_target():
    source = '<a href="/w/index.php?title=Category:A&amp;redirect=no" class="mw-redirect">Category:A</a>'
    notice = f'<span class="mw-redirectedfrom">(Redirected from {source})</span>'
    canonical = '<link rel="canonical" href="https://commons.wikimedia.org/wiki/Category:B_b"/>'
    html = page(row("castle"), before=notice, head=canonical)
    assert instance_of(html) == Infobox(("castle",), None, "Category:B b", present=True)
    assert instance_of(page(row("castle"), head=canonical)).redirected_to is None


# -- broken and hostile pages ---------------------------------------------------------------------------------


def test_broken_markup_is_parsed():
    for html in (
        "<table id=wdinfobox><tr><th>Instance of<td>castle<tr><th>Country<td>France",
        "<table id='wdinfobox'><tr><th>Instance of</th><td><b>castle</td></tr></b></div></table></table>",
        "<?xml version='1.0'?><TABLE ID='wdinfobox'><TR><TH>Instance of</TH><TD>castle</TD></TR></TABLE>",
    ):
        assert instance_of(html.encode()).names == ("castle",)


HOSTILE = {
    "nested": "<div>" * 4_000,
    "attributes": "<a " * 4_000,
    "reference": "&#" + "9" * 9_000 + ";",
    "spaces": "this category is located at" + " " * 250_000 + "x",
    "links": "<a href='//www.wikidata.org/wiki/Q1'>Q1</a>" * 2_000,
}


@each_row("value", HOSTILE.values())
def test_hostile_markup_is_parsed_quickly(value):
    started = time.process_time()
    assert instance_of(page(row("castle") + row(value, "Other"))).names == ("castle",)
    instance_of(page(row(value)))
    assert time.process_time() - started < 0.8


def test_huge_page_is_refused():
    with pytest.raises(InputError, match=r"1,048,577 bytes and 0 tags; expected at most 1,048,576 and 50,000"):
        instance_of(b" " * (MAX_BYTES + 1))
    with pytest.raises(InputError, match=r"250,005 bytes and 50,001 tags"):
        instance_of(b"<ul> " * (MAX_TAGS + 1))
    assert not instance_of(b" " * MAX_BYTES).present
