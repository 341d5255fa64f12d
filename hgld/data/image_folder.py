"""Images outside of shards: a plain folder of images, image files, or images in memory, listed like a dataset."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.data.format import IMAGE_SUFFIXES, Manifest, SplitFacts
from hgld.data.images import read_header
from hgld.data.storage import Ranges, ShardStorage
from hgld.errors import InputError, StorageError
from hgld.hierarchy import Hierarchy
from hgld.user_cache import KeptFolder, digest_of

SPLITS = ("train", "val", "test", "query", "gallery")  # top folders of these names are splits, not classes
ALL = "all"  # the split of a folder that has no folders for splits
_DEEPEST = 16
_SHARE_OF_LEVEL = 0.05  # a folder depth becomes a level only if at least this share of the images is that deep
_MOST_FILE_BYTES = 1 << 29
_WORKERS = 4
_HEADERS = "headers.npy"
# Size and orientation of a file with an unreadable header; decoding raises the reason.
_UNREADABLE = (1, 1, 1)


class LooseImages(ShardStorage):
    """Images outside of shards, one "shard" each: files below a folder, or encoded images in memory.

    Unreadable files are listed too: decoding them raises the error, as for damaged images in shards.

    Args:
        where: the folder; also used in messages.
        names: paths below the folder, or numbers of the images in memory.
        sizes: bytes of each image.
        contents: the images in memory; None: the images are files.

    Attributes:
        manifest: counts per split, as in a dataset directory.
        hierarchy: the tree of classes.
        frame: rows of the images, with the columns of an index.
        note: text with the numbers of images and classes in a folder; empty if the images are not from a folder.
    """

    manifest: Manifest
    hierarchy: Hierarchy
    frame: pl.DataFrame
    note = ""

    def __init__(
        self, where: str, names: Sequence[str], sizes: Sequence[int], contents: Sequence[bytes] | None = None
    ) -> None:
        self.where, self.is_local, self._contents = where, True, contents
        self.frame = pl.DataFrame({"key": names, "shard": names, "size": sizes}).with_columns(offset=0)

    def _read(self, name: str, size: int) -> bytes:
        if self._contents is not None:
            return self._contents[int(name)]
        path = Path(self.where, name)
        try:
            with path.open("rb") as file:
                data = file.read(size + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
        if len(data) != size:
            raise InputError(f"{path}: its size changed since it was listed. Open the images again.")
        return data

    def read_many(self, ranges: Ranges) -> list[bytes]:
        """Return the bytes of images, each given as (name, 0, size)."""
        return [self._read(name, size) for name, _, size in ranges]

    def _describe(
        self, name: str, classes: Mapping[str, Sequence[str | None]], splits: Sequence[str], listing: str = ""
    ) -> "LooseImages":
        """Set the manifest and the hierarchy, and add the missing index columns to the rows."""
        named = any(map(any, classes.values()))
        self.hierarchy = tree = Hierarchy.from_columns(classes) if named else Hierarchy(("level0",), ((),), ())
        columns: dict[str, Any] = {"split": splits}
        columns |= zip(("width", "height", "orientation"), self._headers(listing).T, strict=True)
        for level, names in zip(tree.levels, tree.names, strict=True):
            numbers = {name: number for number, name in enumerate(names)}
            columns[level] = [numbers.get(one or "", -1) for one in classes.get(level, [""] * len(self.frame))]
        self.frame = self.frame.with_columns(pl.Series(name, column) for name, column in columns.items())
        counts = {
            split: SplitFacts(items=items, shards=0, classes=dict.fromkeys(tree.levels, 0), unlabelled=0)
            for split, items in sorted(Counter(splits).items())
        }
        provenance = {"listing": listing} if listing else {}
        self.manifest = Manifest(name, tree.levels, 1, counts, (), provenance=provenance)
        return self

    def _headers(self, listing: str) -> np.ndarray:
        """Return (N, 3) width, height and orientation of the images; the user's cache keeps the headers of a folder."""
        kept = KeptFolder("image-headers", {"listing": listing, "where": self.where})
        headers = kept.read(lambda folder: np.load(folder / _HEADERS)) if listing else None
        if headers is None:
            with ThreadPoolExecutor(_WORKERS, "hgld headers") as pool:
                rows = list(pool.map(self._header, self.frame["key"], self.frame["size"]))
            headers = made = np.array(rows, np.int64).reshape(-1, 3)
            if listing:
                with suppress(OSError):  # if the cache cannot be written, the headers are read again next time
                    kept.write(lambda folder: np.save(folder / _HEADERS, made))
        return headers

    def _header(self, name: str, size: int) -> tuple[int, int, int]:
        try:
            found = read_header(self._read(name, size))
        except InputError:
            return _UNREADABLE
        return found.width, found.height, found.orientation


