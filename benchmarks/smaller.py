"""Smaller embeddings: prefixes and codes of a head with and without MatryoshkaLoss, on three real sets.

    python benchmarks/smaller.py --data DIR [--sets grocery ...] [--splits 3] [--steps 400]

DIR of --data holds ``grocery``, ``gldv2_washington`` and ``omniglot``, each with ``labels.csv`` (path, a column a
level) and ``images``. The head is a layer of 64 hidden units and 64 outputs over 64 principal components of 32 x 32
pixels, so that a run takes seconds: what counts is the difference between the losses. It learns on two fifths of the
finest classes by SupHAP, by MatryoshkaLoss around it, and by that with the level above the finest for the two shortest
prefixes; printed are means over the class splits on test classes, in which every image searches the others.
"""

import argparse
from pathlib import Path

import answers
import audit as planted
import numpy as np
import torch
from torch import nn

from hgld.evaluation.compressed import code_values, prefix_values
from hgld.evaluation.options import EvaluationOptions
from hgld.losses import MatryoshkaLoss, SupHAP

DIMS = (4, 8, 16, 32, 64)
CODES = ("int8", "binary")
LOSSES = {
    "SupHAP": lambda: SupHAP(),
    "Matryoshka": lambda: MatryoshkaLoss(SupHAP(), DIMS),
    "Matryoshka, levels": lambda: MatryoshkaLoss(SupHAP(), DIMS, levels=(1, 1, 0, 0, 0)),
}
_BATCH, _IMAGES = 128, 4


def train(rows: np.ndarray, labels: np.ndarray, loss: nn.Module, steps: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.Adam(head.parameters(), lr=2e-3)
    rng = np.random.default_rng(seed)
    items = [np.flatnonzero(labels[:, 0] == c) for c in np.unique(labels[:, 0])]
    values, targets = torch.from_numpy(rows).float(), torch.from_numpy(labels)
    for _ in range(steps):
        classes = rng.choice(len(items), min(_BATCH // _IMAGES, len(items)), replace=False)
        drawn = torch.from_numpy(np.concatenate([rng.choice(items[c], _IMAGES) for c in classes]))
        value = loss(head(values[drawn]), targets[drawn])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return head


def measure(data: Path, name: str, split: int, steps: int) -> dict[str, list[dict[str, float]]]:
    """Values of each loss: of the prefixes, then of the codes."""
    _, fine, ancestors = planted.pictures(data, name)
    labels, part = ancestors[fine], answers.draw(len(ancestors), split)[fine]
    rows, levels = planted.principal_components(data, name), planted.LEVELS[name]
    metrics = [f"R@1/{levels[0]}", f"R@1/{levels[1]}", "H-AP"]
    options, found = EvaluationOptions(metrics=metrics), {}
    for loss, make in LOSSES.items():
        head = train(rows[part == 0], labels[part == 0], make(), steps, split)
        with torch.inference_mode():
            test = head(torch.from_numpy(rows[part == 2]).float())
        side = test, labels[part == 2]
        prefixes = prefix_values(side, None, DIMS, levels=levels, options=options)
        codes = code_values(side, None, CODES, levels=levels, options=options)
        found[loss] = [*prefixes.values(), *codes.values()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=list(planted.LEVELS), default=list(planted.LEVELS))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = [*(f"first {dim}" for dim in DIMS), *CODES]
    print(f"| set | loss | {' | '.join(heads)} |\n|---|---|{'---:|' * len(heads)}", flush=True)
    for name in options.sets:
        runs = [measure(options.data, name, split, options.steps) for split in range(options.splits)]
        for loss in LOSSES:
            table = np.array([[list(values.values()) for values in run[loss]] for run in runs]).mean(axis=0)
            cells = [" / ".join(f"{100 * value:.1f}" for value in row) for row in table]
            print(f"| {name} | {loss} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
