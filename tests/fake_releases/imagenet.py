"""A tiny ImageNet-1k: one folder per synset in train, a flat val, and the development kit."""

from pathlib import Path

import numpy as np
from scipy.io import savemat

from tests.fake_releases.pictures import put, put_lines

SYNSETS = ("n01440764", "n01443537", "n02123045")
# synset id: its number in the kit, which does not follow the order of ids
NUMBERS = {"n01440764": 3, "n01443537": 1, "n02123045": 2}
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
TRAIN, VAL = 3, 2  # images per synset


def make(folder: Path, seed: int = 0) -> None:
    """Write ``ILSVRC2012_img_train``, ``ILSVRC2012_img_val`` and ``ILSVRC2012_devkit_t12`` into a folder."""
    rng = np.random.default_rng(seed)
    kit, val = folder / "ILSVRC2012_devkit_t12" / "data", folder / "ILSVRC2012_img_val"
    for synset in SYNSETS:
        for number in range(TRAIN):
            put(folder / "ILSVRC2012_img_train" / synset / f"{synset}_{number * 7 + 1}.JPEG", rng)
    shown = [synset for _ in range(VAL) for synset in reversed(SYNSETS)]
    for number, _ in enumerate(shown, start=1):
        put(val / f"ILSVRC2012_val_{number:08d}.JPEG", rng)
    put_lines(kit / TRUTH, [f"{NUMBERS[synset]}" for synset in shown])
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    groups = [(1001, "n00001740", "entity")]  # the kit also lists groups of synsets, which hold no images
    rows = [(number, synset, "a word") for synset, number in NUMBERS.items()] + groups
    synsets = np.empty((len(rows), 1), dtype=kinds)
    for row, values in enumerate(rows):
        synsets[row, 0] = values
    savemat(kit / "meta.mat", {"synsets": synsets})
