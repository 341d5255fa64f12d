"""From a user's own images in untidy folders to a report; tests/pipelines/test_profile.py has tables."""

import json
from pathlib import Path

import numpy as np
import pytest

import hgld
from tests.fake_releases.pictures import jpeg
from tests.journeys.journey import Journey

pytestmark = pytest.mark.slow

FRUIT = {"Obst": ("Äpfel", "Birnen", "Pfirsiche & Co."), "Gemüse": ("Kohl", "Rüben", "Salat")}
CLASSES = [(top, mid, f"{mid}, Sorte {i}") for top, mids in FRUIT.items() for mid in mids for i in range(8)]


def make_image(number, view):
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
