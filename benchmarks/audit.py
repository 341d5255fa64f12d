"""Plant wrong labels in real datasets, and find them with hgld's audit, cleanlab and kNN disagreement.

    python benchmarks/audit.py --data DIR --work DIR [--sets grocery ...] [--encoders pixels trained]
        [--seeds 0 1 2 3 4] [--rates 0.02 0.05 0.1] [--table]

DIR of --data holds ``grocery``, ``gldv2_washington`` and ``omniglot``, each with ``labels.csv`` (path, one column per
level) and ``images``. Each job plants wrong labels at one level, chosen from all classes (random) or from the classes
under the same parent (parent).

Encoder ``pixels`` is 64 principal components of 32 x 32 pixels, computed without labels. Encoder ``trained`` is the
small network, trained on the planted labels for --steps steps. All methods get the same embeddings.

Every finished measurement is a line of WORK/audit.jsonl. The same call runs only the missing measurements, and prints
Markdown tables of all finished measurements. --table only prints. The figures of a job depend only on its seed, so a
stopped call can be resumed.
"""

import argparse
import io
import time
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
import torch
from cleanlab.rank import get_label_quality_scores  # pyright: ignore[reportMissingImports]
from measured import Lines, make_parser
from PIL import Image
from quality import LEVELS
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from hgld.label_audit.wrong_labels import find_wrong_labels
from hgld.losses import NormSoftmax
from hgld.pipelines.stage import silent
from hgld.training.config import ModelConfig
from hgld.training.models.backbones import build_model

KINDS = ("random", "parent")
_SIDE, _AXES, _NEIGHBORS, _FOLDS, _BATCH = 32, 64, 20, 5, 64
Job = dict[str, Any]


# -- sets and encoders ------------------------------------------------------------------------------------------------


@cache
def pictures(data: Path, name: str) -> tuple[list[Image.Image], np.ndarray, np.ndarray]:
    """Return the images of a dataset, their finest classes (N,), and the classes at all levels (C, L)."""
    levels = LEVELS[name]
    table = pl.read_csv(data / name / "labels.csv").filter(pl.all_horizontal(pl.col(*levels) != "unclassified"))
    opened = [Image.open(io.BytesIO((data / name / path).read_bytes())).convert("RGB") for path in table["path"]]
    labels = np.stack([np.unique(table[level].to_numpy(), return_inverse=True)[1] for level in levels], axis=1)
    ancestors = np.zeros((labels[:, 0].max() + 1, len(levels)), np.int64)
    ancestors[labels[:, 0]] = labels
    return opened, labels[:, 0], ancestors


@cache
def pixels(data: Path, name: str) -> np.ndarray:
    """Return images as (N, 32, 32, 3) uint8."""
    size = (_SIDE, _SIDE)
    shown = [cv2.resize(np.asarray(one), size, interpolation=cv2.INTER_AREA) for one in pictures(data, name)[0]]
    return np.stack(shown).astype(np.uint8)


