"""Plant wrong labels in real datasets, and find them with hgld's audit, cleanlab and kNN disagreement.

    python benchmarks/audit.py --data DIR --work DIR [--sets grocery ...] [--encoders pixels trained]
        [--seeds 0 1 2 3 4] [--rates 0.02 0.05 0.1] [--parts labels classes copies] [--table]

DIR of --data holds ``grocery``, ``gldv2_washington`` and ``omniglot``, each with ``labels.csv`` (path, one column per
level) and ``images``. Each job plants one kind of error:

- wrong labels at every level, chosen from all classes (random) or from the classes under the same parent (parent)
- classes that are split in two or moved to another parent
- copies in another split: re-encoded, halved or cropped

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
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
import torch
from cleanlab.rank import get_label_quality_scores  # pyright: ignore[reportMissingImports]
from measured import Lines
from PIL import Image
from quality import LEVELS
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from hgld import audit
from hgld.label_audit.class_faults import find_class_faults
from hgld.label_audit.copies import ImageCopies
from hgld.label_audit.wrong_labels import find_wrong_labels
from hgld.losses import NormSoftmax
from hgld.training.config import ModelConfig
from hgld.training.models.backbones import build_model

KINDS = ("random", "parent")
PLANTED_CLASSES, PLANTED_PARENTS, PLANTED_COPIES = 20, 10, 50
CHANGES = ("re-encoded", "half", "crop")
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
    rows -= rows.mean(axis=0)
    _, axes = np.linalg.eigh(rows.T @ rows)
    return unit(rows @ axes[:, ::-1][:, :_AXES])


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


def silent(task: str, done: int, total: int | None) -> None:
    """Show no progress."""


# -- classes ----------------------------------------------------------------------------------------------------------


def measure_classes(options: argparse.Namespace, job: Job) -> Iterator[dict[str, Any]]:
    """Measure the audit on classes that are split in two or moved to other parents."""
    _, classes, ancestors = pictures(options.data, job["set"])
    rng, sizes = np.random.default_rng(job["seed"]), np.bincount(classes)
    pool = [int(label) for label in rng.permutation(len(ancestors)) if sizes[label] >= 8]
    count = min(PLANTED_CLASSES, len(pool) // 4)
    cut, given, tree = pool[:count], classes.copy(), ancestors.copy()
    halves = {}
    for label in cut:
        items = rng.permutation(np.flatnonzero(classes == label))
        halves[label] = len(tree)
        given[items[: len(items) // 2]] = len(tree)
        tree = np.concatenate([tree, [[len(tree), *tree[label, 1:]]]])
    moved = rng.choice(np.unique(given), PLANTED_PARENTS, replace=False)
    before = tree.copy()
    for label in moved:
        others = np.flatnonzero(before[:, 1] != before[label, 1])
        tree[label, 1:] = before[rng.choice(others), 1:]
    present, numbers = np.unique(given, return_inverse=True)
    above = np.stack([np.unique(tree[present, c], return_inverse=True)[1] for c in range(tree.shape[1])], axis=1)
    vectors = embedded(options, job, numbers)
    start = time.process_time()
    faults = [fault for fault in find_class_faults(vectors, numbers, above) if fault.level == 0]
    seconds = time.process_time() - start
    pairs = {frozenset(pair) for pair in halves.items()}
    truth = {
        "one": lambda f: frozenset((int(present[f.label]), int(present[f.other]))) in pairs,
        "parent": lambda f: int(present[f.label]) in moved,
    }
    planted = {"one": len(cut), "parent": len(moved)}
    for kind, is_planted in truth.items():
        of_kind = [fault for fault in faults if fault.kind == kind]
        scores, right = np.array([f.score for f in of_kind]), np.array([is_planted(f) for f in of_kind])
        first = np.argsort(-scores, kind="stable")[: planted[kind]]
        listed = np.array([f.probability >= 0.5 for f in of_kind])
        yield {
            "side": kind,
            "planted": planted[kind],
            "precision": float(right[first].sum() / planted[kind]),
            "auroc": float(roc_auc_score(right, scores)) if 0 < right.sum() < len(right) else float("nan"),
            "listed": int(listed.sum()),
            "listed_right": int((listed & right).sum()),
            "seconds": round(seconds, 1),
        }


# -- copies -----------------------------------------------------------------------------------------------------------


def changed_picture(picture: Image.Image, change: str, rng: np.random.Generator) -> Image.Image:
    """Return a changed copy of an image, encoded as JPEG of quality 50 to 90."""
    width, height = picture.size
    if change == "half":
        picture = picture.resize((width // 2, height // 2), Image.Resampling.LANCZOS)
    elif change == "crop":
        wide, high = round(0.95 * width), round(0.95 * height)
        left, top = int(rng.integers(width - wide + 1)), int(rng.integers(height - high + 1))
        picture = picture.crop((left, top, left + wide, top + high))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=int(rng.integers(50, 91)))
    return Image.open(out).convert("RGB")


def measure_copies(options: argparse.Namespace, job: Job) -> Iterator[dict[str, Any]]:
    """Split the finest classes into train and test, and put copies of training images into test.

    Some test images resemble training images without a planted copy (series of one scene). A separate run finds
    them, and they count neither as right nor as wrong.
    """
    opened, classes, ancestors = pictures(options.data, job["set"])
    rng = np.random.default_rng(job["seed"])
    in_train = np.isin(classes, rng.permutation(len(ancestors))[: len(ancestors) // 2])
    sources = rng.choice(np.flatnonzero(in_train), PLANTED_COPIES * len(CHANGES), replace=False)
    copies = [changed_picture(opened[s], CHANGES[i % len(CHANGES)], rng) for i, s in enumerate(sources)]
    everything = [*opened, *copies]
    labels = ancestors[np.concatenate([classes, rng.choice(classes[~in_train], len(copies))])]
    splits = ["train" if flag else "test" for flag in in_train] + ["test"] * len(copies)
    rows = np.stack([np.asarray(one.resize((12, 12)), np.float32).ravel() for one in everything])
    vectors = unit(rows - rows.mean(axis=1, keepdims=True))
    start = time.process_time()
    compared = ImageCopies(everything.__getitem__, len(everything), silent)
    found = audit(vectors, labels, levels=LEVELS[job["set"]], splits=splits, images=compared).copies
    seconds = time.process_time() - start
    pairs = dict(found.select("item", "other").iter_rows())
    hits = [pairs.get(len(opened) + i) == source for i, source in enumerate(sources.tolist())]
    own = [item for item in pairs if item < len(opened)]
    wrong = sum(item >= len(opened) for item in pairs) - sum(hits)
    for number, change in enumerate(CHANGES):
        yield {"side": change, "recall": float(np.mean(hits[number :: len(CHANGES)])), "seconds": round(seconds, 1)}
    yield {
        "side": "all",
        "recall": float(np.mean(hits)),
        "precision": sum(hits) / max(sum(hits) + wrong + len(own), 1),
        "not_planted": len(own),
        "wrong_pairs": wrong,
    }


# -- plan, run, tables ------------------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[[argparse.Namespace, Job], Iterator[dict[str, Any]]]] = {
    "labels": measure_labels,
    "classes": measure_classes,
    "copies": measure_copies,
}


def plan(options: argparse.Namespace) -> Iterator[Job]:
    for seed in options.seeds:
        for name in options.sets:
            if "copies" in options.parts:
                yield {"part": "copies", "set": name, "seed": seed}
            for encoder in options.encoders:
                known = {"set": name, "seed": seed, "encoder": encoder}
                known |= {"steps": options.steps} if encoder == "trained" else {}
                if "classes" in options.parts:
                    yield {"part": "classes", **known}
                if "labels" not in options.parts:
                    continue
                for rate in options.rates:
                    for level in range(len(LEVELS[name])):
                        # The coarsest level has one root, so the kind parent would equal the kind random.
                        for kind in KINDS[: 1 if level + 1 == len(LEVELS[name]) else 2]:
                            yield {"part": "labels", **known, "rate": rate, "level": level, "kind": kind}


def run(options: argparse.Namespace, lines: Lines) -> None:
    for job in plan(options):
        if lines.get({"job": job}) is None:
            results = list(MEASURES[job["part"]](options, job))
            lines.add({"job": job, "results": results})
            print(job, {name: value for name, value in results[0].items() if name != "side"}, flush=True)


def tables(lines: list[dict[str, Any]]) -> Iterator[pl.DataFrame]:
    """Return tables of means over the seeds, and the differences to other methods for wrong labels."""
    by = {
        "labels": ("set", "encoder", "level", "kind", "side"),
        "classes": ("set", "encoder", "side"),
        "copies": ("set", "side"),
    }
    for part, columns in by.items():
        rows = [line["job"] | result for line in lines if line["job"]["part"] == part for result in line["results"]]
        if not rows:
            continue
        table = pl.DataFrame(rows, infer_schema_length=None)
        numbers = [c for c, kind in table.schema.items() if kind.is_numeric() and c not in (*columns, "seed", "steps")]
        yield table.group_by(columns, maintain_order=True).agg(
            pl.col(numbers).mean().round(3), seeds=pl.col("seed").n_unique()
        )
        if part == "labels":
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--encoders", nargs="+", choices=("pixels", "trained"), default=["pixels", "trained"])
    parser.add_argument("--parts", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.02, 0.05, 0.1])
    parser.add_argument("--steps", type=int, default=400, help="training steps of the encoder trained")
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
