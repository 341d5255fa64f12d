"""A user with folders of photographs and a pretrained network evaluates, searches and audits without training."""

import re

import numpy as np
import pytest
from PIL import Image

import hgld
from tests.journeys.journey import Journey

COLORS = {
    "Äpfel rot": (200, 30, 30),
    "Zitronen & Limetten": (220, 210, 40),
    "grüner Tee": (30, 150, 60),
    "Blau_Beeren [1]": (30, 40, 180),
    "Brot": (150, 100, 50),
    "weißer Käse": (235, 230, 210),
}


def photo(color, seed):
    noise = np.random.default_rng(seed).integers(-40, 41, (60, 80, 3))
    return Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture
def folder(tmp_path):
    """A network, and untidy photographs: odd names, a broken file, a folder in a class, a text, a wrong label."""
    place = tmp_path / "Meine Fotos"
    for number, (name, color) in enumerate(COLORS.items()):
        (place / name).mkdir(parents=True)
        for seed in range(8):
            photo(color, 100 * number + seed).save(place / name / f"foto {seed}.jpg")
    (place / "Brot/kaputt.jpg").write_bytes((place / "Brot/foto 0.jpg").read_bytes()[:200])
    (place / "Brot/alt").mkdir()
    photo(COLORS["Brot"], 999).save(place / "Brot/alt/Kopie.PNG")
    (place / "Brot/verwechselt.jpg").write_bytes((place / "grüner Tee/foto 3.jpg").read_bytes())
    (place / "notizen.txt").write_text("keine Bilder")
    photo(COLORS["Zitronen & Limetten"], 1000).save(tmp_path / "neu.jpg")
    hgld.load_model("small", weights="none", size=48, device="cpu").save(tmp_path / "net")
    return tmp_path


@pytest.mark.slow
def test_plain_folder_is_evaluated_searched_and_audited_with_a_network(folder):
    journey = Journey(folder)
    said = journey.hgld("evaluate --model net --data 'Meine Fotos'")
    assert "Meine Fotos, a plain folder: 51 images, 6 classes of level0, images in folders below" in said
    assert "kaputt.jpg" in said
    found = re.search(r"\| R@1 \| ([0-9.]+) \|", said)
    assert found is not None
    assert 0.9 < float(found[1]) < 1  # the wrong label makes one or two queries fail
    said = journey.hgld("search neu.jpg --model net --data 'Meine Fotos'")
    rows = [line.split(maxsplit=2) for line in said.splitlines() if re.match(r"[0-9]+ +0\.9", line)]
    assert rows[0][2].startswith("Zitronen & Limetten")
    assert "not searched: 1" in said
    said = journey.hgld("audit --model net --data 'Meine Fotos' --out audit")
    assert "50 of 50 images judged" in said
    assert "<html" in (folder / "audit/audit.html").read_text(encoding="utf-8")
    galleries = folder.with_name(f"{folder.name}-cache") / "hgld/galleries"
    assert len(list(galleries.iterdir())) == 1  # the audit reuses the embeddings of the search
    journey.check()
