"""Answers: calibration errors and the risk of answering on three real sets, whose test classes are seen by nothing.

    python benchmarks/answers.py --data DIR --work DIR [--sets grocery ...] [--encoders pixels trained]
        [--splits 3] [--steps 600] [--table]

DIR of --data holds ``grocery``, ``gldv2_washington`` and ``omniglot``, each with ``labels.csv`` (path, a column a
level) and ``images``. A fifth of the finest classes is val, half of the others test, drawn anew for each split; the
encoder ``trained``, the small net, sees the rest for --steps steps, ``pixels`` (64 principal components of 32 x 32
pixels) no labels at all. The gallery is the whole set, as hgld search has it by default. Calibrated is on val; test
is measured as it is. A fifth of the cases are queries whose class is taken out of the gallery at some level.

Every finished measurement is a line of WORK/answers.jsonl; the same call makes only the missing ones, and prints the
tables (Markdown) of what is there. --table only prints.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import audit as planted
import numpy as np
import torch

from hgld.prediction.calibration import Calibration, Cases, calibrate
from hgld.prediction.predict import BOUND
from hgld.prediction.risk import calibration_error, level_risk

LEVELS = planted.LEVELS
SHARES, KNOWN_ONLY, CALIBRATED = "shares of votes", "calibrated without strange queries", "calibrated"


def draw(classes: int, split: int) -> np.ndarray:
    """The part of every finest class: 0 train, 1 val, 2 test."""
    order = np.random.default_rng(split).permutation(classes)
    val, test = np.split(order, [max(1, round(0.2 * classes))])
    parts = np.zeros(classes, np.int64)
    parts[val], parts[test[: len(test) // 2]] = 1, 2
    return parts


def embed(data: Path, name: str, encoder: str, parts: np.ndarray, split: int, steps: int) -> np.ndarray:
    if encoder == "pixels":
        return planted.principal_components(data, name)
    fine = planted.pictures(data, name)[1]
    images, train = planted.pixels(data, name), parts[fine] == 0
    classes = np.unique(fine[train], return_inverse=True)[1]
    return planted.trained(images[train], classes, split, steps, images)


def measure(data: Path, name: str, encoder: str, split: int, steps: int) -> dict[str, Any]:
    _, fine, ancestors = planted.pictures(data, name)
    labels, parts = ancestors[fine], draw(len(ancestors), split)
    rows, part = embed(data, name, encoder, parts, split, steps), parts[fine]

    def cases(wanted: int) -> Cases:
        asked = np.flatnonzero(part == wanted)
        return Cases(rows[asked], labels[asked], rows, labels, asked)

    val, test = cases(1), cases(2)
    given = (val.queries, val.labels, rows, labels)
    made, plain = (calibrate(*given, levels=LEVELS[name], self_index=val.self_index, unknown=u) for u in (0.2, 0.0))
    votes = test.votes_of(made.neighbors, made.temperature, made.unknown)
    sides = {SHARES: votes.votes.shares, KNOWN_ONLY: plain.confidences(votes.votes)}
    sides[CALIBRATED] = made.confidences(votes.votes)
    levels = {}
    for c, level in enumerate(LEVELS[name]):
        right, weights, known = votes.right[:, c], votes.weights, np.arange(len(votes.group)) < len(test.labels)
        own = made.risks["val"][c]
        risk = level_risk(level, sides[CALIBRATED][:, c], right, weights)
        levels[level] = {
            "val right": own.accuracy,
            "val ece": own.ece,
            "test right": risk.accuracy,
            "test risk": risk.area,
            "known ece": calibration_error(sides[CALIBRATED][known, c], right[known]),
            **{side: calibration_error(found[:, c], right, weights) for side, found in sides.items()},
        }
    return {"levels": levels, "depth": depths(made, sides[CALIBRATED], votes.right, len(test.labels))}


def depths(made: Calibration, confidences: np.ndarray, right: np.ndarray, queries: int) -> dict[str, list[float]]:
    """Shares answered at each level and not at all, and the share of right answers; of queries that have their class
    in the gallery, and of those whose finest class is not there."""
    found = {}
    for kind, begin in (("known", 0), ("strange", queries)):
        part = slice(begin, begin + queries)
        allowed = confidences[part] >= BOUND
        column = np.where(allowed.any(axis=1), allowed.argmax(axis=1), len(made.levels))
        answered = column < len(made.levels)
        good = right[part][np.flatnonzero(answered), column[answered]]
        shares = [float((column == c).mean()) for c in range(len(made.levels) + 1)]
        found[kind] = [*shares, float(good.mean()) if len(good) else float("nan")]
    return found


def tables(rows: list[dict[str, Any]]) -> str:
    def mean(values: list[float]) -> str:
        known = [value for value in values if value == value]
        return f"{statistics.fmean(known):.3f}" if known else "-"

    heads = (
        "right, val",
        "right, test",
        "ECE, val",
        "ECE, test",
        "of known classes alone",
        SHARES,
        KNOWN_ONLY,
        "mean risk",
    )
    lines = [f"| set | encoder | level | {' | '.join(heads)} |", f"|---|---|---|{'---:|' * len(heads)}"]
    keys = ("val right", "test right", "val ece", CALIBRATED, "known ece", SHARES, KNOWN_ONLY, "test risk")
    groups = list(dict.fromkeys((row["set"], row["encoder"]) for row in rows))
    for name, encoder in groups:
        own = [row for row in rows if (row["set"], row["encoder"]) == (name, encoder)]
        for level in LEVELS[name]:
            cells = [mean([row["levels"][level][key] for row in own]) for key in keys]
            lines.append(f"| {name} | {encoder} | {level} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| set | encoder | queries | answered, finest level first | not answered | right |",
        "|---|---|---|---|---:|---:|",
    ]
    for name, encoder in groups:
        own = [row for row in rows if (row["set"], row["encoder"]) == (name, encoder)]
        for kind, said in (("known", "of known classes"), ("strange", "of classes that the gallery lacks")):
            cells = [mean([row["depth"][kind][i] for row in own]) for i in range(len(LEVELS[name]) + 2)]
            lines.append(f"| {name} | {encoder} | {said} | {' / '.join(cells[:-2])} | {cells[-2]} | {cells[-1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=list(LEVELS), default=list(LEVELS))
    parser.add_argument("--encoders", nargs="+", choices=["pixels", "trained"], default=["pixels", "trained"])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    file = options.work / "answers.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for encoder in options.encoders:
        for name in options.sets:
            for split in range(options.splits):
                key = {"set": name, "encoder": encoder, "split": split}
                key |= {"steps": options.steps if encoder == "trained" else 0}
                if options.table or any(key.items() <= row.items() for row in rows):
                    continue
                row = key | measure(options.data, name, encoder, split, options.steps)
                rows.append(row)
                with file.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(json.dumps(row["levels"][LEVELS[name][0]]), flush=True)
    print(tables(rows))


if __name__ == "__main__":
    main()
