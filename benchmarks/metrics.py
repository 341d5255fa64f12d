"""Seconds and peak memory of evaluation: hgld, pytorch-metric-learning and torchmetrics.

Run with: python benchmarks/metrics.py [--items 2000 10000 20000] [--dim 128] [--threads 1] [--only hgld pml]

pytorch-metric-learning and torchmetrics are benchmark extras: pip install pytorch-metric-learning torchmetrics. Every
measurement runs in a child process, after a small warm-up run. Memory is the growth of the peak after the warm-up. All
libraries rank the same embeddings. The row "gemm" is only the matrix product of the scores. If two libraries compute
the same metric, the values must agree to 1e-6.
"""

import argparse
import json
import time

import torch
from measured import head, in_its_own_process, row, status_bytes

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
SIDES = ("gemm", "hgld", "hgld-at-r", "pml", "pml-at-r", "torchmetrics")
MOST_PML_ITEMS = 10_000  # above this, pytorch-metric-learning ranks all neighbours in more than 12 GB


def make(items: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return unit vectors around 12 coarse, 144 middle and items / 5 fine classes; one pair in twelve is positive.

    Items of a class come in pairs, so that every query has a positive.
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
    scores = (embeddings @ embeddings.T).double() + 2.0  # torchmetrics ignores scores below 0 in its average precision
    others = ~torch.eye(len(embeddings), dtype=torch.bool)
    for number in range(len(embeddings)):
        score = scores[number][others[number]]
        for column, level in enumerate(LEVELS):
            target = (labels[:, column] == labels[number, column])[others[number]]
            if target.any():
                ours = {
                    "AP": retrieval.retrieval_average_precision(score, target),
                    "R@10": retrieval.retrieval_hit_rate(score, target, top_k=10),
                    "P@1": retrieval.retrieval_precision(score, target, top_k=1),
                }
                for name, value in ours.items():
                    found.setdefault(f"{name}/{level}", []).append(float(value))
    return {name: sum(values) / len(values) for name, values in found.items()}


def measure(side: str, items: int, dim: int, threads: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    run = {
        "gemm": by_gemm,
        "hgld": by_hgld,
        "hgld-at-r": by_hgld_at_r,
        "pml": by_pml,
        "pml-at-r": by_pml_at_r,
        "torchmetrics": by_torchmetrics,
    }[side]
    embeddings, labels = make(items, dim)
    run(embeddings[:300], labels[:300])
    before, start, cpu = status_bytes("VmHWM"), time.perf_counter(), time.process_time()
    values = run(embeddings, labels)
    seconds = time.perf_counter() - start
    return {
        "side": side,
        "items": items,
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        "bytes": status_bytes("VmHWM") - before,
        "values": values,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, nargs="+", default=[2000, 10_000, 20_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "ITEMS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]), options.dim, options.threads)))
        return
    print(head("items", "side", "metrics", "seconds", "CPU seconds", "memory, MB", "largest difference"))
    for items in options.items:
        reference: dict[str, float] = {}
        for side in options.only:
            if (side in ("pml", "torchmetrics") and items > MOST_PML_ITEMS) or (
                side == "torchmetrics" and items > 2000
            ):
                continue
            words = [__file__, "--measure", side, items, "--dim", options.dim, "--threads", options.threads]
            found = in_its_own_process(*words)
            values = found["values"]
            reference = reference or values
            apart = max((abs(values[name] - reference[name]) for name in values if name in reference), default=0.0)
            cells = [items, side, len(values), f"{found['seconds']:.2f}", f"{found['cpu']:.2f}", found["bytes"] >> 20]
            print(row([*cells, f"{apart:.1e}"]), flush=True)
            if apart > 1e-6:
                raise SystemExit(f"{side} and {options.only[0]} differ by {apart:.1e} on {items} items")


if __name__ == "__main__":
    main()
