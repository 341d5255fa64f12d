"""A tiny iNaturalist 2018 with its retrieval split; *Prunella* is a genus of birds and also a genus of plants."""

import json
from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put, put_lines

RANKS = ("genus", "family", "order", "class", "phylum", "kingdom")
SPECIES = {  # species: super-category, then its taxonomic ranks
    "Prunella modularis": ("Aves", "Prunella", "Prunellidae", "Passeriformes", "Aves", "Chordata", "Animalia"),
    "Passer domesticus": ("Aves", "Passer", "Passeridae", "Passeriformes", "Aves", "Chordata", "Animalia"),
    "Prunella vulgaris": ("Plantae", "Prunella", "Lamiaceae", "Lamiales", "Magnoliopsida", "Tracheophyta", "Plantae"),
    "Salvia pratensis": ("Plantae", "Salvia", "Lamiaceae", "Lamiales", "Magnoliopsida", "Tracheophyta", "Plantae"),
    "Apis mellifera": ("Insecta", "Apis", "Apidae", "Hymenoptera", "Insecta", "Arthropoda", "Animalia"),
    "Bombus terrestris": ("Insecta", "Bombus", "Apidae", "Hymenoptera", "Insecta", "Arthropoda", "Animalia"),
    "Vulpes vulpes": ("Mammalia", "Vulpes", "Canidae", "Carnivora", "Mammalia", "Chordata", "Animalia"),
    "Canis latrans": ("Mammalia", "Canis", "Canidae", "Carnivora", "Mammalia", "Chordata", "Animalia"),
}
IMAGES = 3  # images per species


def make(folder: Path, seed: int = 0) -> None:
    """Write images, category lists and split files into a folder; species with even numbers are train."""
    rng = np.random.default_rng(seed)
    splits: dict[str, list[str]] = {"train": [], "test": []}
    for number, (supercategory, *_) in enumerate(SPECIES.values()):
        place = folder / "train_val2018" / supercategory / str(number)
        for _ in range(IMAGES):
            path = place / f"{rng.bytes(16).hex()}.jpg"
            put(path, rng)
            splits["test" if number % 2 else "train"].append(path.relative_to(folder).as_posix())
    for split, paths in splits.items():
        put_lines(folder / "Inat_dataset_splits" / f"Inaturalist_{split}_set1.txt", paths)
    named = [
        {"id": number, "name": name, "supercategory": facts[0], **dict(zip(RANKS, facts[1:], strict=True))}
        for number, (name, facts) in enumerate(SPECIES.items())
    ]
    (folder / "categories.json").write_text(json.dumps(named))
    hidden = [entry | {"name": str(entry["id"])} for entry in named]
    competition = {"info": {"year": 2018}, "images": [], "annotations": [], "licenses": [], "categories": hidden}
    (folder / "train2018.json").write_text(json.dumps(competition))
