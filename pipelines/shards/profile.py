"""Profile of the user's own images before they are built: images, classes, broken files, and proposed splits."""

import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import HgldError, ImageError, excerpt, quoted
from hgld.files import is_file
from hgld.settings import options_of

from .build import with_options
from .catalog import Catalog
from .catalog_changes import default_parts
from .config import ShardConfig, SourceConfig
from .examine import read_images
from .reading import checked_image
from .sources.own_images import OwnImages, merge_spellings, plain_name, read_own_images

_MOST_DECODED = 500  # maximum number of images that the profile decodes; the build decodes all
_SHORTEST_MERGED = 3  # minimum number of letters of merged names, because A and a may be two classes


@dataclass(frozen=True)
class Profile:
    """The user's own images, and how they would be built.

    Attributes:
        images: the images that were read.
        options: options to read them with, including the proposed levels and splits.
        catalog: catalog that would be built; None if it cannot be built.
        problem: reason why the catalog cannot be built; empty: it can be built.
        missing: paths of listed files that do not exist.
        decoded: number of images that were decoded.
        broken: path and reason of every image that could not be decoded.
    """

    images: OwnImages
    options: SourceConfig
    catalog: Catalog | None
    problem: str
    missing: tuple[str, ...]
    decoded: int
    broken: tuple[tuple[str, str], ...]