@cache
def principal_components(data: Path, name: str) -> np.ndarray:
    rows = pixels(data, name).reshape(len(pixels(data, name)), -1).astype(np.float32) / 255
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-6
    return unit(PCA(_AXES, svd_solver="covariance_eigh").fit_transform(rows))


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def trained(images: np.ndarray, classes: np.ndarray, seed: int, steps: int) -> np.ndarray:
    """Return embeddings of the small network after some steps with a normalised softmax on the planted labels."""
    torch.manual_seed(seed)
    model = build_model(ModelConfig(backbone="small", pretrained="none", dim=_AXES), image_size=_SIDE)
    criterion = NormSoftmax(int(classes.max()) + 1, _AXES)
    values = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    targets = torch.from_numpy(classes)
    groups = [{"params": model.parameters(), "lr": 2e-3}, {"params": criterion.parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [2e-3, 1e-2], total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(values), (_BATCH,), generator=generator)
        batch = torch.nn.functional.pad(values[rows], (3, 3, 3, 3), mode="reflect")
        x, y = torch.randint(7, (2,), generator=generator).tolist()
        batch = batch[:, :, y : y + _SIDE, x : x + _SIDE]
        loss = criterion(model(batch), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.inference_mode():
        return unit(torch.cat([model(part) for part in values.split(256)]).numpy())


def embedded(options: argparse.Namespace, job: Job, classes: np.ndarray) -> np.ndarray:
    if job["encoder"] == "pixels":
        return principal_components(options.data, job["set"])
    return trained(pixels(options.data, job["set"]), classes, job["seed"], options.steps)


# -- wrong labels -----------------------------------------------------------------------------------------------------


def plant_labels(classes: np.ndarray, ancestors: np.ndarray, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Change a share of the classes at the job's level; return the classes and a mask of the changed items (N,)."""
    rng, level = np.random.default_rng(job["seed"]), job["level"]
    given, changed = classes.copy(), np.zeros(len(classes), bool)
    for item in rng.permutation(len(classes)):
        if changed.sum() == round(job["rate"] * len(classes)):
            break
        own = ancestors[classes[item]]
        others = ancestors[:, level] != own[level]
        if job["kind"] == "parent" and level + 1 < ancestors.shape[1]:
            others &= ancestors[:, level + 1] == own[level + 1]
        if others.any():
            given[item] = rng.choice(np.flatnonzero(others))
            changed[item] = True
    return given, changed


def measure_labels(options: argparse.Namespace, job: Job) -> Iterator[dict[str, Any]]:
    _, classes, ancestors = pictures(options.data, job["set"])
    given, changed = plant_labels(classes, ancestors, job)
    level = job["level"]
    vectors = embedded(options, job, given)
    start = time.process_time()
    found = find_wrong_labels(vectors, given, ancestors, silent)
    seconds = time.process_time() - start
    rates = {"rates": float(found.rates[level]), "planted": float(changed.mean())}
    yield row("hgld", changed, found.wrong[:, level], seconds) | rates
    labels = ancestors[given, level]
    yield row("kNN", changed, (labels[found.neighbors] != labels[:, None]).mean(axis=1), 0.0)
    start = time.process_time()
    present, labels = np.unique(labels, return_inverse=True)
    shares = cross_validated(vectors, labels, len(present))
    scores = -get_label_quality_scores(labels, shares, method="self_confidence")
    yield row("cleanlab", changed, scores, time.process_time() - start)


def row(side: str, changed: np.ndarray, scores: np.ndarray, seconds: float) -> dict[str, Any]:
    """Return the area under the ROC curve, and the precision at the number of planted errors."""
    first = np.argsort(-scores, kind="stable")[: changed.sum()]
    area = float(roc_auc_score(changed, scores))
    return {"side": side, "auroc": area, "precision": float(changed[first].mean()), "seconds": round(seconds, 1)}


def cross_validated(vectors: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Return cross-validated probabilities (N, C) of a logistic regression, as in cleanlab's guide."""
    rows = (vectors - vectors.mean(axis=0)) / vectors.std(axis=0)
    shares = np.zeros((len(rows), count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides warnings about small classes and about the iteration limit
        for seen, left in StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(rows, labels):
            model = LogisticRegression(max_iter=100).fit(rows[seen], labels[seen])
            shares[np.ix_(left, model.classes_)] = model.predict_proba(rows[left])
    return shares


# -- plan, run, tables ------------------------------------------------------------------------------------------------


def plan(options: argparse.Namespace) -> Iterator[Job]:
    for seed, name, encoder in product(options.seeds, options.sets, options.encoders):
        known = {"part": "labels", "set": name, "seed": seed, "encoder": encoder}
        known |= {"steps": options.steps} if encoder == "trained" else {}
        for rate, level in product(options.rates, range(len(LEVELS[name]))):
            # The coarsest level has one root, so the kind parent would equal the kind random.
            for kind in KINDS[: 1 if level + 1 == len(LEVELS[name]) else 2]:
                yield {**known, "rate": rate, "level": level, "kind": kind}


def run(options: argparse.Namespace, lines: Lines) -> None:
    for job in plan(options):
        if lines.get({"job": job}) is None:
            results = list(measure_labels(options, job))
            lines.add({"job": job, "results": results})
            print(job, {name: value for name, value in results[0].items() if name != "side"}, flush=True)


def tables(lines: list[dict[str, Any]]) -> Iterator[pl.DataFrame]:
    """Yield a table of means over the seeds, the differences to the other methods, and the estimated rates."""
    rows = [line["job"] | result for line in lines if line["job"]["part"] == "labels" for result in line["results"]]
    table = pl.DataFrame(rows, infer_schema_length=None)
    figures = pl.col("rate", "auroc", "precision", "seconds", "rates", "planted").mean().round(3)
    by = table.group_by("set", "encoder", "level", "kind", "side", maintain_order=True)
    yield by.agg(figures, seeds=pl.col("seed").n_unique())
    yield _differences(table)
    own = table.filter(side="hgld")
    yield own.group_by("set", "rate", maintain_order=True).agg(pl.col("rates").mean().round(3))


def _differences(table: pl.DataFrame) -> pl.DataFrame:
    """Return paired differences of hgld to the other methods, in per cent, with 95% bootstrap intervals."""
    rng, rows = np.random.default_rng(0), []
    for encoder, side in product(table["encoder"].unique(maintain_order=True), table["side"].unique()):
        for name in ("auroc", "precision"):
            both = [table.filter(encoder=encoder, side=one)[name].to_numpy() for one in ("hgld", side)]
            gains = 100 * (both[0] - both[1])
            drawn = gains[rng.integers(len(gains), size=(2000, len(gains)))].mean(axis=1)
            low, high = np.quantile(drawn, [0.025, 0.975]).round(1)
            mean, behind = round(gains.mean(), 1), int((gains < 0).sum())
            rows.append((encoder, side, name, mean, low, high, len(gains), behind, round(gains.min(), 1)))
    columns = ("encoder", "against", "value", "difference", "low", "high", "measurements", "behind", "worst")
    return pl.DataFrame(rows, schema=columns, orient="row").filter(pl.col("against") != "hgld")


def main() -> None:
    seeds, rates = [0, 1, 2, 3, 4], [0.02, 0.05, 0.1]
    parser = make_parser(__doc__, data=Path, work=Path, seeds=seeds, rates=rates, steps=400)
    parser.add_argument("--sets", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--encoders", nargs="+", choices=("pixels", "trained"), default=["pixels", "trained"])
    parser.add_argument("--table", action="store_true", help="print finished measurements, run nothing")
    options = parser.parse_args()
    lines = Lines(options.work / "audit.jsonl", ("job",))
    if not options.table:
        run(options, lines)
    with pl.Config(
        tbl_formatting="ASCII_MARKDOWN", tbl_rows=-1, tbl_cols=-1, tbl_hide_column_data_types=True, tbl_width_chars=400
    ):
        for table in tables(list(lines.rows.values())):
            print(table, end="\n\n")


if __name__ == "__main__":
    main()
