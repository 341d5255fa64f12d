import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.scrape.wiki_api import CategoryPage, category_pages, redirect_target
from tests.pipelines.wikimedia_server import Canned

URL = "http://127.0.0.1/w/api.php"


@pytest.fixture
def one_second():
    """Ends a test that takes a second of its own time, a hundred times what it needs; patterns can run for years."""

    def stop(number: int, frame: Any) -> None:
        pytest.fail("this takes longer the longer the page is, without bound")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.0)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def page(title: str, text: str | None = None, **facts: Any) -> dict[str, Any]:
    revisions = {} if text is None else {"revisions": [{"slots": {"main": {"content": text}}}]}
    return {"ns": 14, "title": title, **revisions, **facts}


def query(*pages: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"query": {"pages": list(pages), **rest}}


def test_every_state_of_a_page():
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


def test_an_answer_in_several_parts_is_put_together():
    first = query(page("Category:A", pageprops={"wikibase_item": "Q1"}), page("Category:B"))
    second = query(page("Category:A"), page("Category:B", "{{catredir|C}}"))
    client = Canned({**first, "continue": {"rvcontinue": "5|6", "continue": "||"}}, second)
    assert category_pages(client, URL, ["Category:A", "Category:B"]) == {
        "Category:A": CategoryPage("exists", "Category:A", "Q1"),
        "Category:B": CategoryPage("exists", "Category:B", None, "Category:C"),
    }
    assert client.asked[1]["rvcontinue"] == "5|6"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("{{Category redirect|Category:New name}}", "Category:New name"),
        ("{{category_redirect|New name}}", "Category:New name"),
        ("{{ Cat-redirect | 1 = :Category:New_name | nocat = yes }}", "Category:New name"),
        ("{{Category redirect|[[:Category:New name]]}}", "Category:New name"),
        ("text\n{{Seecat|A, B (C)}}\n[[Category:X]]", "Category:A, B (C)"),
        ("{{Template:Category redirect|reason=moved|1=Á}}", "Category:Á"),
        ("{{Category redirect|\nNew\n}}", "Category:New"),
        ("{{Wikidata Infobox}}\n{{Category redirect|B}}", "Category:B"),
        ("{{Other|Category redirect}}", None),
        ("{{Category redirect}}", None),
        ("{{Category redirect|}}", None),
        ("{{Category redirect|<script>}}", None),
        ("<!-- {{Category redirect|A}} -->", None),
        ("<nowiki>{{Category redirect|A}}</nowiki>", None),
        ("<nowiki>{{Category redirect|A}}", None),
        ("{{x\n|y}} {{seecat|D}}", "Category:D"),
        ("{{ template : Cat redirect \n|1=B}}", "Category:B"),
        ("Category redirect|A", None),
        ("", None),
    ],
)
def test_soft_redirects_as_people_write_them(text, target):
    assert redirect_target(text) == target


@given(st.text(alphabet="{}|=[]:<>!- \nCategory redirect1x", max_size=300))
def test_any_wikitext_is_read(text):
    target = redirect_target(text)
    assert target is None or target.startswith("Category:")


@pytest.mark.parametrize(
    "text",
    [
        *("{{" * 40_000, "{{a|" * 20_000, "<!--" * 20_000, "{{Category redirect|" + "[" * 60_000),
        *("{{" + " " * 100_000, "{{template:" + "\n" * 100_000, ("{{a" + " " * 400) * 200, "<nowiki>" * 8_000),
    ],
    ids=lambda text: text[:12],
)
def test_hostile_wikitext_takes_no_time(text, one_second):
    assert redirect_target(text) is None
