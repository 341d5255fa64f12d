import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from hgld.addresses import RedirectError, redirect_target
from hgld.errors import ConfigError, ServiceError
from hgld.pipelines import web
from hgld.pipelines.hierarchy.scrape.titles import page_url
from hgld.pipelines.web import AnswerError, BudgetSpentError, PoliteClient
from tests.pipelines.wikimedia_server import (
    Wiki,
    WikimediaServer,
    api_error,
    cut_off,
    hang,
    raw_answer,
    redirect_to_self,
    status,
    trickle,
)
from tests.rows import refused

ASK = {"action": "wbgetentities", "ids": "Q1", "props": "labels", "languages": "en"}
COMMONS = "https://commons.wikimedia.org/w/api.php"


class Clock:
    """A fake clock that advances only with ``sleep``."""

    def __init__(self):
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def server():
    wiki = Wiki()
    wiki.item("Q1", "castle")
    wiki.category("A", "Q1")
    with WikimediaServer(wiki) as running:
        yield running


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def connect(server, clock):
    def make(**options):
        options = {"rate": 1000, "timeout": 5, "clock": clock, "sleep": clock.sleep} | options
        return PoliteClient((server.url,), **options)

    return make


def label(answer):
    return answer["entities"]["Q1"]["labels"]["en"]["value"]


def test_requests_have_contact_gzip_and_maxlag(server, connect):
    connect(contact="me@example.org").api(server.url, ASK)
    asked = server.log[-1]
    assert asked.headers["User-Agent"].startswith("hgld/")
    assert "(me@example.org)" in asked.headers["User-Agent"]
    assert asked.headers["Accept-Encoding"] == "gzip"
    assert (asked.method, asked.params["maxlag"], asked.params["format"]) == ("GET", "5", "json")


def test_long_requests_use_post_and_follow_no_redirect(server, connect):
    titles = "|".join(["Category:" + "ö" * 30] * 50)
    connect().api(server.url, {**ASK, "ids": "", "titles": titles})
    assert server.log[-1].method == "POST"
    assert server.log[-1].params["titles"] == titles
    server.faults += [redirect_to_self]
    with pytest.raises(ServiceError, match="redirects to another URL"):
        connect().api(server.url, {**ASK, "ids": "Q1|" * 4000})


def busy_for_twelve_minutes(handler):
    until = datetime.now(UTC) + timedelta(minutes=12)
    status(503, Retry_After=format_datetime(until, usegmt=True))(handler)


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        (status(429, Retry_After="17"), 17),
        (busy_for_twelve_minutes, 300),
        (api_error("maxlag", "6 seconds lagged", Retry_After="5"), 5),
        (api_error("internal_api_error_Exception"), 1),
        (status(503, Retry_After="soon"), 1),
        (raw_answer(b'{"entities": {"Q1": {"la'), 1),
        (cut_off, 1),
    ],
)
def test_transient_failures_are_retried_after_a_wait(server, connect, clock, fault, least):
    waits = []
    client = connect(on_wait=lambda seconds, reason: waits.append((seconds, reason)))
    server.faults += [fault]
    assert label(client.api(server.url, ASK)) == "castle"
    assert least <= sum(clock.slept) <= max(2, 3 * least)
    assert len(waits) == 1
    assert server.url in waits[0][1]


def test_retry_after_is_obeyed_after_the_last_attempt(server, connect, clock):
    client = connect(retries=1)
    server.faults += [status(429, Retry_After="17")]
    with pytest.raises(AnswerError):
        client.api(server.url, ASK)
    client.api(server.url, ASK)
    assert sum(clock.slept) >= 17
    server.faults += [status(429, Retry_After="86400")]
    with pytest.raises(ServiceError, match=r"pause of 86,400 s"):
        client.api(server.url, ASK)


