"""Seconds and peak memory of forward + backward of the rank losses, of the authors' code and of other libraries.

Run with: python benchmarks/losses.py [--items 128 256 512 1024 2048 4096] [--threads 1] [--only "hgld SupHAP" ...]
The authors' classes: python benchmarks/losses.py --authors DIR, a clone of github.com/elias-ramzi/SupRank.
It needs omegaconf, tensorboard and pytorch-metric-learning.
A memory bank: python benchmarks/losses.py --bank 60000 --items 256 --dim 128

On a GPU: python benchmarks/losses.py --device cuda --items 512 4096 --only "hgld SupHAP"

pytorch-metric-learning is a benchmark extra. Every measurement runs in a separate process, after a small run that
loads, compiles and warms up. The process keeps freed memory; otherwise the times would include the first use of new
memory pages.

Seconds are medians of CPU time on a CPU, so that other load on the machine has little effect, and of wall time on a
GPU. The column "x GEMM" divides them by the time of one matrix product, forward + backward, in the same process. Memory
is the growth of the peak after the embeddings are made. A batch size is skipped if the growth of earlier costs predicts
more than --most-seconds or --most-memory. Implementations of the same loss must agree to 1e-4. All other rows say how
their definition differs.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from measured import head, in_its_own_process, row, status_bytes
from torch import Tensor

TAU, RHO, DELTA, OFFSET = 0.01, 100.0, 0.05, 0.5 + 1 / (1 + 2.718281828459045**-5)
HGLD = (
    *("SmoothAP", "SupAP", "SmoothRecall", "SupRecall", "SmoothHAP", "SupHAP", "SupNDCG"),
    *("SoftBinAP", "FastAP", "FastAP, 10 bins, query left out", "BlackboxAP", "PNP", "PNP, variant O"),
)
EQUATIONS: tuple[str, ...] = ("SupHAP, B x B x B", "SupHAP, query by query", "SmoothAP, B x B x B")
# The authors' code builds (B, B, B) tensors for these losses.
CUBIC = ("SmoothAP", "SupAP", "SmoothRecall", "SupRecall", "SmoothHAP", "SupHAP", "SupNDCG")
AUTHORS = (*CUBIC, "SoftBinAP", "BlackboxAP")
METRIC_LEARNING = ("SmoothAPLoss", "FastAPLoss", "PNPLoss")
SIDES = (
    *(f"hgld {name}" for name in HGLD),
    *(f"equations {name}" for name in EQUATIONS),
    *(f"authors {name}" for name in AUTHORS),
    *(f"pml {name}" for name in METRIC_LEARNING),
)
# SAME: implementations that must agree. DIFFERS: how the definition of another implementation differs.
SAME = {"equations SupHAP, B x B x B": "hgld SupHAP", "equations SupHAP, query by query": "hgld SupHAP"}
SAME["equations SmoothAP, B x B x B"] = "hgld SmoothAP"
SAME |= {f"authors {name}": f"hgld {name}" for name in AUTHORS if name != "BlackboxAP"}
SAME |= {"pml PNPLoss": "hgld PNP, variant O", "pml FastAPLoss": "hgld FastAP, 10 bins, query left out"}
DIFFERS = {
    "authors BlackboxAP": "its margin is multiplied by random normal numbers",
    "pml SmoothAPLoss": "its classes are blocks of B / 4 consecutive items; with labels of such blocks hgld's agrees",
}
# Seconds and bytes grow with these powers of the batch size; the default exponent is 2.
GROWTH = {
    "equations SupHAP, B x B x B": (3, 3),
    "equations SupHAP, query by query": (3, 2),
    "equations SmoothAP, B x B x B": (3, 3),
    **{f"authors {name}": (3, 3) for name in CUBIC},
    "pml SmoothAPLoss": (3, 3),
    "pml PNPLoss": (3, 3),
}
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


def score_matrix(embeddings: Tensor, gallery: Tensor, weights: Tensor) -> Tensor:
    """Return the matrix product that every loss computes, with an equally dense gradient."""
    return (embeddings @ gallery.T * weights).sum()


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


def sup_hap_query_by_query(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Compute SupHAP query by query over the positives, like the authors' code for large batches.

    This function frees each query's graph before the next query. The authors' code keeps the graphs, and needs 6 GB at
    B = 1024.
    """
    unit = torch.nn.functional.normalize(embeddings)
    scores = unit @ unit.T
    leaf, value = scores.detach().requires_grad_(), 0.0
    for q in range(len(unit)):
        loss = sup_hap_of_query(leaf[q], labels[q], labels) / len(unit)
        loss.backward()
        value += loss.item()
    assert leaf.grad is not None
    linear = (scores * leaf.grad).sum()  # linear function of the scores with the same gradient as the sum of the losses
    return linear - linear.detach() + value


def sup_hap_of_query(scores: Tensor, label: Tensor, labels: Tensor) -> Tensor:
    grades = agreed_levels(label[None], labels)[0]
    relevance = relevance_of(grades[None], labels.shape[1])[0]
    k = torch.nonzero(grades)[:, 0]
    difference = scores[None, :] - scores[k, None]
    above = (difference.detach() >= 0).float()
    others = (torch.arange(len(scores), device=scores.device) != k[:, None]).float()
    lower = grades[None] < grades[k, None]
    rank = 1 + (torch.where(lower, upper_step(difference), above) * others).sum(dim=1)
    both = torch.minimum(relevance[None, :], relevance[k, None])
    hrank = relevance[k] + (both * above * others).sum(dim=1)
    return 1 - (hrank / rank).sum() / relevance.sum()


