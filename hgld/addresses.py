"""Web addresses: check URLs, redirects and private addresses; hide secrets in messages; read Retry-After headers."""

import ipaddress
import re
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit, urlunsplit

from hgld.errors import excerpt

LONGEST_WAIT = 1e9  # maximum of every wait, in seconds
_PORTS = {"http": 80, "https": 443}
HTTP = tuple(_PORTS)  # supported URL schemes
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # IPv6 prefix of translated public IPv4 addresses (RFC 6052)
# IPv6 prefix of translated IPv4 addresses in local networks (RFC 8215)
_TRANSLATED_INSIDE = ipaddress.IPv6Network("64:ff9b:1::/48")
_INSIDE = (".localhost", ".local", ".internal", ".lan", ".home.arpa")  # names that no public server can have


class RedirectError(ValueError):
    """A redirect that hgld does not follow; the text states its target and the reason."""


def is_http_address(url: str) -> bool:
    """Tell whether a text is an http(s) URL with a valid host name and port."""
    try:
        parts = urlsplit(url)
        # both raise ValueError if the host or port is invalid
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    # urllib reads "http://a\\@b/" as host b, but urllib3, which connects, reads host a
    return parts.scheme in _PORTS and host != b"" and "\\" not in parts.netloc


def without_secrets(url: str) -> str:
    """Return a URL for messages: without user, password and query, which may hold keys.

    >>> without_secrets("https://me:word@host:8000/data/?signature=x")
    'https://host:8000/data'
    """
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # the text is not a URL
        return "://".join(part.rpartition("@")[2] for part in url.partition("?")[0].split("://"))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def redirect_target(place: str, location: str, allowed: Collection[str] = ()) -> str:
    """Return the URL to which a redirect leads.

    A redirect is allowed if it stays on the same host and port with the same scheme, or changes only from http to
    https. A redirect to a host in ``allowed`` is allowed too, but a redirect from https to http is never allowed.

    Args:
        place: the requested URL.
        location: the ``Location`` header of the response, as ``http.client`` reads it (Latin-1).
        allowed: further hosts to which a redirect may lead, each as ``host`` (at the scheme's default port) or
            ``host:port``.

    Raises:
        RedirectError: the redirect leads to a host that is not allowed, or its target is not an http(s) URL.
    """
    given = location.encode("latin-1", errors="replace").decode(errors="replace")
    try:
        target = urljoin(place, given)
    except ValueError:
        target = ""
    if not is_http_address(target):
        raise RedirectError(f"redirects to something that is not a URL ({excerpt(without_secrets(given))})")
    here, there = _origin(place), _origin(target)
    if there == here or (here[0::2] == ("http", 80) and there == ("https", here[1], 443)):
        return target
    shown = excerpt(without_secrets(target))
    if (here[0], there[0]) == ("https", "http"):
        raise RedirectError(f"redirects from https to {shown}, which is not encrypted")
    names = {f"{there[1]}:{there[2]}", *([there[1]] if there[2] == _PORTS[there[0]] else [])}
    if names.isdisjoint(host.lower() for host in allowed):
        raise RedirectError(
            f"redirects to another host ({shown}), which hgld does not contact; use that URL if you trust it"
        )
    return target


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


def is_private(address: str) -> bool:
    """Tell whether an IP address belongs to this machine, to a private network, or to a cloud's metadata service.

    >>> [is_private(address) for address in ("169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a00:1::", "8.8.8.8")]
    [True, True, True, False]
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return not found.is_global
    inner = found.ipv4_mapped or found.sixtofour
    if found in _TRANSLATED:
        inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return not (inner or found).is_global or found.is_site_local or found in _TRANSLATED_INSIDE


def names_private(host: str, allowed: Collection[str] = ()) -> bool:
    """Tell whether a host's name shows that the user meant a private address.

    >>> [names_private(host) for host in ("10.0.0.7", "::1", "localhost", "store", "store.lan", "data.example.org")]
    [True, True, True, True, True, False]
    """
    host = host.strip("[]").lower()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_INSIDE) or host in {name.lower() for name in allowed}
    return True


def retry_after(value: str) -> float:
    """Return the seconds that a Retry-After header asks for (a number or an HTTP date); 0 if the value is invalid.

    >>> retry_after("120"), retry_after("9" * 5000), retry_after("soon")
    (120.0, 1000000000.0, 0.0)
    """
    value = value.strip()
    if re.fullmatch(r"[0-9]+", value):
        # ten digits or more exceed the limit, so int() need not parse them
        return float(value) if len(value) < 10 else LONGEST_WAIT
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # the date contains impossible numbers
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - datetime.now(UTC)).total_seconds()), LONGEST_WAIT)
