"""Small versions of the files in the documentation: tables, images, a release, embeddings, tars."""

import csv
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl

from hgld.evaluation.postprocess import Whitening
from hgld.pipelines.hierarchy import sample
from hgld.pipelines.hierarchy.scrape.titles import category_title
from tests.fake_releases.__main__ import maker
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.pipelines.wikimedia_server import Wiki

_FRUITS = ("apple", "pear", "plum", "carrot", "leek", "beet")  # three fruits and three vegetables
# half of the classes are test and a fifth of the rest val; an audit of 164 classes would take ten times as long
KINDS, VIEWS = 60, 4
_DIMENSIONS = 16
_FIRST_ITEM = 900_000_000  # item ids must differ from class ids, so they are larger


def write_documented_files(folder: Path, decisions: Iterable[str]) -> None:
    """Write the files that exist before the first command of a document.

    Args:
        folder: empty folder.
        decisions: texts of decision files: the first one of the annotator ada, the last one of the adjudicator.
    """
    rng = np.random.default_rng(0)
    _write_landmarks(folder)
    first, *_, last = decisions
    for name, text in {
        "ada": first,
        "bob": "schema_version: 1\ndecisions: []\n",
        "decisions": first,
        "final": last,
    }.items():
        (folder / f"{name}.yaml").write_text(text)
    _write_images(folder, rng)
    maker("sop")(folder, 0)
    maker("imagenet")(folder / "ILSVRC2012", 0)
    _write_embeddings(folder, rng)
    _write_names(folder, rng)
    write_dataset(folder / "made", items_of_classes([3, 4, 2, 5]))
    (folder / "tars").mkdir()
    for tar in (folder / "made").glob("*.tar"):
        shutil.move(tar, folder / "tars")


def documented_wiki() -> Wiki:
    """Return a wiki with the landmarks and classes of the sample, and with German pages."""
    wiki = Wiki(rows={"de": "ist ein(e)"})
    for row in _rows_of("classes.csv"):
        wiki.item(row["class_id"], row["label"], P279=list(filter(None, row["parents"].split("|"))))
    for number, row in enumerate(_rows_of("landmarks.csv")):
        title = category_title(row["category"])
        if title is not None and row["class_ids"]:
            item = wiki.item(f"Q{_FIRST_ITEM + number}", title, P31=list(filter(None, row["class_ids"].split("|"))))
            wiki.category(title.removeprefix("Category:"), item)
    return wiki


def _rows_of(name: str) -> list[dict[str, str]]:
    with (Path(sample.__file__).parent / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write_landmarks(folder: Path) -> None:
    """Write the lists of GLDv2, a scraped table, and published labels."""
    landmarks = [row for row in _rows_of("landmarks.csv") if row["status"] == "found"]
    table = pl.DataFrame(landmarks).select("landmark_id", "category", supercategory="names").unique("landmark_id")
    table.sort("landmark_id").write_csv(folder / "landmarks.csv")
    lists = table.select("landmark_id", "category").head(50)
    for name in ("train.csv", "train_label_to_category.csv", "index_label_to_category.csv"):
        lists.write_csv(folder / name)
    (folder / "released").mkdir()
    released = table.select("landmark_id", hierarchical_label=pl.col("supercategory").str.split(" ").list.last())
    released.write_csv(folder / "released" / "train_label_to_hierarchical.csv")


def _write_images(folder: Path, rng: np.random.Generator) -> None:
    """Write a table of images with labels at three levels, class folders of images, and a photograph."""
    rows = []
    for kind in range(KINDS):
        fruit = _FRUITS[kind % len(_FRUITS)]
        top = "fruit" if kind % len(_FRUITS) < len(_FRUITS) // 2 else "vegetable"
        for view in range(VIEWS):
            path = Path("images") / f"{fruit} {kind}" / f"{view}.jpg"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(jpeg(rng))
            rows.append({"path": path.as_posix(), "fine": f"{fruit} {kind}", "coarse": fruit, "top": top})
            if kind < len(_FRUITS):
                place = folder / "photographs" / top / fruit / f"{fruit} {kind}" / f"{view}.jpg"
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / path, place)
    pl.DataFrame(rows).write_csv(folder / "labels.csv")
    (folder / "photo.jpg").write_bytes(jpeg(rng))


def _write_names(folder: Path, rng: np.random.Generator) -> None:
    """Write lists of arbitrary class names, predefined groups for them, and a user's embeddings of the classes."""
    kinds = ("bridge", "castle", "church", "tower", "lake", "river", "mountain", "forest")
    names = [
        f"{word} {kind}"
        for kind in kinds
        for word in ("arch", "old", "stone", "north", "hill", "king", "mill", "new", "iron")
    ]
    (folder / "names.txt").write_text("\n".join(names) + "\n")
    for table in ("names.csv", "classes.csv"):
        (folder / table).write_text("\n".join(["name", *names]) + "\n")
    (folder / "groups.csv").write_text("\n".join(["name", *kinds]) + "\n")
    np.save(folder / "means.npy", rng.normal(size=(len(names), _DIMENSIONS)).astype(np.float32))
    (folder / "means.txt").write_text("\n".join(names) + "\n")


def _write_embeddings(folder: Path, rng: np.random.Generator) -> None:
    """Write embeddings with labels in the same order, and a whitening."""

    def labels(count: int) -> pl.DataFrame:
        fine = np.arange(count) % 10
        levels = {"landmark": fine, "hierarchical_label": fine // 2, "natural_or_human_made": fine // 6}
        return pl.DataFrame(levels | {"fine": fine, "coarse": fine // 2})

    for name, count in {"test": 40, "new": 40, "query": 20, "index": 60}.items():
        np.save(folder / f"{name}.npy", rng.normal(size=(count, _DIMENSIONS)).astype(np.float32))
        labels(count).write_csv(folder / f"{name}.csv")
        labels(count).write_parquet(folder / f"{name}.parquet")
    Whitening.fit(rng.normal(size=(200, _DIMENSIONS)), fitted_on="random numbers").save(
        folder / "landmarks.safetensors"
    )
