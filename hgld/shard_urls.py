"""Lists of shards: braces expanded, each shard as its folder's storage and its name there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from braceexpand import braceexpand

from hgld.errors import ConfigError
from hgld.shard_storage import ShardStorage

_MOST_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Tar:
    """A shard: the storage of its folder, and its name there."""

    storage: ShardStorage
    name: str

    @property
    def where(self) -> str:
        """Its path or URL, for messages."""
        return f"{self.storage.where}/{self.name}"


def is_shard(url: str) -> bool:
    """Whether a path or URL is of a shard, not of a folder of them.

    >>> is_shard("s3://bucket/train-{000000..000012}.tar"), is_shard("https://host/data?key=x.tar")
    (True, False)
    """
    return (urlsplit(url).path if "://" in url else url).endswith(".tar")


def expand_braces(urls: Iterable[str]) -> list[str]:
    """Every URL that the patterns mean, as bash and webdataset expand them.

    Raises:
        ConfigError: braces that do not close, or more than 100,000 shards.

    >>> expand_braces(["train-{000009..000011}.tar", "more.tar"])
    ['train-000009.tar', 'train-000010.tar', 'train-000011.tar', 'more.tar']
    """
    found: list[str] = []
    for url in urls:
        try:
            found += islice(braceexpand(url), _MOST_SHARDS + 1 - len(found))
        except ValueError as error:  # its UnbalancedBracesError
            raise ConfigError(
                f"{url!r}: a brace that does not close; expected train-{{000000..000012}}.tar."
            ) from error
        if len(found) > _MOST_SHARDS:
            raise ConfigError(f"{url!r}: more than {_MOST_SHARDS} shards. Give fewer, or a directory with an index.")
    return found


def open_tars(urls: Sequence[str], options: Mapping[str, Any] | None) -> list[Tar]:
    """The shards at the URLs or paths, in order; none is opened yet.

    Args:
        urls: braces are taken as they are.
        options: of the storages, as :class:`hgld.shard_storage.ShardStorage` takes them.

    Raises:
        ConfigError: one is not of a shard, or has a scheme that hgld does not read from.
    """
    storages: dict[str, ShardStorage] = {}
    tars = []
    for url in urls:
        if not is_shard(url):
            raise ConfigError(f"{url!r}: expected the path or URL of a shard, which ends in .tar.")
        folder, name = _folder_and_name(url)
        if folder not in storages:
            storages[folder] = ShardStorage(folder, options)
        tars.append(Tar(storages[folder], name))
    return tars


def _folder_and_name(url: str) -> tuple[str, str]:
    """A URL's query, as signed URLs have it, goes with the folder, whose storage puts it behind every name."""
    if "://" not in url:
        folder, _, name = url.rpartition("/")
        return folder or ("/" if url.startswith("/") else "."), name
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    return urlunsplit((parts.scheme, parts.netloc, folder, parts.query, "")), unquote(name)
