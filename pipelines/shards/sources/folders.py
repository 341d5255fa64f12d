"""The user's own images in folders: ``top/middle/fine/image.jpg``, one level of folders a level of classes.

Where all folders at the top are named like splits (``train``, ``test``, ``query``, ``gallery``, ``val``), they are the
splits, and the classes begin below them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import ConfigError, InputError, StorageError

from ..catalog import DROPPED, Catalog
from ..class_split import draw_classes
from .image_files import (
    OWN_OPTIONS,
    check_own_protocol,
    is_image_name,
    keys_of_paths,
    own_dataset_name,
    own_protocol,
)
from .release import keep_splits, refuse_options

if TYPE_CHECKING:
    from ..config import SourceConfig

SPLIT_FOLDERS = frozenset({"train", "test", "query", "gallery", "val"})
_DEEPEST = 16
_SHOWN = 5


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of a folder tree.

    Hidden files and folders, files that are not images, those whose path is not UTF-8, and links to folders (which are
    not followed) are kept aside in ``dropped``. A folder's name is its class's; where some name of a level stands under
    two parents, the classes of that level are named by their paths instead.

    Args:
        source: the folder.
        options: ``levels`` (names, finest first; ``level_0``, ``level_1``, ... if not given), ``test_classes`` and
            ``seed``, ``splits``, ``protocol``, ``name``, ``license``, ``description``.

    Raises:
        ConfigError: options that contradict each other or the depth of the folders.
        InputError: no images, images at different depths, or no split that the protocol needs.
    """
    refuse_options(options, OWN_OPTIONS, "folders")
    protocol = own_protocol(options)
    if protocol is not None and protocol.tables:
        raise ConfigError(
            f"the protocol {options.protocol} reads {' and '.join(protocol.tables)}, which folders cannot say. "
            f"List the images in a table with the columns {', '.join(protocol.columns)}: hgld build-shards manifest."
        )
    files, dropped = find_images(source)
    splits = SPLIT_FOLDERS if protocol is None else SPLIT_FOLDERS | {*protocol.splits, *protocol.further}
    own_splits = {file.partition("/")[0] for file in files if "/" in file} <= splits
    depth = _depth(source, files) - own_splits
    levels = _level_names(source, options.levels, depth)
    if own_splits and options.test_classes:
        raise ConfigError(f"{source} has folders of splits already; leave --test-classes out.")
    columns = _classes(files, levels, skip=int(own_splits))
    splits = [file.partition("/")[0] if own_splits else "train" for file in files]
    if options.test_classes:
        drawn = draw_classes(columns[levels[0]], options.test_classes, options.seed)
        splits = ["test" if name in drawn else "train" for name in columns[levels[0]]]
    items = pl.DataFrame(
        {"key": keys_of_paths(files), "split": splits, "file": files, **columns},
        schema=dict.fromkeys(["key", "split", "file", *levels], pl.String),
    )
    catalog = Catalog(
        name=own_dataset_name(options, "folders"),
        levels=levels,
        items=keep_splits(items, options.splits, str(source)),
        root=source,
        dropped=pl.DataFrame(dropped, schema=DROPPED, orient="row"),
        disjoint=bool(options.test_classes),
        protocol=options.protocol,
    )
    return check_own_protocol(catalog)


def find_images(source: Path) -> tuple[list[str], list[tuple[str, str, str, str]]]:
    """Return the images' paths, sorted, and (file, split, reason, detail) of every other file."""
    if not source.is_dir():
        raise InputError(f"{source} is no folder; expected one with top/middle/fine/image.jpg in it.")
    files: list[str] = []
    dropped: list[tuple[str, str, str, str]] = []
    for name, reason in sorted(_walk(source, "", 0)):
        if reason:
            dropped.append((name, "", reason, ""))
        else:
            files.append(name)
    if not files:
        raise InputError(f"{source}: no images in it ({len(dropped)} other files); expected top/middle/fine/image.jpg.")
    return files, dropped


def _walk(source: Path, inside: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield every file below a folder with the reason why it is no image; the reason of an image is empty."""
    if depth > _DEEPEST:
        raise InputError(f"{source / inside}: more than {_DEEPEST} folders deep; expected one folder a level.")
    try:
        entries = list(os.scandir(source / inside))
    except OSError as error:
        raise StorageError(f"{source / inside} cannot be read ({error.strerror}).") from error
    for entry in entries:
        path = f"{inside}{entry.name}"
        readable = os.fsencode(path).decode("utf-8", errors="replace")
        if entry.name.startswith("."):
            yield readable, "hidden"
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(source, f"{path}/", depth + 1)
        elif readable != path:  # its own name, or that of a folder above it
            yield readable, "name is not UTF-8"
        elif entry.is_dir():
            yield path, "link to a folder"
        else:
            yield path, "" if is_image_name(entry.name) else "not an image"


def _depth(source: Path, files: list[str]) -> int:
    """Return the number of folders above every image."""
    first: dict[int, str] = {}
    for file in files:
        first.setdefault(file.count("/"), file)
    if len(first) > 1:
        shown = "; ".join(f"{depth} folders: {first[depth]}" for depth in sorted(first)[:_SHOWN])
        raise InputError(f"{source}: images lie at different depths ({shown}); expected one folder a level everywhere.")
    return next(iter(first))


def _level_names(source: Path, given: tuple[str, ...], depth: int) -> tuple[str, ...]:
    if depth < 1:
        raise InputError(f"{source}: its images lie in no folder; expected at least one, for the class.")
    if given and len(given) != depth:
        raise ConfigError(
            f"--levels names {len(given)} levels; the images of {source} lie in {depth} folders each. Name {depth}, "
            "finest first."
        )
    return given or tuple(f"level_{level}" for level in range(depth))


def _classes(files: list[str], levels: tuple[str, ...], skip: int) -> dict[str, list[str]]:
    """Return the class of every file at every level."""
    folders = [file.split("/")[skip:-1] for file in files]
    columns = {}
    for number, level in enumerate(levels):
        above = len(levels) - number
        paths = ["/".join(parts[:above]) for parts in folders]
        names = [parts[above - 1] for parts in folders]
        columns[level] = names if len(set(paths)) == len(set(names)) else paths
    return columns
