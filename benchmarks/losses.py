"""Seconds and peak memory of forward + backward of the rank losses, of the authors' code and of another library.

Run with: python benchmarks/losses.py [--items 128 256 512 1024 2048 4096] [--threads 1] [--only "hgld SupHAP" ...]
The authors' classes: python benchmarks/losses.py --authors DIR, a clone of github.com/elias-ramzi/SupRank.
It needs omegaconf, tensorboard and pytorch-metric-learning.

pytorch-metric-learning is a benchmark extra. Every measurement runs in a separate process, after a small run that
loads, compiles and warms up. The process keeps freed memory; otherwise the times would include the first use of new
memory pages. benchmarks/gpu.py measures GPUs.

Seconds are medians of CPU time, so that other load on the machine has little effect. Memory is the growth of the peak
after the embeddings are made. The row "gemm" is the matrix product of the scores, with a gradient. A batch size is
skipped if the growth of earlier costs predicts more than --most-seconds or --most-memory (GB). Implementations of the
same loss must agree to 1e-4. BlackboxAP is the exception, because the authors multiply its margin by random numbers.
SmoothAPLoss of pytorch-metric-learning has other classes: blocks of B / 4 consecutive items.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from measured import head, in_its_own_process, make_parser, row, status_bytes
from torch import Tensor

TAU, RHO, DELTA, OFFSET = 0.01, 100.0, 0.05, 0.5 + 1 / (1 + 2.718281828459045**-5)
# The authors' code builds (B, B, B) tensors for these losses.
CUBIC = ("SmoothAP", "SupAP", "SmoothRecall", "SupRecall", "SmoothHAP", "SupHAP", "SupNDCG")
HGLD = (*CUBIC, "SoftBinAP", "FastAP", "BlackboxAP", "PNP")
EQUATIONS: tuple[str, ...] = ("SupHAP, B x B x B", "SmoothAP, B x B x B")
AUTHORS = (*CUBIC, "SoftBinAP", "BlackboxAP")
METRIC_LEARNING = "pml SmoothAPLoss"
GEMM = "gemm"
SIDES = (
    GEMM,
    *(f"hgld {name}" for name in HGLD),
    *(f"equations {name}" for name in EQUATIONS),
    *(f"authors {name}" for name in AUTHORS),
    METRIC_LEARNING,
)
# implementations that must agree
SAME = {f"equations {name}": f"hgld {name.partition(',')[0]}" for name in EQUATIONS}
SAME |= {f"authors {name}": f"hgld {name}" for name in AUTHORS if name != "BlackboxAP"}
# Seconds and bytes of these grow with the third power of the batch size; others with the second.
CUBED = {*(f"equations {name}" for name in EQUATIONS), *(f"authors {name}" for name in CUBIC), METRIC_LEARNING}
Loss = Callable[[Tensor, Tensor], Tensor]


def make(items: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return embeddings with 4 items per class, 8 classes per group, 8 groups per top class, sorted by class."""
    generator = torch.Generator().manual_seed(0)
    fine = torch.arange(items) // 4
    labels = torch.stack([fine, fine // 8, fine // 64], dim=1)
    embeddings = torch.randn(items, dim, generator=generator)
    for level, share in enumerate((0.12, 0.1, 0.08)):
        embeddings += share * torch.randn(items, dim, generator=generator)[labels[:, level]]
    return embeddings, labels


def authors_loss(name: str, folder: str) -> Loss:
    """Return one of the authors' losses with hgld's default parameters: the offset that makes H^- continuous."""
    sys.path.insert(0, folder)
    from suprank import losses  # pyright: ignore[reportMissingImports]
    from suprank.engine.compute_relevance_on_the_fly import (  # pyright: ignore[reportMissingImports]
        compute_relevance_on_the_fly,
    )

    kind = {"BlackboxAP": "BlackBoxAP"}.get(name, name)
    graded = {"hierarchy_level": "MULTI" if name in ("SmoothHAP", "SupHAP", "SupNDCG") else 0}
    cutoffs = {"at_k": [1, 2, 4, 8, 16]} if name.endswith("Recall") else {}
    module = getattr(losses, f"{kind}Loss")(**graded, **cutoffs)

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        def relevance(grades: Tensor) -> Tensor:
            return compute_relevance_on_the_fly(grades, alpha=1.0, check_for=list(range(labels.shape[1] + 1)))

        return module(torch.nn.functional.normalize(embeddings), labels, relevance_fn=relevance)

    return loss


def agreed_levels(labels: Tensor, others: Tensor) -> Tensor:
    return (labels[:, None] == others[None]).sum(dim=2)


def upper_step(difference: Tensor) -> Tensor:
    near = torch.sigmoid(difference / TAU) + 0.5 * (difference >= 0)
    return torch.where(difference > DELTA, RHO * (difference - DELTA) + OFFSET, near)


def relevance_of(grades: Tensor, num_levels: int) -> Tensor:
    sizes = torch.stack([(grades == grade).sum(dim=1) for grade in range(num_levels + 1)], dim=1)
    return grades / num_levels / sizes.gather(1, grades)


def sup_hap_at_once(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Compute SupHAP by its equations over all (query, k, j), like the authors' default code."""
    unit = torch.nn.functional.normalize(embeddings)
    scores, grades = unit @ unit.T, agreed_levels(labels, labels)
    relevance = relevance_of(grades, labels.shape[1])
    difference = scores[:, None, :] - scores[:, :, None]
    lower = grades[:, None, :] < grades[:, :, None]
    others = 1 - torch.eye(len(scores), device=scores.device)
    above = (difference.detach() >= 0).float()
    rank = 1 + (torch.where(lower, upper_step(difference), above) * others).sum(dim=2)
    both = torch.minimum(relevance[:, None, :], relevance[:, :, None])
    hrank = relevance + (both * above * others).sum(dim=2)
    return 1 - ((hrank / rank * (grades > 0)).sum(dim=1) / relevance.sum(dim=1)).mean()


def smooth_ap_at_once(embeddings: Tensor, labels: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(embeddings)
    scores, positive = unit @ unit.T, (labels[:, None, 0] == labels[None, :, 0]).float()
    step = torch.sigmoid((scores[:, None, :] - scores[:, :, None]) / TAU)
    step = step * (1 - torch.eye(len(scores), device=scores.device))
    precision = (1 + (step * positive[:, None, :]).sum(dim=2)) / (1 + step.sum(dim=2))
    return 1 - ((precision * positive).sum(dim=1) / positive.sum(dim=1)).mean()


def loss_of(side: str, reference: tuple[Tensor, Tensor] | None = None, authors: str | None = None) -> Loss:
    kind, _, name = side.partition(" ")
    if side == GEMM:
        return lambda embeddings, _: (embeddings @ embeddings.T).square().sum()
    if kind == "hgld":
        from hgld import losses

        module = getattr(losses, name)()
        return lambda embeddings, labels: module(embeddings, labels, *(reference or ()))
    if kind == "equations":
        return dict(zip(EQUATIONS, (sup_hap_at_once, smooth_ap_at_once), strict=True))[name]
    if kind == "authors":
        return authors_loss(name, str(authors))
    from pytorch_metric_learning import losses as metric_learning  # pyright: ignore[reportMissingImports]

    theirs = getattr(metric_learning, name)()
    return lambda embeddings, labels: theirs(embeddings, labels[:, 0])


def forward_backward(loss: Loss, embeddings: Tensor, labels: Tensor) -> float:
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward()
    return value.item()


def measure(side: str, items: int, options: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(options.threads)
    embeddings, labels = make(items, options.dim)
    loss = loss_of(side, authors=options.authors)
    forward_backward(loss, embeddings[:8], labels[:8])
    before = status_bytes("VmHWM")
    value = forward_backward(loss, embeddings, labels)
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < 1.0 and len(seconds) < 20):
        start = time.process_time()
        forward_backward(loss, embeddings, labels)
        seconds.append(time.process_time() - start)
    return {"seconds": statistics.median(seconds), "bytes": status_bytes("VmHWM") - before, "value": value}


def print_row(side: str, values: dict[tuple[str, int], float], options: argparse.Namespace) -> None:
    keep = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "OMP_NUM_THREADS": str(options.threads)}
    cells, last = [], None
    for items in options.items:
        if last:
            growth = (items / last["items"]) ** (3 if side in CUBED else 2)
            if last["seconds"] * growth > options.most_seconds or last["bytes"] * growth > options.most_memory * 1e9:
                cells.append("-")
                continue
        last = {**in_its_own_process(measure, side, items, options, **keep), "items": items}
        cells.append(f"{last['seconds']:.4f} s, {last['bytes'] / 1e6:.0f} MB")
        values[side, items] = last["value"]
        same = values.get((SAME.get(side, ""), items))
        if same is not None and abs(same - last["value"]) > 1e-4:
            raise SystemExit(f"{side} gives {last['value']} and {SAME[side]} {same} on {items} items")
    print(row([side, *cells]), flush=True)


def main() -> None:
    sizes = {"items": [128, 256, 512, 1024, 2048, 4096], "dim": 512}
    parser = make_parser(__doc__, **sizes, threads=1, most_seconds=480.0, most_memory=8.0)
    parser.add_argument("--authors", metavar="DIR", help="clone of the authors' SupRank, to measure it too")
    parser.add_argument("--only", nargs="+", choices=SIDES, metavar="SIDE", default=SIDES)
    options = parser.parse_args()
    print(head("loss", *(f"B = {items}" for items in options.items)))
    values: dict[tuple[str, int], float] = {}
    for side in options.only:
        if not side.startswith("authors ") or options.authors is not None:
            print_row(side, values, options)


if __name__ == "__main__":
    main()
