"""Seconds and peak memory of evaluation: hgld, the authors' code, pytorch-metric-learning and torchmetrics.

Run with: python benchmarks/metrics.py [--items 2000 10000 20000] [--dim 128] [--threads 1] [--only hgld pml]
The authors' evaluator: --authors DIR, a clone of github.com/elias-ramzi/SupRank; its imports need omegaconf and
    tensorboard beside pytorch-metric-learning

pytorch-metric-learning and torchmetrics are benchmark extras: pip install pytorch-metric-learning torchmetrics. Every
measurement runs in a process of its own, after a small run that loads and compiles what is needed; memory is the growth
of the process's peak from there. All sides rank the same embeddings; the row "gemm" is the matrix product of the scores
alone. The numbers that two sides both give must agree to 1e-6.
"""

import argparse
import json
import subprocess
import sys
import time

import torch

LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
HGLD_METRICS = (
    "R@1",
    "R@10",
    "TR@10",
    "P@1",
    "AP",
    "mAP@R",
    "mAP@100",
    "H-AP",
    "H-R@10",
    "H-P@10",
    "NDCG",
    "NDCG@100",
    "ASI",
    "wAP",
)
SIDES = ("gemm", "hgld", "hgld-at-r", "authors", "pml", "pml-at-r", "torchmetrics")
AUTHORS_BATCH = 256  # queries at a time, their default
MOST_PML_ITEMS = 10_000  # with every neighbour it needs more than 12 GB beyond


