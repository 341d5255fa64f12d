"""A polite HTTP client for wikis: slow, identified, and obedient to the servers.

The client follows Wikimedia's rules for robots: a User-Agent with the operator's contact, one request at a time under a
rate limit, compressed answers, ``maxlag``, and waiting as long as ``Retry-After`` says.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import urllib3

from hgld.addresses import is_http_address, retry_after, without_secrets
from hgld.data.http_files import PASSING, HttpClient, HttpLimits, RemoteFault, retry
from hgld.errors import ConfigError, InputError, ServiceError, excerpt, quoted
from hgld.files import parse_json
from hgld.version import __version__

# Wikimedia documents these limits for anonymous readers: 200 API requests per minute, under 20 pages per second.
API_RATE = 200 / 60
PAGE_RATE = 19.0
MAX_ANSWER_BYTES = 64 << 20
MAX_PATIENCE = 900.0
_MAXLAG = "5"  # seconds of database lag above which an API may reject requests; Wikimedia recommends 5
_LONGEST_GET = 6000  # maximum characters of a URL; some proxies refuse URLs over 8 KB
_WIKIMEDIA = ("wikimedia.org", "wikidata.org", "wikipedia.org", "mediawiki.org", "wmcloud.org", "toolforge.org")
_TRANSIENT_ERRORS = ("maxlag", "ratelimited", "readonly", "internal_api_error", "timeout", "unavailable")
_MEDIAWIKI = b'content="MediaWiki '  # every page of a MediaWiki, even an error page, names its generator
_REFUSALS = {401, 403, 404, 405, 407, 410, 451}
_Answer = TypeVar("_Answer")


class AnswerError(RemoteFault):
    """A request that got no usable answer.

    Args:
        kind: short and stable name for statuses: ``timeout``, ``http-503``, ``json``, ``api-badvalue``, ...
        detail: description of the unusable answer.
        passing: whether the same request may succeed later.
        wait: seconds that the server asked us to wait.
    """

    def __init__(self, kind: str, detail: str, *, passing: bool = False, wait: float = 0.0):
        super().__init__(detail, kind=kind, passing=passing, wait=wait)


class BudgetSpentError(Exception):
    """All requests that the operator allowed have been made."""


def is_wikimedia(url: str) -> bool:
    """Tell whether an address belongs to the Wikimedia Foundation's servers."""
    host = urlsplit(url).hostname or ""
    return any(host == domain or host.endswith(f".{domain}") for domain in _WIKIMEDIA)


