"""Bias of MultiGrain's retrieval term if negatives beyond a distance are not drawn: Eq. 4 against the released code.

    python benchmarks/reach.py --data DIR > benchmarks/results/reach.csv

Eq. 4 of MultiGrain draws negatives at all distances (``--reach 2``); the released code draws none beyond 1.4, where a
negative costs nothing at the start. A batch has three views of 128 images. The embeddings are random directions with
noise, or 32-pixel images of DIR (``hgld.load_model("pixels")``), three random crops each, centred. A row is the mean
over seeds, with its standard deviation: distance of the drawn negatives, their share with a loss, and the term.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import polars as pl
import torch
from measured import make_parser
from PIL import Image

import hgld
from hgld.losses import Margin
from hgld.losses.pairs import draw_negatives

IMAGES, VIEWS, DRAWS = 128, 3, 20
REACHES = (1.4, 2.0)  # first the reach in the authors' code, then the reach in the paper's equation
CROP = 0.7  # side of a crop, as a share of the image's side


def directions(dim: int, seed: int) -> torch.Tensor:
    """Return (3 x 128, D) embeddings: random directions, with noise of half their length."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.standard_normal((IMAGES, dim)), VIEWS, axis=0)
    return torch.from_numpy(centres + 0.5 * rng.standard_normal(centres.shape)).float()


def crops(folder: Path, seed: int) -> torch.Tensor:
    """Return (3 x 128, D) centred pixels of random crops of random images."""
    rng = np.random.default_rng(seed)
    paths = pl.read_csv(folder / "labels.csv", infer_schema=False)["path"].to_list()
    views = []
    for number in rng.choice(len(paths), IMAGES, replace=False):
        image = Image.open(folder / paths[number]).convert("RGB")
        width, height = (int(CROP * side) for side in image.size)
        for _ in range(VIEWS):
            left, top = (int(rng.integers(0, end + 1)) for end in (image.width - width, image.height - height))
            views.append(image.crop((left, top, left + width, top + height)))
    rows = torch.as_tensor(np.asarray(hgld.load_model("pixels").encode(views)))
    return rows - rows.mean(0)


def measure(embeddings: torch.Tensor, reach: float, seed: int) -> tuple[float, float, float]:
    """Return the mean distance of the drawn negatives, their share with a loss, and the retrieval term."""
    unit = torch.nn.functional.normalize(embeddings)
    instances = torch.arange(IMAGES).repeat_interleave(VIEWS)
    distances = torch.cdist(unit, unit)
    negative = instances[:, None] != instances
    counts = torch.full((len(unit),), VIEWS - 1)
    loss = Margin(unit.shape[1], reach=reach)
    torch.manual_seed(seed)
    terms, drawn = [], torch.zeros_like(distances)
    for draw in range(DRAWS):
        terms.append(float(loss(embeddings, instances).detach()))
        drawn += draw_negatives(
            distances, counts, negative, torch.tensor(seed * DRAWS + draw), unit.shape[1], loss.cutoff, reach
        )
    costs = distances < loss.beta.item() + loss.margin
    total = drawn.sum()
    return float((drawn * distances).sum() / total), float((drawn * costs).sum() / total), float(np.mean(terms))


def main() -> None:
    told = make_parser(__doc__, data=Path, seeds=5).parse_args()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["embeddings", "dimensions", "reach", "seeds", "distance", "share with a loss", "retrieval term"])
    made = {f"random, {dim}": lambda seed, dim=dim: directions(dim, seed) for dim in (3, 10, 128, 2048)}
    made |= {name: lambda seed, name=name: crops(told.data / name, seed) for name in ("grocery", "gldv2_washington")}
    for name, make in made.items():
        batches = [make(seed) for seed in range(told.seeds)]
        for reach in REACHES:
            found = np.array([measure(batch, reach, seed) for seed, batch in enumerate(batches)])
            shown = [f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(found.mean(0), found.std(0, ddof=1), strict=True)]
            out.writerow([name.partition(",")[0], batches[0].shape[1], reach, told.seeds, *shown])


if __name__ == "__main__":
    main()
