"""From a user's own images to a dataset or report: untidy folders, an untidy table, a Hugging Face dataset."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import hgld
from tests.fake_releases.pictures import jpeg
from tests.journeys.journey import Journey

pytestmark = pytest.mark.slow

FRUIT = {"Obst": ("Äpfel", "Birnen", "Pfirsiche & Co."), "Gemüse": ("Kohl", "Rüben", "Salat")}
CLASSES = [(top, mid, f"{mid}, Sorte {i}") for top, mids in FRUIT.items() for mid in mids for i in range(8)]


def make_image(number: int, view: int) -> bytes:
    """Return an image of a class: the class has four patches, which differ a little between its views."""
    return jpeg(np.random.default_rng(1000 * number), 40 + view, 32 + view)


def splits(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["splits"]


def test_untidy_image_folders_lead_to_a_report(tmp_path):
    source = tmp_path / "Fotos"
    for number, (top, mid, fine) in enumerate(CLASSES):
        for view in range(5):
            path = source / top / mid / fine / f"Bild {view}.JPG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(make_image(number, view))
    for number, (top, mids) in enumerate(FRUIT.items()):
        (source / top / "irgendein Obst.jpg").write_bytes(make_image(900 + number, 0))
        (source / top / mids[0] / "gemischt.jpg").write_bytes(make_image(910 + number, 0))
    (source / "Obst/Äpfel/Äpfel, Sorte 0/leer.jpg").touch()
    (source / "Obst/Äpfel/Äpfel, Sorte 0/kaputt.jpg").write_bytes(make_image(0, 9)[:300])
    (source / "Liste.txt").write_text("keine Bilder")
    journey = Journey(tmp_path)
    said = journey.hgld("build-shards folders --source Fotos --yes")
    assert "3 folders deep; 4 images beside folders of images, without labels at the finest levels" in said
    assert "1 empty, 1 undecodable" in said
    found = splits(tmp_path / "Fotos-shards")
    assert sum(facts["classes"]["level0"] for facts in found.values()) == len(CLASSES)
    assert found["val"]["classes"]["level0"] >= 10
    tree = hgld.Hierarchy.from_parquet(tmp_path / "Fotos-shards" / "hierarchy.parquet")
    assert "Pfirsiche & Co." in tree.names[1]
    sources = hgld.open_dataset(tmp_path / "Fotos-shards").sources.to_list()
    assert "Obst/Äpfel/Äpfel, Sorte 0/Bild 0.JPG" in sources
    said = journey.hgld("train --data Fotos-shards --out run --epochs 1")
    assert "classes" in said
    journey.hgld("report run --out report.html")
    page = (journey.folder / "report.html").read_text(encoding="utf-8")
    assert "H-AP" in page
    journey.check()


def test_untidy_csv_table_becomes_a_dataset(tmp_path):
    lines = ["Filename;Sorte;Gruppe;Art;Preis"]
    unknown = ["", "nan", "None", "NA"]
    for number, (top, mid, fine) in enumerate(CLASSES):
        for view in range(5):
            file = tmp_path / "Bilder" / str(number) / f"{view}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(make_image(number, view))
            odd = view == 4 and number % 8 == 7
            name = unknown[number // 8 % 4] if odd else fine.upper() if (number, view) == (3, 0) else fine
            lines.append(f"{number}\\{view}.jpg;{name};{'' if odd and number == 7 else mid};{top};{number},5")
    lines += ["verloren.jpg;Kohl, Sorte 1;Kohl;Gemüse;1", lines[1]]
    (tmp_path / "Liste.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    journey = Journey(tmp_path)
    said = journey.hgld("build-shards manifest --source Liste.csv --yes")
    assert "semicolons between cells, UTF-8 with a byte order mark, paths in 'Filename'" in said
    assert "levels, finest first: Sorte, 48 classes of 4 to 6 images, median 5; Gruppe, 6; Art, 2" in said
    assert "'Äpfel, Sorte 3' 4 / 'ÄPFEL, SORTE 3' 1: one class each" in said
    found = splits(tmp_path / "Liste-shards")
    assert sum(facts["classes"]["Sorte"] for facts in found.values()) == len(CLASSES)
    assert found["val"]["classes"]["Sorte"] >= 10
    assert found["val"]["unlabelled"] == found["test"]["unlabelled"] == 0
    journey.check()


def test_hugging_face_parquet_becomes_a_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    arrow = pytest.importorskip("pyarrow")
    names = [fine for _, _, fine in CLASSES]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names), "group": datasets.Value("string")}
    made = [(number, view) for view in range(4) for number in range(len(CLASSES))]
    columns = {
        "image": [{"bytes": make_image(number, view), "path": f"{number} {view}.jpg"} for number, view in made],
        "label": [number for number, _ in made],
        "group": [CLASSES[number][1] for number, _ in made],
    }
    table = arrow.Table.from_pydict(columns, schema=datasets.Features(kinds).arrow_schema)
    datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="made").to_parquet(tmp_path / "fruit.parquet")
    journey = Journey(tmp_path)
    said = journey.hgld("build-shards manifest --source fruit.parquet --yes")
    assert "parquet of 192 rows, which hold the images" in said
    assert "levels, finest first: label, 48 classes of 4 images; group, 6" in said
    tree = hgld.Hierarchy.from_parquet(tmp_path / "fruit-shards" / "hierarchy.parquet")
    assert set(tree.names[0]) == set(names)
    frame = hgld.open_dataset(tmp_path / "fruit-shards").frame
    assert frame["source"].str.ends_with("/3 0.jpg").sum() == 1
    assert isinstance(frame, pl.DataFrame)
    journey.check()
