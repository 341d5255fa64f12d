"""Profile of the user's own images before they are built: images, classes, broken files, and proposed splits."""

import os
import shlex
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import HgldError, ImageError, excerpt, quoted
from hgld.settings import options_of

from .build import with_options
from .catalog import Catalog
from .catalog_changes import default_parts
from .config import MEGABYTE, ShardConfig, SourceConfig
from .image_checks import checked_image
from .reading import read_inside
from .sources.own_images import OwnImages, merge_spellings, plain_name, read_own_images
from .sources.own_tables import images_of

_MOST_DECODED = 500  # images; the build decodes all
_MOST_SUBFOLDERS = 200
_SAMPLED_PATHS = 200
_SHORTEST_MERGED = 3  # letters of a name: A and a may well be two classes


@dataclass(frozen=True)
class FileCheck:
    """Result of a look at the image files.

    Attributes:
        missing: paths of the files that are not there.
        decoded: number of images that were decoded.
        broken: path of the image and the reason, of those that could not be.
    """

    missing: tuple[str, ...]
    decoded: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Profile:
    """The user's own images, and how they would be built.

    Attributes:
        images: as they were read.
        options: for reading them, with the proposed levels and splits.
        catalog: what would be built; None if that cannot be.
        problem: why it cannot be built; empty: it can.
        files: result of a look at the files.
    """

    images: OwnImages
    options: SourceConfig
    catalog: Catalog | None
    problem: str
    files: FileCheck


def profile(kind: str, source: Path, options: SourceConfig, config: ShardConfig, *, is_final: bool) -> Profile:
    """Read the user's own images, look at their files and propose what nobody stated: folder, levels and splits.

    Args:
        kind: folders or manifest.
        source: the folder or table.
        options: as they were given.
        config: limits of the images.
        is_final: True if spellings of a name are to stay several classes, where nobody asked for one.

    Raises:
        ConfigError: options that contradict each other, the folders or the table's columns.
        InputError: no images, or a table that cannot be read or contradicts itself about an image.
    """
    images = read_own_images(kind, source, options)
    if kind == "manifest" and options.images is None and not images.image_column:
        folder = _folder_of(images)
        if folder != images.root:
            options = replace(options, images=folder)
            images = read_own_images(kind, source, options)
    if kind == "manifest":
        stated = tuple(level if level == name else f"{level}={name}" for level, name in images.columns.items())
        options = replace(options, levels=stated)
    names = [plain_name(next(iter(counts))) for _, counts in images.spellings]
    if names and not is_final and min(map(len, names)) >= _SHORTEST_MERGED:
        options = replace(options, merge_spellings=True)
    if options.merge_spellings:
        images = merge_spellings(images)
    if not images.has_splits and options.test_classes is None and options.val_classes is None:
        test, val = default_parts(images.items[images.levels[0]], options.seed)
        options = replace(options, test_classes=test or None, val_classes=val or None)
    try:
        catalog, problem = with_options(kind, images.catalog(options), options), ""
    except HgldError as error:
        catalog, problem = None, str(error)
    return Profile(images, options, catalog, problem, _look_at_files(images, config))


def _folder_of(images: OwnImages) -> Path:
    """Return the folder of the images: the table's own, or one in it that has most of the files."""
    files = images.items["file"].head(_SAMPLED_PATHS).to_list()

    def found(folder: Path) -> int:
        return sum((folder / file).is_file() for file in files)

    if found(images.root) * 2 >= len(files):
        return images.root
    inside = (path for path in sorted(images.root.iterdir()) if path.is_dir() and not path.is_symlink())
    best = max([images.root, *islice(inside, _MOST_SUBFOLDERS)], key=found)
    return best if found(best) * 2 >= len(files) else images.root


