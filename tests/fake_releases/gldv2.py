"""A tiny Google Landmarks v2 with all 620 tars; the first few tars per set hold images."""

import csv
import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hgld.pipelines.shards.sources.gldv2 import TARS, checksum_name, tar_name
from tests.fake_releases.pictures import jpeg

COMMONS = "http://commons.wikimedia.org/wiki/Category:"
LANDMARKS = (  # (title, name, group, top); None: no hierarchical labels
    ("Chartres Cathedral", "cathedral", "church", "human-made"),
    ("Notre-Dame de Paris", "cathedral", "church", "human-made"),
    ("Neuschwanstein", "castle", "castle", "human-made"),
    ("Lake Como", "lake", "lake", "natural"),
    ("Half Dome", None, None, None),
    ("Lago di Garda, \"Benaco\"", "lake", "lake", "natural"),
)  # fmt: skip
IMAGES = {"train": 4, "index": 3}  # images per landmark
FULL_TARS = {"train": 3, "index": 2, "test": 1}  # number of tars with images per set
QUERIES = {"Public": 2, "Private": 2, "Ignored": 3}


def make(folder: Path, seed: int = 0) -> None:
    """Write tars, checksums and lists into a folder, as ``hgld download gldv2`` leaves them."""
    rng = np.random.default_rng(seed)
    images = {name: [[_image_id(rng) for _ in range(count)] for _ in LANDMARKS] for name, count in IMAGES.items()}
    tests = [_image_id(rng) for _ in range(sum(QUERIES.values()))]
    flat = {name: [image for group in groups for image in group] for name, groups in images.items()} | {"test": tests}
    for name, ids in flat.items():
        _write_tars(folder, name, sorted(ids), rng)
    metadata = folder / "metadata"
    metadata.mkdir()
    for name, offset in (("train", 100), ("index", 0)):
        _write_labels(metadata, name, offset)
    clean = [[100 + n, " ".join(ids)] for n, ids in enumerate(images["train"])]
    _write_csv(metadata / "train_clean.csv", ["landmark_id", "images"], clean)
    owners = [[image, n] for n, ids in enumerate(images["index"]) for image in ids]
    _write_csv(metadata / "index_image_to_landmark.csv", ["id", "landmark_id"], sorted(owners))
    _write_csv(metadata / "test.csv", ["id"], [[image] for image in tests])
    _write_solution(folder, tests, images["index"])


def leave_empty_tars_out(patch: pytest.MonkeyPatch) -> None:
    """Reduce the release to the tars that hold images."""
    for split, tars in FULL_TARS.items():
        patch.setitem(TARS, split, tars)


def _image_id(rng: np.random.Generator) -> str:
    return rng.bytes(8).hex()


def _write_tars(folder: Path, name: str, ids: list[str], rng: np.random.Generator) -> None:
    (folder / name).mkdir()
    (folder / "md5sum" / name).mkdir(parents=True)
    for number in range(TARS[name]):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for image in ids[number :: FULL_TARS[name]] if number < FULL_TARS[name] else ():
                data = jpeg(rng)
                member = tarfile.TarInfo(f"./{image[0]}/{image[1]}/{image[2]}/{image}.jpg")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        data = buffer.getvalue()
        path = folder / tar_name(name, number)
        path.write_bytes(data if number < FULL_TARS[name] else data[:1024])
        digest = hashlib.md5(path.read_bytes()).hexdigest()
        (folder / checksum_name(name, number)).write_text(f"{digest}  {path.name}\n")


def _write_labels(metadata: Path, name: str, offset: int) -> None:
    categories = [[offset + n, COMMONS + title.replace(" ", "_")] for n, (title, *_) in enumerate(LANDMARKS)]
    _write_csv(metadata / f"{name}_label_to_category.csv", ["landmark_id", "category"], categories)
    columns = ["landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made"]
    labelled = [[*row, *labels] for row, (_, *labels) in zip(categories, LANDMARKS, strict=True) if labels[0]]
    _write_csv(metadata / f"{name}_label_to_hierarchical.csv", columns, labelled)


def _write_solution(folder: Path, tests: list[str], index: list[list[str]]) -> None:
    """Return the relevant images per query; the queries cover one landmark, a group, no label and two top classes."""
    relevant = [index[0], [*index[1], *index[0][:1]], index[4], [*index[2], *index[3]]]
    usages = [usage for usage, count in QUERIES.items() for _ in range(count)]
    rows = [
        [image, " ".join(relevant[n]) if usage != "Ignored" else "None", usage]
        for n, (image, usage) in enumerate(zip(tests, usages, strict=True))
    ]
    (folder / "ground_truth").mkdir()
    _write_csv(folder / "ground_truth" / "retrieval_solution_v2.1.csv", ["id", "images", "Usage"], rows)


def _write_csv(path: Path, columns: list[str], rows: Sequence[Sequence[object]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
