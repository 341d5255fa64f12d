"""Fetching GLDv2 from its owners: tars with their published checksums, and the lists."""

from collections.abc import Sequence
from pathlib import Path

from pipelines.download import Downloader, Fetched, RemoteFile
from pipelines.gldv2_files import (
    BASE_URL,
    MAX_CSV_BYTES,
    MAX_TAR_BYTES,
    checksum_name,
    metadata_names,
    parse_checksum,
    tar_name,
)

_MAX_CHECKSUM_BYTES = 1 << 10


def download_gldv2(
    out: Path,
    split: str,
    tars: Sequence[int],
    *,
    metadata: bool,
    downloader: Downloader,
    base_url: str = BASE_URL,
) -> list[Fetched]:
    """Fetch tars of a split, and its lists, into a folder that ``hgld build-shards gldv2`` reads.

    Args:
        out: the folder; files get the relative paths of :mod:`pipelines.gldv2_files`.
        split: ``train``, ``index`` or ``test``.
        tars: their numbers.
        metadata: whether to fetch the split's CSVs too.
        downloader: fetches the files.
        base_url: the owners' address, or a mirror's.

    Returns:
        what became of every CSV and tar.

    Raises:
        ConfigError: a tar that the split does not have.
        InputError: a published checksum cannot be read.
        ServiceError: a file could not be had, or came with other bytes than published.
        StorageError: the disk is full or cannot be written.
    """

    def remote(name: str, most_bytes: int, md5: str | None = None) -> RemoteFile:
        return RemoteFile(f"{base_url.rstrip('/')}/{name}", out / name, md5, most_bytes)

    names = {tar_name(split, number): checksum_name(split, number) for number in sorted(set(tars))}
    small = [remote(name, MAX_CSV_BYTES) for name in (metadata_names([split]) if metadata else ())]
    sums = [remote(name, _MAX_CHECKSUM_BYTES) for name in names.values()]
    fetched = downloader.fetch([*small, *sums])[: len(small)]
    published = {
        tar: parse_checksum(
            (out / name).read_text(encoding="utf-8", errors="replace"), tar.rpartition("/")[2], str(out / name)
        )
        for tar, name in names.items()
    }
    return fetched + downloader.fetch([remote(tar, MAX_TAR_BYTES, md5) for tar, md5 in published.items()])
