"""Asking for free space before it is needed, with numbers."""

import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from hgld.errors import StorageError
from pipelines.shard_output import existing_parent

_MARGIN = 64 << 20  # for tables and whatever else is written beside the images


def check_space(needs: Mapping[Path, int]) -> None:
    """Refuse to begin what cannot end.

    Args:
        needs: bytes that will be written into each folder, which need not exist yet; folders of one disk add up.

    Raises:
        StorageError: a disk has less than is needed; says how much is there and how much is missing.
    """
    by_disk: dict[int, list[tuple[Path, int]]] = defaultdict(list)
    for folder, count in needs.items():
        by_disk[existing_parent(folder).stat().st_dev].append((folder, count))
    for places in by_disk.values():
        needed = sum(count for _, count in places) + _MARGIN
        free = shutil.disk_usage(existing_parent(places[0][0])).free
        if free < needed:
            parts = ", ".join(f"{amount(count)} in {folder}" for folder, count in places)
            raise StorageError(
                f"{places[0][0]}: {amount(free)} are free and about {amount(needed)} needed ({parts}). Free "
                f"{amount(needed - free)}, or choose a folder of another disk."
            )


def amount(count: int) -> str:
    """Bytes as people read them.

    >>> amount(999), amount(166_000_000_000)
    ('999 B', '166.0 GB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
