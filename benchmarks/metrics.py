"""Seconds and peak memory of evaluation: hgld and pytorch-metric-learning.

Run with: python benchmarks/metrics.py [--items 2000 10000 20000] [--dim 128] [--threads 1] [--only hgld pml]

pytorch-metric-learning is a benchmark extra: pip install pytorch-metric-learning. Every measurement runs in a child
process, after a small warm-up run. Memory is the growth of the peak after the warm-up. Both libraries rank the same
embeddings. The row "gemm" is only the matrix product of the scores. If both libraries compute the same metric, the
values must agree to 1e-6.
"""

import time

import torch
from measured import head, in_its_own_process, make_parser, row, status_bytes

LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
HGLD_METRICS = (
    *("R@1", "R@10", "TR@10", "P@1", "AP", "mAP@R", "mAP@100"),
    *("H-AP", "H-R@10", "H-P@10", "NDCG", "NDCG@100", "ASI", "wAP"),
)
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


def by_hgld(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    from hgld.evaluation.evaluate import evaluate

    return evaluate(embeddings, labels, levels=LEVELS, metrics=HGLD_METRICS).values


def by_gemm(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    for rows in embeddings.split(1024):
        torch.mm(rows, embeddings.T)
    return {}


def by_pml(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    from pytorch_metric_learning.distances import CosineSimilarity  # pyright: ignore[reportMissingImports]
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator  # pyright: ignore[reportMissingImports]
    from pytorch_metric_learning.utils.inference import CustomKNN  # pyright: ignore[reportMissingImports]

    names = {"precision_at_1": "P@1", "mean_average_precision_at_r": "mAP@R", "mean_average_precision": "AP"}
    search = CustomKNN(CosineSimilarity(), batch_size=256)
    calculator = AccuracyCalculator(
        include=tuple(names), k=len(embeddings) - 1, device=torch.device("cpu"), knn_func=search
    )
    found = {}
    for column, level in enumerate(LEVELS):
        values = calculator.get_accuracy(embeddings, labels[:, column])
        found |= {f"{names[name]}/{level}": float(value) for name, value in values.items()}
    return found


SIDES = {"gemm": by_gemm, "hgld": by_hgld, "pml": by_pml}


def measure(side: str, items: int, dim: int, threads: int) -> tuple[dict[str, float], float, float, int]:
    """Return the values of the metrics, seconds, CPU seconds and bytes."""
    torch.set_num_threads(threads)
    embeddings, labels = make(items, dim)
    SIDES[side](embeddings[:300], labels[:300])
    before, start, cpu = status_bytes("VmHWM"), time.perf_counter(), time.process_time()
    values = SIDES[side](embeddings, labels)
    return values, time.perf_counter() - start, time.process_time() - cpu, status_bytes("VmHWM") - before


def main() -> None:
    parser = make_parser(__doc__, items=[2000, 10_000, 20_000], dim=128, threads=1)
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    print(head("items", "side", "metrics", "seconds", "CPU seconds", "memory, MB", "largest difference"))
    for items in options.items:
        reference: dict[str, float] = {}
        for side in options.only:
            if side == "pml" and items > MOST_PML_ITEMS:
                continue
            values, seconds, cpu, size = in_its_own_process(measure, side, items, options.dim, options.threads)
            reference = reference or values
            apart = max((abs(values[name] - reference[name]) for name in values if name in reference), default=0.0)
            cells = [items, side, len(values), f"{seconds:.2f}", f"{cpu:.2f}", size >> 20, f"{apart:.1e}"]
            print(row(cells), flush=True)
            if apart > 1e-6:
                raise SystemExit(f"{side} and {options.only[0]} differ by {apart:.1e} on {items} items")


if __name__ == "__main__":
    main()
