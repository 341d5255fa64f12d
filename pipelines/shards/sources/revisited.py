"""Revisited Oxford and Paris: queries with a box, a gallery, and judgements instead of classes.

Radenović, Iscen, Tolias, Avrithis, Chum: "Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking", CVPR
2018. Layout::

    roxford5k/gnd_roxford5k.pkl         or rparis6k/gnd_rparis6k.pkl
    roxford5k/jpg/all_souls_000013.jpg ...
    revisitop1m/revisitop1m.txt         a path below jpg/ a line; only with --distractors
    revisitop1m/jpg/000/00000a1b2c3d.jpg ...
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgld.data.format import BOX
from hgld.errors import TableError, quoted

from ..catalog import Catalog, safe_key
from .release import (
    find_folder,
    keep_splits,
    need,
    read_lines,
    refuse_options,
    relative_path,
)

if TYPE_CHECKING:
    from hgld.evaluation.protocols.ground_truths import RevisitedGroundTruth

    from ..config import SourceConfig

LEVELS = ("landmark",)
DISTRACTORS = "revisitop1m"
VERDICTS = ("easy", "hard", "junk")
_LARGEST = 1 << 20  # pixels
_SCHEMA = {"key": pl.String, "split": pl.String, "file": pl.String, "landmark": pl.String} | dict.fromkeys(
    BOX, pl.Int32
)

_Row = tuple[Any, ...]  # the columns of _SCHEMA


def read_oxford(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of revisited Oxford; see :func:`_read`."""
    return _read(source, options, "roxford", "roxford5k")


def read_paris(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of revisited Paris; see :func:`_read`."""
    return _read(source, options, "rparis", "rparis6k")


def _read(source: Path, options: "SourceConfig", name: str, inside: str) -> Catalog:
    """Read the catalog of one of the two: the splits query, gallery and, if asked for, distractors.

    No image has a known landmark: file names only state the search term. Judgements are ``easy``, ``hard`` and
    ``junk``.

    Args:
        source: the benchmark's folder, or the one that holds it (and ``revisitop1m``).
        options: ``distractors`` and ``splits`` are taken.
        name: of the source.
        inside: the benchmark's folder.

    Raises:
        ConfigError: an option that the benchmark does not take.
        InputError: the ground truth is missing or damaged, or the distractors are missing.
        TableError: the list of distractors cannot be read.
    """
    from hgld.evaluation.protocols.ground_truths import read_revisited

    refuse_options(options, ("distractors",), name)
    obtain = f"Get the files as `hgld datasets {name}` says."
    folder = find_folder(source, inside, f"gnd_{inside}.pkl", obtain)
    ground_truth = folder / f"gnd_{inside}.pkl"
    truth = read_revisited(ground_truth)
    images = "jpg" if folder == source else f"{inside}/jpg"
    rows = [*_queries(truth, images, ground_truth), *_gallery(truth, images, ground_truth)]
    sources = [ground_truth]
    if options.distractors:
        sources.append(need(source / DISTRACTORS / f"{DISTRACTORS}.txt", obtain))
        rows += _distractors(sources[-1], obtain)
    items = keep_splits(pl.DataFrame(rows, schema=_SCHEMA, orient="row"), options.splits, name)
    kept = items["key"].implode()
    return Catalog(
        name=name,
        levels=LEVELS,
        items=items,
        root=source,
        judgements=_judgements(truth).filter(pl.col("query").is_in(kept) & pl.col("item").is_in(kept)),
        sources=tuple(sources),
        protocol="revisited",
    )


def _queries(truth: "RevisitedGroundTruth", images: str, ground_truth: Path) -> list[_Row]:
    rows = []
    for query, corners in zip(truth.queries, truth.boxes.tolist(), strict=True):
        where = f"{ground_truth}, query {quoted(query)}"
        if not all(abs(corner) < _LARGEST for corner in corners):  # NaN is not smaller than anything
            raise TableError(f"{where}: the box {corners} cannot lie in an image.")
        left, top, right, bottom = (round(corner) for corner in corners)  # as PIL's crop does, in which it is published
        if not (left < right and top < bottom):
            raise TableError(f"{where}: the box {corners} is empty; expected left, top, right, bottom.")
        file = relative_path(f"{query}.jpg", where)
        rows.append((safe_key(query), "query", f"{images}/{file}", None, max(left, 0), max(top, 0), right, bottom))
    return rows


def _gallery(truth: "RevisitedGroundTruth", images: str, ground_truth: Path) -> list[_Row]:
    files = [relative_path(f"{image}.jpg", f"{ground_truth}, image {quoted(image)}") for image in truth.images]
    return [
        (safe_key(image), "gallery", f"{images}/{file}", *[None] * 5)
        for image, file in zip(truth.images, files, strict=True)
    ]


def _distractors(listed: Path, obtain: str) -> Iterator[_Row]:
    for number, line in read_lines(listed, obtain):
        file = relative_path(line.strip(), f"{listed}, line {number}")
        key = safe_key(f"{DISTRACTORS}/{file.rpartition('.')[0] or file}")
        yield key, "distractors", f"{DISTRACTORS}/jpg/{file}", *[None] * 5


def _judgements(truth: "RevisitedGroundTruth") -> pl.DataFrame:
    rows = [
        (safe_key(query), safe_key(truth.images[index]), verdict)
        for verdict in VERDICTS
        for query, indices in zip(truth.queries, getattr(truth, verdict), strict=True)
        for index in indices.tolist()
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("query", "item", "verdict"), pl.String), orient="row")