class PoliteClient:
    """A client that makes one request at a time, under a rate limit and with patience for busy servers.

    Args:
        endpoints: URLs of the servers. The client never sends a request to another host, even after a redirect.
        contact: mail address or page of the operator; required for Wikimedia's servers.
        rate: maximum number of requests per second, retries included.
        documented_rate: number of requests per second that Wikimedia's documentation allows.
        timeout: seconds for a whole answer.
        retries: maximum number of attempts per answer.
        max_total_retries: maximum number of retries in the whole run.
        request_budget: maximum number of requests in the whole run; 0: no limit.
        clock: function that returns seconds that never decrease (``time.monotonic``).
        sleep: function that waits a number of seconds.
        on_wait: function called before each wait between attempts, with the wait's seconds and its reason.

    Raises:
        ConfigError: an endpoint is not an http(s) URL, the contact is missing or malformed, or the rate is too high.
    """

    def __init__(
        self,
        endpoints: tuple[str, ...],
        *,
        contact: str = "",
        rate: float = 3.0,
        documented_rate: float = API_RATE,
        timeout: float = 30.0,
        retries: int = 8,
        max_total_retries: int = 2000,
        request_budget: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_wait: Callable[[float, str], None] = lambda seconds, reason: None,
    ):
        _check(endpoints, contact, rate, documented_rate)
        self.requests = 0
        # the contact is sent to no other host
        self._hosts = sorted({urlsplit(url).hostname or "" for url in endpoints})
        self._reached: set[str] = set()
        self._interval, self._timeout = 1 / rate, timeout
        self._attempts, self._retries_left, self._budget = retries, max_total_retries, request_budget
        self._clock, self._sleep, self._on_wait = clock, sleep, on_wait
        self._next_start = clock()
        limits = HttpLimits(headers=timeout, silence=timeout, whole=timeout, slowest=math.inf)
        agent = f"hgld/{__version__} ({contact or 'no contact given'})"
        self._client = HttpClient(limits, {"User-Agent": agent, "Accept-Encoding": "gzip"}, allow_private=None)

    def api(self, url: str, params: Mapping[str, str]) -> dict[str, Any]:
        """Return the answer of an action API, with retries while the failure looks transient.

        Raises:
            AnswerError: this request got no usable answer.
            ServiceError: the server refuses all requests, or asks for a very long wait.
            BudgetSpentError: all requests of the budget are used.
        """
        asked = {**params, "format": "json", "formatversion": "2", "maxlag": _MAXLAG}
        return self._retry(lambda: self._ask_api(url, asked))

    def page(self, url: str) -> bytes | None:
        """Return a page's HTML; None if MediaWiki has no such page. It raises the same errors as :meth:`api`."""
        return self._retry(lambda: self._ask_page(url))

    def post_json(
        self,
        url: str,
        content: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        secret: str = "",
    ) -> dict[str, Any]:
        """Post a JSON object and return the JSON object of the answer, with retries while a failure looks transient.

        Args:
            url: URL to post to; redirects are not followed.
            content: a JSON-ready object.
            headers: headers that identify the user to the URL's host.
            secret: a text that no error shows, even if the server repeats it.

        Raises:
            AnswerError: this request got no usable answer.
            ServiceError: the server refuses all requests, or asks for a very long wait.
            BudgetSpentError: all requests of the budget are used.
        """
        sent = {"Content-Type": "application/json", **(headers or {})}

        def ask() -> dict[str, Any]:
            status, found, body = self._send("POST", url, json.dumps(content).encode(), sent)
            if status != 200:
                hidden = body.replace(secret.encode(), b"[secret]") if secret else body
                raise AnswerError(
                    f"http-{status}",
                    f"{url} responded with HTTP {status}: {excerpt(hidden)}",
                    passing=_is_transient(status),
                    wait=retry_after(found.get("Retry-After", "")),
                )
            return _json_object(url, body)

        return self._retry(ask)

    def _ask_api(self, url: str, params: dict[str, str]) -> dict[str, Any]:
        query = urlencode(params)
        if len(query) > _LONGEST_GET:
            # The header lets any data centre answer a long read. Wikimedia refuses GET requests with this header.
            promise = {"Promise-Non-Write-API-Action": "true", "Content-Type": "application/x-www-form-urlencoded"}
            status, headers, body = self._send("POST", url, query.encode(), promise)
        else:
            status, headers, body = self._send("GET", f"{url}{'&' if '?' in url else '?'}{query}")
        patience = retry_after(headers.get("Retry-After", ""))
        if status != 200:
            raise _http_error(url, status, body, patience)
        answer = _json_object(url, body)
        if "error" in answer:
            raise _api_error(url, answer["error"], patience)
        return answer

    def _ask_page(self, url: str) -> bytes | None:
        status, headers, body = self._send("GET", url)
        if status in {404, 410}:
            if _MEDIAWIKI in body:
                return None
            raise AnswerError(f"http-{status}", f"{url} responded with HTTP {status}, but not with a MediaWiki page")
        if status != 200:
            raise _http_error(url, status, body, retry_after(headers.get("Retry-After", "")))
        return body

    def _send(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and follow its redirects, each under the rate limit; return status, headers and whole body."""
        parts = urlsplit(url)
        shown = without_secrets(url)
        if (parts.hostname or "") not in self._hosts:
            raise ConfigError(f"{shown} is not on one of this client's hosts: {', '.join(self._hosts)}.")
        try:
            with self._client.request(
                url, method=method, body=body, own=headers, before_each=lambda place: self._wait_turn()
            ) as response:
                self._reached.add(parts.netloc)
                return response.status, response.headers, self._body(response, shown)
        except AnswerError:
            raise
        except RemoteFault as fault:
            kind = {"unreachable": "connection", "redirects": "http-redirects"}.get(fault.kind, fault.kind)
            said = f"no complete answer in {self._timeout:g} s" if kind == "timeout" else str(fault)
            # A server that never answered has a wrong address, or there is no network. Report that without retries.
            passing = fault.passing and (kind != "connection" or parts.netloc in self._reached)
            raise AnswerError(kind, f"{shown}: {said}", passing=passing) from None

    def _wait_turn(self) -> None:
        """Wait until the rate allows the next request, and count it."""
        if self._budget and self.requests >= self._budget:
            raise BudgetSpentError
        now = self._clock()
        if now < self._next_start:
            self._sleep(self._next_start - now)
        self._next_start = max(now, self._next_start) + self._interval
        self.requests += 1

    def _body(self, response: urllib3.BaseHTTPResponse, shown: str) -> bytes:
        """Return the decoded body; its size is limited, because a small compressed body can hold gigabytes."""
        body = bytearray()
        while chunk := response.read1(1 << 16, decode_content=True):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise AnswerError("too-large", f"{shown} sent more than {MAX_ANSWER_BYTES >> 20} MiB")
        return bytes(body)

    def _retry(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return retry(
                ask,
                attempts=self._attempts,
                first_wait=1.0,
                longest_wait=60.0,
                sleep=self._sleep,
                before_wait=self._before_waiting,
            )
        except AnswerError as error:
            if error.passing and error.wait:  # no attempt is left, but the server still asks for a pause
                _refuse_impatience(error)
                self._next_start = max(self._next_start, self._clock() + error.wait)
            raise

    def _before_waiting(self, seconds: float, fault: RemoteFault) -> None:
        """Raise an error if the server asks for too long a wait or no retries are left; else report the wait."""
        _refuse_impatience(fault)
        if not self._retries_left:
            raise ServiceError(
                f"{fault}; all retries of this run are used up. Run the same command again later: the answers so far "
                "are kept (--max-total-retries raises the number)."
            ) from fault
        self._retries_left -= 1
        self._on_wait(seconds, str(fault))


def _refuse_impatience(fault: RemoteFault) -> None:
    if fault.wait > MAX_PATIENCE:
        raise ServiceError(
            f"{fault}; the server asks for a pause of {fault.wait:,.0f} s. Run the same command then: "
            "the answers so far are kept."
        ) from fault


def _check(endpoints: tuple[str, ...], contact: str, rate: float, documented_rate: float) -> None:
    for url in endpoints:
        shown = quoted(without_secrets(url))
        if not is_http_address(url):
            raise ConfigError(f"{shown} is not a URL; expected for example https://commons.wikimedia.org/w/api.php.")
        if "@" in urlsplit(url).netloc:
            raise ConfigError(
                f"{shown} contains a user name or password, which the build's records would show. Put them into "
                "~/.netrc, from which hgld sends them, and omit them here."
            )
    if contact and (not re.fullmatch(r"[\x20-\x7e]{3,200}", contact) or not re.search(r"\S@\S|https?://\S", contact)):
        raise ConfigError(f"contact is {quoted(contact)}; expected a mail address or the URL of a page, in ASCII.")
    real = [url for url in endpoints if is_wikimedia(url)]
    if real and not contact:
        raise ConfigError(
            f"{real[0]} belongs to Wikimedia, whose rules require a contact of the person who runs a robot. Pass your "
            "mail address or web page: --contact you@example.org"
        )
    if not rate > 0 or (real and rate > documented_rate):
        raise ConfigError(
            f"rate is {rate:g} requests per second; expected more than 0"
            + (f" and at most {documented_rate:.3g}, the documented limit of {real[0]}." if real else ".")
        )


def _http_error(url: str, status: int, body: bytes, patience: float) -> AnswerError:
    """Return the error of an HTTP status other than 200; raise ServiceError for a refusal that no retry can change."""
    message = f"{url} responded with HTTP {status}: {excerpt(body)}"
    if status in _REFUSALS:
        raise ServiceError(
            f"{message}. Expected an action API (.../api.php) that hgld may read; check the URL and --contact."
        )
    if 300 <= status < 400:
        raise ServiceError(f"{url} redirects to another URL (HTTP {status}); give that URL instead.")
    return AnswerError(f"http-{status}", message, passing=_is_transient(status), wait=patience)


def _is_transient(status: int) -> bool:
    return status in PASSING or status >= 500


def _json_object(url: str, body: bytes) -> dict[str, Any]:
    try:
        answer = parse_json(body, url)
        if b"\\ud" in body.lower():  # JSON may hold half a surrogate pair, which no text file can hold
            answer = json.loads(json.dumps(answer, ensure_ascii=False).encode("utf-8", errors="replace"))
    except InputError as error:
        is_nested = isinstance(error.__cause__, RecursionError)
        raise AnswerError("json", f"{url}: response is not JSON ({excerpt(error)})", passing=not is_nested) from error
    if not isinstance(answer, dict):
        raise AnswerError("json", f"{url}: response is a {type(answer).__name__}; expected a JSON object")
    return answer


def _api_error(url: str, error: Any, patience: float) -> AnswerError:
    code = str(error.get("code", "unknown")) if isinstance(error, dict) else "unknown"
    info = str(error.get("info", "")) if isinstance(error, dict) else str(error)
    kind = re.sub(r"[^a-z0-9_-]", "", code.lower())[:40] or "unknown"
    return AnswerError(
        kind if kind == "maxlag" else f"api-{kind}",
        f"{url} responded with the API error {quoted(kind)}: {excerpt(info)}",
        passing=kind.startswith(_TRANSIENT_ERRORS),
        wait=patience,
    )