def profile(kind: str, source: Path, options: SourceConfig, *, is_final: bool) -> Profile:
    """Read the user's own images, decode some, and propose values for omitted options: folder, levels and splits.

    Args:
        kind: ``folders`` or ``manifest``.
        source: the folder or table.
        options: options that the user gave.
        is_final: whether different spellings of a name stay different classes by default.

    Raises:
        ConfigError: options contradict each other, the folders or the table's columns.
        InputError: there are no images, or the table cannot be read or contradicts itself about an image.
    """
    images = read_own_images(kind, source, options)
    if kind == "manifest":
        stated = tuple(level if level == name else f"{level}={name}" for level, name in images.columns.items())
        is_elsewhere = not images.image_column and images.root != source.parent
        options = replace(options, levels=stated, images=images.root if is_elsewhere else options.images)
    names = [plain_name(next(iter(counts))) for _, counts in images.spellings]
    if names and not is_final and min(map(len, names)) >= _SHORTEST_MERGED:
        options = replace(options, merge_spellings=True)
    if options.merge_spellings:
        images = merge_spellings(images)
    if not images.has_splits and options.test_classes is None and options.val_classes is None:
        test, val = default_parts(images.items[images.levels[0]].drop_nulls().n_unique())
        options = replace(options, test_classes=test or None, val_classes=val or None)
    try:
        catalog, problem = with_options(kind, images.catalog(options), options), ""
    except HgldError as error:
        catalog, problem = None, str(error)
    files = images.items["file"].to_list()
    missing: tuple[str, ...] = ()
    if not images.image_column:
        missing = tuple(file for file in files if not is_file(images.root, file))
    lost = set(missing)
    there = [file for file in files if file not in lost]
    sample = there[:: max(1, -(-len(there) // _MOST_DECODED))]
    return Profile(images, options, catalog, problem, missing, len(sample), tuple(_broken(images, sample)))


def _broken(images: OwnImages, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the path of every image that cannot be used, and the reason."""
    found = read_images(images.root, files, images.image_column)
    with warnings.catch_warnings(action="ignore"):  # Pillow warns about odd metadata and large images
        for file, image in zip(files, found, strict=True):
            try:
                if isinstance(image, ImageError):
                    raise image
                checked_image(image)
            except ImageError as error:
                yield file, error.reason


# -- reports as text and as JSON --------------------------------------------------------------------------------------


def facts(found: Profile) -> dict[str, Any]:
    """Return a profile as JSON-ready values."""
    images, items = found.images, found.images.items
    sizes = {level: items[level].drop_nulls().value_counts()["count"] for level in images.levels}
    unlabelled = {"kept": 0, "left_out": 0}  # images without a finest label; some may show a class of val or test
    if found.catalog is not None:
        unlabelled["kept"] = found.catalog.items[found.catalog.levels[0]].null_count()
        unlabelled["left_out"] = items[found.catalog.levels[0]].null_count() - unlabelled["kept"]
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
        "spellings": [{"level": level, "names": dict(counts)} for level, counts in images.spellings],
        "left_out": dict(sorted(Counter(images.dropped["reason"]).items())),
        "missing_values": dict(images.missing),
        "files": {
            "missing": len(found.missing),
            "decoded": found.decoded,
            "broken": dict(sorted(Counter(reason for _, reason in found.broken).items())),
        },
        "splits": _splits(found.catalog),
        "without_finest_label": unlabelled,
        "problem": found.problem,
    }


def _splits(catalog: Catalog | None) -> dict[str, dict[str, int]]:
    if catalog is None:
        return {}
    classes = pl.col(catalog.levels[0]).drop_nulls().n_unique()
    counts = catalog.items.group_by("split").agg(images=pl.len(), classes=classes)
    order = {"train": 0, "val": 1}
    rows = sorted(counts.rows(named=True), key=lambda row: (order.get(row["split"], 2), row["split"]))
    return {row["split"]: {"classes": row["classes"], "images": row["images"]} for row in rows}


def text(found: Profile) -> str:
    """Describe a profile as text, in at most ten lines."""
    images, told = found.images, facts(found)
    lines = [f"{images.source}: {_number(told['images'], 'image')}; {images.form}"]
    finest, *coarser = told["levels"]
    sizes = ""
    if finest["images_per_class"]:
        least, middle, most = finest["images_per_class"]
        sizes = f" of {least:,} to {most:,} images, median {middle:,g}" if least < most else f" of {least:,} images"
    above = "".join(f"; {level['name']}, {level['classes']:,}" for level in coarser)
    lines.append(f"levels, finest first: {finest['name']}, {_number(finest['classes'], 'class')}{sizes}{above}")
    if unknown := [f"{level['unknown']:,} of {level['name']}" for level in told["levels"] if level["unknown"]]:
        ways = ", ".join(f"{way or 'empty'} {count:,}" for way, count in list(images.missing.items())[:5])
        lines.append(f"unknown labels: {', '.join(unknown)}{f' (cells: {ways})' if ways else ''}")
    if images.unused:
        lines.append(f"other columns: {excerpt(', '.join(images.unused))}")
    if told["left_out"]:
        lines.append(f"excluded: {', '.join(f'{count:,} {reason}' for reason, count in told['left_out'].items())}")
    lines.append(_text_of_files(found))
    if images.spellings:
        shown = [way.items() for _, way in images.spellings[:3]]
        ways = [" / ".join(f"{quoted(name)} {count:,}" for name, count in way) for way in shown]
        rest = f" and {len(images.spellings) - 3:,} more" if len(images.spellings) > 3 else ""
        is_merged = found.options.merge_spellings
        done = "one class each" if is_merged else "several classes; --merge-spellings makes them one"
        lines.append(f"spellings: {', '.join(ways)}{rest}: {done}")
    if found.problem:
        return "\n".join([*lines, f"cannot be built: {found.problem}"])
    splits = "; ".join(
        f"{name} {_number(counts['classes'], 'class')}, {_number(counts['images'], 'image')}"
        for name, counts in told["splits"].items()
    )
    kind = "none drawn"
    if images.has_splits:
        kind = "as stated"
    elif found.options.test_classes or found.options.val_classes:
        kind = "class-disjoint"
    lines.append(f"splits, {kind}: {splits}")
    kept, out = told["without_finest_label"].values()
    if kept or out:
        why = " (may show val or test)" if out else ""
        lines.append(f"without {finest['name']}: {kept:,} stay, {out:,} are excluded{why}")
    if found.options.val_classes and found.catalog is not None:
        lines += [note for note in found.catalog.notes if "hgld calibrate" in note]
    return "\n".join(lines)


def _text_of_files(found: Profile) -> str:
    parts = []
    if found.missing:
        parts.append(f"{len(found.missing):,} of {len(found.images.items):,} missing ({excerpt(found.missing[0])})")
    if found.broken:
        reasons = Counter(reason for _, reason in found.broken)
        listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
        parts.append(f"of {found.decoded:,} sampled {listed} ({excerpt(found.broken[0][0])})")
    else:
        parts.append(f"{found.decoded:,} sampled, none broken")
    return f"files: {'; '.join(parts)}"


def _number(count: int, what: str) -> str:
    plural = "" if count == 1 else "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{plural}"


def command(found: Profile, source: Path, out: str, config: ShardConfig) -> str:
    """Return the command that builds the dataset that a profile proposes."""
    words = ["hgld", "build-shards", found.images.kind, "--source", str(source)]
    for part in (found.options, config):
        for name, option in options_of(type(part)).items():  # show only options that differ from their defaults
            value = getattr(part, name)
            if value == option.default:
                continue
            words.append(f"--{option.flag}")
            if isinstance(value, tuple):
                words.append(",".join(value))
            elif not isinstance(value, bool):
                words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return shlex.join([*words, "--out", out])