def list_folder(folder: Path) -> LooseImages:
    """List a plain folder of images, whose folders are classes; the innermost folders are the finest level.

    The number of levels is the depth that 5% of the images reach. Deeper images belong to the class above them; see
    :func:`folder_classes` for images above that depth. If all folders at the top have names of splits (train, val,
    test, query, gallery), these folders are the splits, and the folders of classes begin below them. Hidden files,
    links to folders, and files without an image's suffix are ignored.

    Args:
        folder: folder with JPEG, PNG, WebP or GIF files.

    Raises:
        InputError: the folder has no images.
        StorageError: the folder cannot be read.
    """
    root = folder.absolute()
    listed = sorted(_walk(root, "", 0))
    if not listed:
        raise InputError(
            f"{root}: found no dataset.json (so this is not a dataset) and no image ({', '.join(IMAGE_SUFFIXES)}). "
            "`hgld build-shards` makes a dataset; `hgld index` writes missing files from the shards."
        )
    paths, sizes, _ = zip(*listed, strict=True)
    parents = [path.split("/")[:-1] for path in paths]
    has_splits = {one[0] if one else "" for one in parents} <= set(SPLITS)
    splits = [one[0] if has_splits else ALL for one in parents]
    folders = [one[has_splits:] for one in parents]
    levels = [f"level{number}" for number in range(class_depth(Counter(map(len, folders))))]
    classes = folder_classes(folders, levels)
    listing = digest_of("\n".join(f"{path}\t{size}\t{changed}" for path, size, changed in listed))
    images = LooseImages(str(root), paths, sizes)._describe(root.name or "images", classes, splits, listing)
    counts = zip(images.hierarchy.levels, images.hierarchy.num_classes, strict=True)
    said = [f"{len(paths):,} images", *(f"{count:,} classes of {level}" for level, count in counts)]
    if deeper := sum(len(one) > len(classes) for one in folders):
        said.append(f"images in folders below the folder of their class: {deeper:,}")
    if unknown := next(iter(classes.values()), []).count(None):
        said.append(f"images without a finest class: {unknown:,}")
    images.note = f"{root.name}, a plain folder: {', '.join(said)}"
    return images


def list_images(images: Sequence[Path] | Sequence[bytes]) -> LooseImages:
    """List image files, or encoded images in memory, in their order; they have no classes.

    Raises:
        InputError: there are no images, or a file cannot be read or is too large.
    """
    if not images:
        raise InputError("there are no images; expected at least one.")
    contents = [image for image in images if isinstance(image, bytes)]
    paths = [image.absolute() for image in images if isinstance(image, Path)]
    names = [str(path) for path in paths] or [str(number) for number in range(len(contents))]
    sizes = [_file_size(path) for path in paths] or [len(content) for content in contents]
    listed = LooseImages("/" if paths else "memory", names, sizes, contents or None)
    return listed._describe("images", {}, [ALL] * len(names))


def _walk(root: Path, inside: str, depth: int) -> Iterator[tuple[str, int, int]]:
    """Yield the relative path, size in bytes and modification time of every file with an image's suffix."""
    if depth > _DEEPEST:
        raise InputError(f"{root / inside}: more than {_DEEPEST} folders deep; expected one folder per level.")
    try:
        with os.scandir(root / inside) as found:
            entries = [entry for entry in found if not entry.name.startswith(".")]
    except OSError as error:
        raise StorageError(f"{root / inside} cannot be read ({error.strerror or error}).") from error
    for entry in entries:
        path = f"{inside}{entry.name}"
        if os.fsencode(path).decode("utf-8", errors="replace") != path:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, f"{path}/", depth + 1)
        elif entry.name.rpartition(".")[2].lower() in IMAGE_SUFFIXES and entry.is_file():
            facts = entry.stat()
            yield path, facts.st_size, facts.st_mtime_ns


def _file_size(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    if size > _MOST_FILE_BYTES:
        raise InputError(f"{path}: {size} bytes; expected an image of at most {_MOST_FILE_BYTES}.")
    return size


def class_depth(depths: Mapping[int, int]) -> int:
    """Return the number of levels of a tree of folders: the depth that 5% of the images reach.

    Args:
        depths: number of images at each depth (number of folders above the image).
    """
    least = _SHARE_OF_LEVEL * sum(depths.values())
    return max(depth for depth in depths if sum(n for below, n in depths.items() if below >= depth) >= least)


def folder_classes(folders: Sequence[Sequence[str]], levels: Sequence[str]) -> dict[str, list[str | None]]:
    """Return for each level the class names of the images, from the folders above them; None for no class.

    An image's innermost folder is its class of the finest level; its outermost folders are its classes of the coarsest
    levels. If an image has no folder for a level in between, its class at that level is unknown. An image in a folder
    that also has folders of images has no finest class. A class has the name of its folder. If a name occurs under two
    parents at a level, the classes of that level are named by their paths.

    Args:
        folders: the folders above each image, from the top; folders deeper than the levels are ignored.
        levels: names of the levels, finest first.
    """
    folders = [tuple(one[: len(levels)]) for one in folders]
    outer = outer_folders(folders)
    names: dict[str, list[str | None]] = {}
    for number, level in enumerate(levels):
        paths = [_class_folder(one, number, len(levels), is_outer=one in outer) for one in folders]
        plain = [path.rpartition("/")[2] if path else None for path in paths]
        names[level] = plain if len(set(paths)) == len(set(plain)) else paths
    return names


def outer_folders(folders: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the folders that contain folders of images."""
    return {one[:at] for one in set(folders) for at in range(len(one))}


def _class_folder(parts: tuple[str, ...], level: int, depth: int, *, is_outer: bool) -> str | None:
    """Return the path of the folder that names an image's class at a level (0: the finest), None if it is unknown."""
    if level == 0 and not is_outer:
        return "/".join(parts) or None
    uppers = len(parts) if is_outer else len(parts) - 1  # the innermost folder names only the finest class
    return "/".join(parts[: depth - level]) if depth - level <= uppers else None