def test_waits_between_attempts_grow_with_jitter_up_to_a_limit(server, connect, clock):
    server.faults += [status(503)] * 9
    connect(retries=10).api(server.url, ASK)
    waits = [seconds for seconds in clock.slept if seconds > 0.5]
    assert len(waits) == 9
    for attempt, seconds in enumerate(waits):
        assert min(60, 2**attempt) <= seconds <= min(60, 2**attempt + 1)
    assert len({seconds % 1 for seconds in waits}) > 2


def test_attempts_per_request_total_retries_and_total_requests_are_limited(server, connect):
    client = connect(retries=3, max_total_retries=3)
    server.faults += [status(503)] * 5
    with pytest.raises(AnswerError) as caught:
        client.api(server.url, ASK)
    assert caught.value.kind == "http-503"
    assert len(server.log) == 3
    with pytest.raises(ServiceError, match="all retries of this run are used up"):
        client.api(server.url, ASK)
    assert len(server.log) == 5
    client = connect(request_budget=2)
    client.api(server.url, ASK)
    client.api(server.url, ASK)
    with pytest.raises(BudgetSpentError):
        client.api(server.url, ASK)
    assert (len(server.log), client.requests) == (7, 2)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (status(400), "http-400"),
        (redirect_to_self, "http-redirects"),
        (raw_answer(b"[1]"), "json"),
        (raw_answer(b"[" * 100_000), "json"),
        (api_error("badvalue", "Unrecognized value"), "api-badvalue"),
        (api_error("<b>Odd code!\x1b[31m"), "api-boddcode31m"),
        (raw_answer(b'{"error": "a text"}'), "api-unknown"),
    ],
)
def test_permanent_failures_are_not_retried(server, connect, fault, kind):
    server.faults += [fault] * 6
    with pytest.raises(AnswerError) as caught:
        connect().api(server.url, ASK)
    assert caught.value.kind == kind
    assert not caught.value.passing
    assert str(caught.value).isprintable()


NO_ADDRESSES = (
    "http://[::1",
    f"http://{'a' * 300}/",
    "http://x:99999/",
    "http://169.254.169.254\\@127.0.0.1/",
)


ELSEWHERE = ("//example.org/", "http://127.0.0.1:9/", "http://wikidata.org@example.org/")


NOWHERE, OTHER = "redirects to something that is not a URL", r"redirects to another host .* which hgld does not contact"


@pytest.mark.parametrize(
    ("place", "said"),
    [*((place, NOWHERE) for place in (NO_ADDRESSES[-1], "javascript:alert(1)")), *((at, OTHER) for at in ELSEWHERE)],
    ids=lambda part: part[:14],
)
def test_redirects_to_other_hosts_are_not_followed(server, connect, place, said):
    server.faults += [lambda handler: handler.send(302, b"", Location=place)]
    client = connect()
    with pytest.raises(AnswerError, match=said) as caught:
        client.api(server.url, ASK)
    assert (caught.value.kind, caught.value.passing) == ("http-redirects", False)
    assert str(caught.value).isprintable()
    assert (len(server.log), client.requests) == (1, 1)


def test_redirects_may_change_http_to_https_only():
    assert redirect_target("http://x.org/a", "https://x.org/b") == "https://x.org/b"
    assert redirect_target("https://x.org/a", "/b?c=d") == "https://x.org/b?c=d"
    assert redirect_target("https://x.org:443/a", "https://x.org/b") == "https://x.org/b"
    for place, target in (("https://x.org/a", "http://x.org/a"), ("http://x.org:8080/", "https://x.org/")):
        with pytest.raises(RedirectError, match=r"redirects (to another host|from https to http)"):
            redirect_target(place, target)


def test_redirects_count_as_requests_and_a_pause_allows_no_burst(server, connect, clock):
    redirect = lambda handler: handler.send(301, b"", Location=handler.path)  # noqa: E731
    server.faults += [redirect] * 3
    client = connect(rate=2, request_budget=7)
    assert label(client.api(server.url, ASK)) == "castle"
    assert len(server.log) == client.requests == 4
    assert clock.now - 100 >= 1.5, "the rate limit requires three pauses"
    server.faults += [redirect] * 3
    clock.now = 200.0
    with pytest.raises(BudgetSpentError):
        client.api(server.url, ASK)
    assert len(server.log) == client.requests == 7
    assert clock.now >= 201