def smooth_ap_at_once(embeddings: Tensor, labels: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(embeddings)
    scores, positive = unit @ unit.T, (labels[:, None, 0] == labels[None, :, 0]).float()
    step = torch.sigmoid((scores[:, None, :] - scores[:, :, None]) / TAU)
    step = step * (1 - torch.eye(len(scores), device=scores.device))
    precision = (1 + (step * positive[:, None, :]).sum(dim=2)) / (1 + step.sum(dim=2))
    return 1 - ((precision * positive).sum(dim=1) / positive.sum(dim=1)).mean()


def loss_of(side: str, reference: tuple[Tensor, Tensor] | None, authors: str | None) -> Loss:
    kind, _, name = side.partition(" ")
    if kind == "hgld":
        from hgld import losses

        loss, _, option = name.partition(", ")
        options = {"variant O": {"variant": "O"}, "10 bins, query left out": {"bins": 10, "exclude_self": True}}.get(
            option, {}
        )
        module = getattr(losses, loss)(**options)
        return lambda embeddings, labels: module(embeddings, labels, *(reference or ()))
    if kind == "equations":
        return dict(zip(EQUATIONS, (sup_hap_at_once, sup_hap_query_by_query, smooth_ap_at_once), strict=True))[name]
    if kind == "authors":
        return authors_loss(name, str(authors))
    from pytorch_metric_learning import losses as metric_learning  # pyright: ignore[reportMissingImports]

    module = getattr(metric_learning, name)()
    return lambda embeddings, labels: module(embeddings, labels[:, 0])


def forward_backward(loss: Loss, embeddings: Tensor, labels: Tensor) -> float:
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward()
    return value.item()


def measure(side: str, items: int, options: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(options.threads)
    embeddings, labels = (part.to(options.device) for part in make(max(items, options.bank), options.dim))
    reference = (embeddings, labels) if options.bank else None
    loss = loss_of(side, reference, options.authors)
    forward_backward(loss, embeddings[:8], labels[:8])
    before = status_bytes("VmHWM")
    batch = embeddings[:items], labels[:items]
    value = forward_backward(loss, *batch)
    on_gpu = options.device != "cpu"
    seconds = median_seconds(lambda: forward_backward(loss, *batch), on_gpu=on_gpu)
    peak = torch.cuda.max_memory_allocated() if on_gpu else status_bytes("VmHWM") - before
    unit = torch.nn.functional.normalize(batch[0])
    gallery = torch.nn.functional.normalize(embeddings) if options.bank else None
    weights = torch.rand(len(unit), len(unit if gallery is None else gallery), device=unit.device)

    def product(leaf: Tensor, _: Tensor) -> Tensor:
        return score_matrix(leaf, leaf if gallery is None else gallery, weights)

    gemm = median_seconds(lambda: forward_backward(product, unit, batch[1]), on_gpu=on_gpu)
    return {"seconds": seconds, "bytes": peak, "value": value, "gemm": gemm}


def median_seconds(run: Callable[[], float], *, on_gpu: bool) -> float:
    """Return the median seconds of 3 to 20 runs, for about a second in all, after one warm-up run."""
    clock = time.perf_counter if on_gpu else time.process_time
    run()
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < 1.0 and len(seconds) < 20):
        start = clock()
        run()  # run calls .item(), which waits for the GPU
        seconds.append(clock() - start)
    return statistics.median(seconds)


def in_a_process(side: str, items: int, options: argparse.Namespace) -> dict[str, float]:
    words = ["--measure", side, items, "--dim", options.dim, "--threads", options.threads, "--bank", options.bank]
    words += ["--device", options.device, *([] if options.authors is None else ["--authors", options.authors])]
    keep = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "OMP_NUM_THREADS": str(options.threads)}
    return in_its_own_process(__file__, *words, **keep)


def print_row(side: str, values: dict[tuple[str, int], float], options: argparse.Namespace) -> None:
    cells, last = [], None
    for items in options.items:
        if last:
            slower, larger = ((items / last["items"]) ** power for power in GROWTH.get(side, (2, 2)))
            if last["seconds"] * slower > options.most_seconds or last["bytes"] * larger > options.most_memory * 1e9:
                cells.append("-")
                continue
        last = {**in_a_process(side, items, options), "items": items}
        over = f" ({last['seconds'] / last['gemm']:.1f} x GEMM)" if last["gemm"] else ""
        cells.append(f"{last['seconds']:.4f} s{over}, {last['bytes'] / 1e6:.0f} MB")
        values[side, items] = last["value"]
        same = values.get((SAME.get(side, ""), items))
        if same is not None and abs(same - last["value"]) > 1e-4:
            raise SystemExit(f"{side} gives {last['value']} and {SAME[side]} {same} on {items} items")
    differs = f" (value {values[side, options.items[0]]:.3f}: {DIFFERS[side]})" if side in DIFFERS else ""
    print(row([side + differs, *cells]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--bank", type=int, default=0, help="number of reference items in a memory bank; only for hgld's losses"
    )
    parser.add_argument("--most-seconds", type=float, default=480.0)
    parser.add_argument("--most-memory", type=float, default=8.0, help="largest expected memory, in gigabytes")
    parser.add_argument("--authors", metavar="DIR", help="clone of the authors' SupRank, to measure it too")
    parser.add_argument("--only", nargs="+", choices=SIDES, metavar="SIDE")
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "ITEMS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]), options)))
        return
    print(head("loss", *(f"B = {items}" for items in options.items)))
    values: dict[tuple[str, int], float] = {}
    for side in options.only or (SIDES[: len(HGLD)] if options.bank else SIDES):
        if not side.startswith("authors ") or options.authors is not None:
            print_row(side, values, options)


if __name__ == "__main__":
    main()