def make(items: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return unit vectors around 12 coarse, 144 middle and items / 5 fine classes; one pair in twelve is positive.

    Items come in pairs of a class, so that every query has a positive: the authors' means include undefined values.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(most: int) -> torch.Tensor:
        return torch.randint(0, most, (items // 2,), generator=generator).repeat_interleave(2)

    def noise(size: int) -> torch.Tensor:
        return torch.randn(size, dim, generator=generator)

    siblings = max(1, items // 5 // 144)
    coarse = draw(12)
    middle = coarse * 12 + draw(12)
    fine = middle * siblings + draw(siblings)
    points = noise(items) + 0.5 * noise(12)[coarse] + 0.7 * noise(144)[middle] + noise(144 * siblings)[fine]
    return torch.nn.functional.normalize(points, dim=1), torch.stack([fine, middle, coarse], dim=1)


def by_hgld(
    embeddings: torch.Tensor, labels: torch.Tensor, metrics: tuple[str, ...] = HGLD_METRICS
) -> dict[str, float]:
    from hgld.evaluation.evaluate import evaluate

    return evaluate(embeddings, labels, levels=LEVELS, metrics=metrics).values


def by_hgld_at_r(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    return by_hgld(embeddings, labels, ("P@1", "mAP@R/landmark"))


def by_gemm(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    for rows in embeddings.split(1024):
        torch.mm(rows, embeddings.T)
    return {}


def by_authors(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    from suprank.engine.accuracy_calculator import AccuracyCalculator  # pyright: ignore[reportMissingImports]

    sizes = torch.stack([torch.bincount(column)[column] for column in labels.T], dim=1).double()  # the query included
    exactly = torch.cat([sizes[:, :1], sizes.diff(dim=1)], dim=1).flip(1)  # items of grade 1..L
    gains = torch.arange(1, len(LEVELS) + 1) / len(LEVELS) / exactly.clamp(min=1)
    relevances = torch.cat([torch.zeros(len(labels), 1), gains.float()], dim=1)
    calculator = AccuracyCalculator(
        compute_for_hierarchy_levels=list(range(len(LEVELS))),
        recall_rate=[1, 10],
        metric_batch_size=AUTHORS_BATCH,
        convert_to_cuda=False,
    )
    values = calculator.batch_metrics(embeddings, labels, True, relevances)
    names = {f"_level{column}": f"/{level}" for column, level in enumerate(LEVELS)} | {"_multi": ""}
    found = {}
    for key, value in values.items():
        kind, _, suffix = key.rpartition("_")
        found[f"{kind}{names[f'_{suffix}']}"] = float(value)
    return found


def by_pml(embeddings: torch.Tensor, labels: torch.Tensor, k: int | None = None) -> dict[str, float]:
    from pytorch_metric_learning.distances import CosineSimilarity  # pyright: ignore[reportMissingImports]
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator  # pyright: ignore[reportMissingImports]
    from pytorch_metric_learning.utils.inference import CustomKNN  # pyright: ignore[reportMissingImports]

    include = ("precision_at_1", "mean_average_precision_at_r") + (("mean_average_precision",) if k is None else ())
    names = {"precision_at_1": "P@1", "mean_average_precision_at_r": "mAP@R", "mean_average_precision": "AP"}
    found = {}
    for column, level in enumerate(LEVELS if k is None else LEVELS[:1]):
        depth = len(embeddings) - 1 if k is None else "max_bin_count"
        search = CustomKNN(CosineSimilarity(), batch_size=256)
        calculator = AccuracyCalculator(include=include, k=depth, device=torch.device("cpu"), knn_func=search)
        values = calculator.get_accuracy(embeddings, labels[:, column])
        found |= {f"{names[name]}/{level}": float(value) for name, value in values.items()}
    return found


def by_pml_at_r(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    return by_pml(embeddings, labels, k=1)


def by_torchmetrics(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    from torchmetrics.functional import retrieval  # pyright: ignore[reportMissingImports]

    found: dict[str, list[float]] = {}
    scores = (embeddings @ embeddings.T).double() + 2.0  # its average precision disregards scores below 0
    others = ~torch.eye(len(embeddings), dtype=torch.bool)
    for row in range(len(embeddings)):
        score = scores[row][others[row]]
        for column, level in enumerate(LEVELS):
            target = (labels[:, column] == labels[row, column])[others[row]]
            if target.any():
                found.setdefault(f"AP/{level}", []).append(float(retrieval.retrieval_average_precision(score, target)))
                found.setdefault(f"R@10/{level}", []).append(
                    float(retrieval.retrieval_hit_rate(score, target, top_k=10))
                )
                found.setdefault(f"P@1/{level}", []).append(
                    float(retrieval.retrieval_precision(score, target, top_k=1))
                )
    return {name: sum(values) / len(values) for name, values in found.items()}


def peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def measure(side: str, items: int, dim: int, threads: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    run = {
        "gemm": by_gemm,
        "hgld": by_hgld,
        "authors": by_authors,
        "hgld-at-r": by_hgld_at_r,
        "pml": by_pml,
        "pml-at-r": by_pml_at_r,
        "torchmetrics": by_torchmetrics,
    }[side]
    embeddings, labels = make(items, dim)
    run(embeddings[:300], labels[:300])
    before, start, cpu = peak_bytes(), time.perf_counter(), time.process_time()
    values = run(embeddings, labels)
    seconds = time.perf_counter() - start
    return {
        "side": side,
        "items": items,
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        "bytes": peak_bytes() - before,
        "values": values,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, nargs="+", default=[2000, 10_000, 20_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--authors", metavar="DIR", help="a clone of the authors' SupRank, measured beside")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "ITEMS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.authors is not None:
        sys.path.insert(0, options.authors)
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]), options.dim, options.threads)))
        return
    print("| items | side | metrics | seconds | CPU seconds | memory, MB | largest difference |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for items in options.items:
        reference: dict[str, float] = {}
        for side in options.only:
            if side == "authors" and options.authors is None:
                continue
            if (side in ("pml", "torchmetrics") and items > MOST_PML_ITEMS) or (
                side == "torchmetrics" and items > 2000
            ):
                continue
            command = [sys.executable, __file__, "--measure", side, str(items)]
            command += ["--dim", str(options.dim), "--threads", str(options.threads)]
            command += [] if options.authors is None else ["--authors", options.authors]
            found = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
            values = found["values"]
            reference = reference or values
            apart = max((abs(values[name] - reference[name]) for name in values if name in reference), default=0.0)
            cells = [items, side, len(values), f"{found['seconds']:.2f}", f"{found['cpu']:.2f}", found["bytes"] >> 20]
            print(f"| {' | '.join(map(str, cells))} | {apart:.1e} |", flush=True)
            if apart > 1e-6:
                raise SystemExit(f"{side} and {options.only[0]} differ by {apart:.1e} on {items} items")


if __name__ == "__main__":
    main()