def test_hosts_outside_the_configured_servers_are_never_requested(server, connect):
    client = connect(contact="me@example.org")
    for ask in (lambda: client.api("http://example.org/w/api.php", ASK), lambda: client.page("http://example.org/A")):
        with pytest.raises(ConfigError, match="is not on one of this client's hosts: 127"):
            ask()
    assert not server.log


test_invalid_urls_are_refused_before_any_request = refused(
    lambda place: PoliteClient((place,)),
    [*NO_ADDRESSES, "http://wikidata..local/w/api.php", "ftp://x/"],
    ConfigError,
    "is not a URL",
)


def test_url_with_password_is_refused_without_showing_it():
    with pytest.raises(ConfigError, match=r"http://127.0.0.1/api.php' contains a user name or password") as caught:
        PoliteClient(("http://me:s3cret@127.0.0.1/api.php",))
    assert "s3cret" not in str(caught.value)


def test_http_401_403_and_404_stop_the_run(server, connect):
    for code in (401, 403, 404):
        server.faults += [status(code)]
        with pytest.raises(ServiceError, match=f"HTTP {code}: .*check the URL and --contact"):
            connect().api(server.url, ASK)
    assert len(server.log) == 3


@pytest.mark.parametrize("fault", [hang, trickle])
def test_hanging_or_trickling_server_times_out(server, fault):
    server.faults += [fault] * 2
    client = PoliteClient((server.url,), rate=1000, timeout=0.15, retries=2, sleep=lambda seconds: None)
    started = time.monotonic()
    with pytest.raises(AnswerError) as caught:
        client.api(server.url, ASK)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - started < 3


def test_response_above_the_size_limit_is_refused(server, connect, monkeypatch):
    """The limit applies to the decompressed size, because a small compressed body can hold gigabytes."""
    monkeypatch.setattr(web, "MAX_ANSWER_BYTES", 1 << 20)
    server.faults += [raw_answer(b" " * (8 << 20))]
    with pytest.raises(AnswerError) as caught:
        connect().api(server.url, ASK)
    assert caught.value.kind == "too-large"


def test_unpaired_surrogate_becomes_a_question_mark(server, connect):
    server.faults += [raw_answer(rb'{"entities": {"Q1": {"labels": {"en": {"value": "a\ud800b \ud83d\ude00"}}}}}')]
    assert label(connect().api(server.url, ASK)) == "a?b \U0001f600"


def test_page_request_returns_bytes_or_none(server, connect):
    client = connect()
    html = client.page(page_url(server.url, "Category:A", "en"))
    assert html is not None
    assert b"wdinfobox" in html
    assert client.page(page_url(server.url, "Category:None", "en")) is None
    for code in (404, 410):
        server.faults += [status(code)]
        with pytest.raises(AnswerError, match=f"HTTP {code}, but not with a MediaWiki page"):
            client.page(page_url(server.url, "Category:A", "en"))
    server.faults += [status(503)] * 8
    with pytest.raises(AnswerError, match="HTTP 503"):
        client.page(page_url(server.url, "Category:A", "en"))


test_options_that_violate_wikimedia_rules_are_refused = refused(
    lambda options: PoliteClient((COMMONS,), **options),
    [
        ({}, "rules require a contact .* --contact"),
        ({"contact": "somebody"}, "expected a mail address"),
        ({"contact": "a@b.c\r\nX-Evil: 1"}, "expected a mail address"),
        ({"contact": "a@b.c", "rate": 3.4}, "at most 3.33, the documented limit"),
        ({"contact": "a@b.c", "rate": 0}, "more than 0"),
    ],
    ConfigError,
)
