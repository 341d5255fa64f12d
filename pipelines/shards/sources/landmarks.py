"""Landmarks without hierarchical labels: Landmarks-clean to train on, the revisited Oxford and Paris to evaluate on."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgld.data.format import BOX
from hgld.errors import InputError, TableError, quoted

from ..catalog import DROPPED, Catalog, safe_key
from .own_images import keys_of_paths
from .release import catalog_of, find_folder, need, read_lines, relative_path, whole_number

if TYPE_CHECKING:
    from hgld.evaluation.protocols.ground_truths import RevisitedGroundTruth

    from ..config import SourceConfig

LEVELS = ("landmark",)
_ADDRESS = re.compile(r"(?i)(?:https?|ftp)://")
_LONGEST_NAME = 255  # maximum bytes of a file name on usual file systems
_LARGEST = 1 << 20  # pixels


def read_landmarks_clean(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of Landmarks-clean: photographs from image searches, cleaned by matching local features.

    Gordo, Almazán, Revaud, Larlus: "Deep Image Retrieval: Learning Global Representations for Image Search", ECCV 2016;
    the training set of listwise average precision (Revaud et al., ICCV 2019). Train and val have the same landmarks.
    Only addresses are published, and many are dead: addresses without an image in the folder are dropped with a reason.
    Layout::

        annotations_landmarks/annotation_clean_train.txt    address landmark, and maybe a box
        annotations_landmarks/annotation_clean_val.txt
        images/NAME or images/LANDMARK/NAME                 NAME: the last part of the address

    The first word of a line may also be a path below the source, as in the authors' own training code.
    """
    stated = "annotation_clean_train.txt"
    folders = (source / name for name in ("annotations_landmarks", "annotations", "."))
    folder = next((folder for folder in folders if (folder / stated).is_file()), None)
    if folder is None:
        raise InputError(
            f"{source} holds no annotations_landmarks/{stated}; expected the folder that holds the lists and images/."
        )
    paths = {split: folder / f"annotation_clean_{split}.txt" for split in ("train", "val")}
    rows = []
    for split, path in paths.items():
        for where, line in read_lines(path):
            words = line.split()
            if len(words) not in (2, 6):  # 2 words if the line has no box, 6 words with a box
                raise TableError(
                    f"{where} is {quoted(line)}; expected a URL, a landmark and, optionally, a box of four numbers."
                )
            landmark = f"{whole_number(words[1], where, 'the landmark'):03d}"
            rows.append((split, words[0], landmark, *_find(source, words[0], landmark, where)))
    columns = ("split", "stated", "landmark", "file", "reason")
    table = pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row")
    # two URLs have this file name, so the file may belong to either
    several = pl.col("file").is_not_null() & pl.col("file").is_duplicated()
    table = table.with_columns(reason=pl.when(several).then(pl.lit("ambiguous-name")).otherwise("reason"))
    items = table.filter(pl.col("reason").is_null())
    if items.is_empty():
        raise InputError(f"{source / 'images'}: none of the {len(table):,} listed images is there.")
    keys = keys_of_paths([file.removeprefix("images/") for file in items["file"]])
    dropped = table.filter(pl.col("reason").is_not_null()).select(
        "split", "reason", file="stated", detail=pl.format("landmark {}", "landmark")
    )
    items = items.select(pl.Series("key", keys), "split", "file", "landmark").rows()
    dropped = dropped.select(tuple(DROPPED))
    return catalog_of("landmarks-clean", LEVELS, items, source, paths.values(), dropped=dropped, disjoint=False)


def _find(source: Path, stated: str, landmark: str, where: str) -> tuple[str | None, str | None]:
    """Return the file of a listed image, or the reason why the image has no file."""
    if not _ADDRESS.match(stated):
        return relative_path(stated, where), None
    name = stated.rpartition("/")[2]
    if name in ("", ".", "..") or not name.isprintable() or "\\" in name or len(name.encode()) > _LONGEST_NAME:
        return None, "unusable-name"
    files = (f"images/{int(landmark)}/{name}", f"images/{name}")
    file = next((file for file in files if (source / file).is_file()), None)
    return file, None if file else "not-downloaded"