def _look_at_files(images: OwnImages, config: ShardConfig) -> FileCheck:
    files = images.items["file"].to_list()
    if images.image_column:
        table = files[0].partition("/")[0]
        rows = {int(file.split("/")[1]) - 1: file for file in files[:_MOST_DECODED] if file.startswith(f"{table}/")}
        groups = images_of(images.root / table, images.image_column, sorted(rows))
        found = ((rows[at + i], data) for at, cells in groups for i, (data, _) in enumerate(cells) if at + i in rows)
        return _decode(((file, data or b"") for file, data in found), (), config)
    missing = tuple(file for file in files if not os.path.isfile(os.path.join(images.root, file)))  # noqa: PTH113, PTH118
    lost = set(missing)
    there = [file for file in files if file not in lost]
    step = max(1, -(-len(there) // _MOST_DECODED))
    return _decode(((file, None) for file in there[::step]), missing, config, images.root)


def _decode(
    files: Iterable[tuple[str, bytes | None]], missing: tuple[str, ...], config: ShardConfig, root: Path = Path()
) -> FileCheck:
    decoded, broken = 0, []
    with warnings.catch_warnings(action="ignore"):  # Pillow warns about odd metadata and large images
        for file, stored in files:
            decoded += 1
            try:
                data = read_inside(root, file, config.max_file_mb * MEGABYTE) if stored is None else stored
                checked_image(data, None, max_pixels=config.max_pixels, resize=0, quality=config.quality)
            except ImageError as error:
                broken.append((file, error.reason))
    return FileCheck(missing, decoded, tuple(broken))


# -- reports for people and machines ----------------------------------------------------------------------------------


def facts(found: Profile) -> dict[str, Any]:
    """Return a profile for machines."""
    images, items = found.images, found.images.items
    sizes = {level: items[level].drop_nulls().value_counts()["count"] for level in images.levels}
    return {
        "source": str(images.source),
        "form": images.form,
        "root": str(images.root),
        "images": len(items),
        "levels": [
            {
                "name": level,
                "column": images.columns.get(level),
                "classes": len(counts),
                "unknown": items[level].null_count(),
                "images_per_class": [counts.min(), counts.median(), counts.max()] if len(counts) else None,
            }
            for level, counts in sizes.items()
        ],
        "unused_columns": list(images.unused),
        "missing_values": dict(images.missing),
        "spellings": [{"level": level, "names": dict(counts)} for level, counts in images.spellings],
        "left_out": dict(sorted(Counter(images.dropped["reason"]).items())),
        "files": {
            "missing": len(found.files.missing),
            "decoded": found.files.decoded,
            "broken": dict(sorted(Counter(reason for _, reason in found.files.broken).items())),
        },
        "splits": _splits(found),
        "without_finest_label": _unlabelled(found),
        "problem": found.problem,
    }


def _splits(found: Profile) -> dict[str, dict[str, int]]:
    if found.catalog is None:
        return {}
    finest = found.catalog.levels[0]
    counts = found.catalog.items.group_by("split").agg(pl.len(), pl.col(finest).drop_nulls().n_unique().alias("n"))
    order = {"train": 0, "val": 1}
    rows = sorted(counts.iter_rows(), key=lambda row: (order.get(row[0], 2), row[0]))
    return {split: {"classes": classes, "images": items} for split, items, classes in rows}


def _unlabelled(found: Profile) -> dict[str, int]:
    """Return how many images without a finest label stay, and how many are left out as they may show a held class."""
    catalog = found.catalog
    if catalog is None:
        return {"kept": 0, "left_out": 0}
    everything = found.images.items[catalog.levels[0]].null_count()
    kept = catalog.items[catalog.levels[0]].null_count()
    return {"kept": kept, "left_out": everything - kept}


def text(found: Profile) -> str:
    """Describe a profile for people, in ten lines at most."""
    images, files, told = found.images, found.files, facts(found)
    lines = [f"{images.source}: {_number(told['images'], 'image')}; {images.form}"]
    finest, *coarser = told["levels"]
    sizes = ""
    if finest["images_per_class"]:
        least, middle, most = finest["images_per_class"]
        sizes = f" of {least:,} to {most:,} images, median {middle:,g}" if least < most else f" of {least:,} images"
    above = "".join(f"; {level['name']}, {level['classes']:,}" for level in coarser)
    classes = "classes" if finest["classes"] != 1 else "class"
    lines.append(f"levels, finest first: {finest['name']}, {finest['classes']:,} {classes}{sizes}{above}")
    if unknown := [f"{level['unknown']:,} of {level['name']}" for level in told["levels"] if level["unknown"]]:
        ways = ", ".join(f"{way or 'empty'} {count:,}" for way, count in list(images.missing.items())[:5])
        lines.append(f"unknown labels: {', '.join(unknown)}{f' (cells: {ways})' if ways else ''}")
    if images.unused:
        lines.append(f"other columns: {excerpt(', '.join(images.unused))}")
    if told["left_out"]:
        lines.append(f"left out: {', '.join(f'{count:,} {reason}' for reason, count in told['left_out'].items())}")
    lines.append(_text_of_files(files, len(images.items)))
    if images.spellings:
        shown = [way.items() for _, way in images.spellings[:3]]
        ways = [" / ".join(f"{quoted(name)} {count:,}" for name, count in way) for way in shown]
        rest = f" and {len(images.spellings) - 3:,} more" if len(images.spellings) > 3 else ""
        done = "one class each" if images.is_merged else "several classes; --merge-spellings makes them one"
        lines.append(f"spellings: {', '.join(ways)}{rest}: {done}")
    if found.problem:
        return "\n".join([*lines, f"cannot be built: {found.problem}"])
    splits = "; ".join(
        f"{name} {_number(counts['classes'], 'class')}, {_number(counts['images'], 'image')}"
        for name, counts in told["splits"].items()
    )
    kind = "none drawn" if finest["classes"] > 3 else "none drawn, of fewer than four classes"
    if images.has_splits:
        kind = "as stated"
    elif found.options.test_classes or found.options.val_classes:
        kind = "no class in two"
    lines.append(f"splits, {kind}: {splits}")
    kept, out = told["without_finest_label"].values()
    if kept or out:
        why = " (may show val or test)" if out else ""
        lines.append(f"without {finest['name']}: {kept:,} stay, {out:,} left out{why}")
    if found.options.val_classes and found.catalog is not None:
        lines += [note for note in found.catalog.notes if "hgld calibrate" in note]
    return "\n".join(lines)


def _text_of_files(files: FileCheck, images: int) -> str:
    parts = []
    if files.missing:
        parts.append(f"{len(files.missing):,} of {images:,} missing ({excerpt(files.missing[0])})")
    if files.broken:
        reasons = Counter(reason for _, reason in files.broken)
        listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
        parts.append(f"of {files.decoded:,} decoded {listed} ({excerpt(files.broken[0][0])})")
    else:
        parts.append(f"{files.decoded:,} decoded, none broken")
    return f"files: {'; '.join(parts)}"


def _number(count: int, what: str) -> str:
    plural = "" if count == 1 else "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{plural}"


def command(found: Profile, source: Path, out: str, config: ShardConfig) -> str:
    """Return the command that builds what a profile proposes."""
    words = ["hgld", "build-shards", found.images.kind, "--source", str(source)]
    for part in (found.options, config):
        words += _flags(part)
    return shlex.join([*words, "--out", out])


def _flags(config: Any) -> list[str]:
    """Return the flags of the options that are not at their defaults."""
    words = []
    for name, option in options_of(type(config)).items():
        value = getattr(config, name)
        if value == option.default:
            continue
        words.append(f"--{option.flag}")
        if isinstance(value, tuple):
            words.append(",".join(value))
        elif not isinstance(value, bool):
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return words