# -- revisited Oxford and Paris ---------------------------------------------------------------------------------------


def read_revisited_images(name: str, source: Path, options: "SourceConfig") -> Catalog:
    """Read revisited Oxford or Paris: the splits query (with boxes), gallery and, with ``--distractors``, distractors.

    Radenović, Iscen, Tolias, Avrithis, Chum: "Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking",
    CVPR 2018. No image has a known landmark, because file names only state the search term; judgements are ``easy``,
    ``hard`` and ``junk``. Layout::

        roxford5k/gnd_roxford5k.pkl         or rparis6k/gnd_rparis6k.pkl
        roxford5k/jpg/all_souls_000013.jpg ...
        revisitop1m/revisitop1m.txt         one path below jpg/ per line; only with --distractors
        revisitop1m/jpg/000/00000a1b2c3d.jpg ...
    """
    from hgld.evaluation.protocols.ground_truths import read_revisited  # imported here, because it imports torch

    inside = {"roxford": "roxford5k", "rparis": "rparis6k"}[name]
    folder = find_folder(source, inside, f"gnd_{inside}.pkl")
    sources = [folder / f"gnd_{inside}.pkl"]
    truth = read_revisited(sources[0])
    images = "jpg" if folder == source else f"{inside}/jpg"
    rows: list[tuple[Any, ...]] = []
    for query, corners in zip(truth.queries, truth.boxes.tolist(), strict=True):
        where = f"{sources[0]}, query {quoted(query)}"
        rows.append((safe_key(query), "query", f"{images}/{_jpg(query, where)}", *_box(corners, where)))
    for image in truth.images:
        where = f"{sources[0]}, image {quoted(image)}"
        rows.append((safe_key(image), "gallery", f"{images}/{_jpg(image, where)}", *[None] * 4))
    if options.distractors:
        sources.append(need(source / "revisitop1m" / "revisitop1m.txt"))
        for where, line in read_lines(sources[1]):
            file = relative_path(line.strip(), where)
            key = safe_key(f"revisitop1m/{file.rpartition('.')[0] or file}")
            rows.append((key, "distractors", f"revisitop1m/jpg/{file}", *[None] * 4))
    schema: dict[str, Any] = {**dict.fromkeys(("key", "split", "file"), pl.String), **dict.fromkeys(BOX, pl.Int32)}
    items = pl.DataFrame(rows, schema, orient="row").with_columns(landmark=pl.lit(None, pl.String))
    return Catalog(
        name, LEVELS, items, source, judgements=_judgements(truth), sources=tuple(sources), protocol="revisited"
    )


def _jpg(image: str, where: str) -> str:
    return relative_path(f"{image}.jpg", where)


def _box(corners: list[float], where: str) -> tuple[int, int, int, int]:
    # written with <, because NaN is not smaller than anything
    if not all(abs(corner) < _LARGEST for corner in corners):
        raise TableError(f"{where}: the box {corners} cannot be in an image.")
    # Round like PIL's crop, which the published evaluation uses.
    left, top, right, bottom = (round(corner) for corner in corners)
    if not (left < right and top < bottom):
        raise TableError(f"{where}: the box {corners} is empty; expected left, top, right, bottom.")
    return max(left, 0), max(top, 0), right, bottom


def _judgements(truth: "RevisitedGroundTruth") -> pl.DataFrame:
    rows = [
        (safe_key(query), safe_key(truth.images[index]), verdict)
        for verdict in ("easy", "hard", "junk")
        for query, indices in zip(truth.queries, getattr(truth, verdict), strict=True)
        for index in indices.tolist()
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("query", "item", "verdict"), pl.String), orient="row")
