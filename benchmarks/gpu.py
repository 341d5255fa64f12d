"""GPU benchmark in parts of under nine minutes.

    python benchmarks/gpu.py --out DIR                      # all parts, about an hour on one GPU
    python benchmarks/gpu.py --out DIR --part losses        # one part; --help lists all names
    python benchmarks/gpu.py --out DIR --part train --data SOP   # happier-sop for 20 minutes, on a dataset directory

The program saves DIR/gpu.jsonl after every case, so that the same command resumes after a stop. If a case fails, its
traceback is saved and the next case begins. DIR/gpu.md is one table of all cases. Without a GPU, everything runs at toy
size, which only shows that the program works.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import losses as loss_benchmark
import torch
from measured import Lines, head, make_parser, row, together
from torch import Tensor, nn

Values = dict[str, Any]
Case = tuple[str, Callable[[], Values]]
_PART_SECONDS = 510.0


@dataclass
class Bench:
    """Settings of a measurement that all its parts share: device, folders, sizes and time.

    Attributes:
        device: device to measure.
        out: folder of the results.
        data: a dataset directory of Stanford Online Products, or None.
        toy: whether to use toy sizes.
        asked_for_toys: whether an option, and not a missing GPU, is the reason for toy sizes.
        deadline: ``time.monotonic`` at which a part stops; the next call runs the remaining cases.
    """

    device: torch.device
    out: Path
    data: Path | None
    toy: bool
    asked_for_toys: bool = False
    deadline: float = field(default=0.0)

    def sizes(self, full: tuple[int, ...], toy: tuple[int, ...]) -> tuple[int, ...]:
        return toy if self.toy else full

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def milliseconds(self, run: Callable[[], object], *, least: int = 3, most: int = 20) -> float:
        """Return the median time of a call, after two warm-up calls."""
        for _ in range(2):
            run()
        times: list[float] = []
        while len(times) < least or (sum(times) < 1.0 and len(times) < most):
            self.wait()
            began = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - began)
        return 1000 * sorted(times)[len(times) // 2]

    def peak_mb(self, run: Callable[[], object]) -> float:
        """Return the peak GPU memory of a call, minus the memory in use before the call; 0 on a CPU."""
        if self.device.type != "cuda":
            run()
            return 0.0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        run()
        self.wait()
        return (torch.cuda.max_memory_allocated(self.device) - before) / 1e6


# -- What is here -----------------------------------------------------------------------------------------------------


def here(bench: Bench) -> Iterator[Case]:
    def versions() -> Values:
        from hgld.installation import installation

        found = {name: text for name, text in installation().items() if name in ("hgld", "python", "machine", "torch")}
        if bench.device.type == "cuda":
            facts = torch.cuda.get_device_properties(bench.device)
            found |= {"memory_gb": round(facts.total_memory / 1e9), "capability": f"{facts.major}.{facts.minor}"}
        return found

    yield "versions", versions


# -- Triton's kernels, compiled for GPUs that need not be here --------------------------------------------------------


def kernels(bench: Bench) -> Iterator[Case]:
    """Report registers, shared memory and spills of every kernel."""
    steps = {"sup": {"smooth": False}, "sigmoid": {"smooth": True}}
    variants: dict[tuple[str, str], Values] = {("sum_parts", ""): {}}
    for step, options in steps.items():
        variants["rank_positives", f" {step}"] = options | {"is_split": False}
        variants["rank_positives", f" {step}, items shared"] = options | {"is_split": True}
        variants["reach_items", f" {step}"] = options
    for capability in (90,) if bench.asked_for_toys else (80, 90, 100):
        for (name, told), options in variants.items():
            yield (
                f"sm_{capability} {name}{told}",
                lambda n=name, o=options, c=capability: compiled_kernel(f"_{n}", c, o),
            )


def compiled_kernel(name: str, capability: int, options: Values) -> Values:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    from hgld.losses.kernels import triton_pairs

    kernel = getattr(triton_pairs, name)
    types = {"grades": "*u8", "starts": "*i32", **dict.fromkeys(("size", "num_grades", "num_queries", "most"), "i32")}
    types |= dict.fromkeys(("inverse", "rho", "delta", "line"), "fp32")
    constants = {"block_k": triton_pairs._BLOCK_POSITIVES, "block_j": triton_pairs._BLOCK_ITEMS, **options}
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    made = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=places), target=GPUTarget("cuda", capability, 32)
    )
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "kernel.ptx"
        code.write_text(made.asm["ptx"])
        target = re.search(r"\.target (sm_\w+)", made.asm["ptx"])
        assert target is not None
        command = [
            get_ptxas(capability).path,
            "-v",
            f"--gpu-name={target.group(1)}",
            str(code),
            "-o",
            str(code.with_suffix(".cubin")),
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        told = said.stderr + said.stdout
        if said.returncode:
            raise RuntimeError(f"{command}: {told[-2000:]}")
    registers, spills = re.search(r"Used (\d+) registers", told), re.search(r"(\d+) bytes spill stores", told)
    return {
        "registers": int(registers.group(1)) if registers else -1,
        "shared_bytes": int(made.metadata.shared),
        "spilled_bytes": int(spills.group(1)) if spills else -1,
        "cubin_bytes": len(made.asm["cubin"]),
    }


# -- Right: every loss and metric against the CPU ---------------------------------------------------------------------


class _Loss(nn.Module):
    """A run's loss as a function of embeddings and labels."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.criterion(embeddings, labels, torch.arange(len(labels), device=labels.device) // 2)[0]


def loss_modules() -> dict[str, nn.Module]:
    """Return every loss of a run, and a few variants."""
    from hgld import Hierarchy, losses
    from hgld.losses.registry import LOSSES
    from hgld.training.config import LossConfig
    from hgld.training.criterion import build_criterion

    dim, (_, labels) = 16, batch_of(256, ties=False)
    tree = Hierarchy.from_labels(labels.numpy(), ("fine", "mid", "top"))
    given: Values = {"hierarchy": tree, "train_labels": labels, "dim": dim, "steps_per_epoch": 1}
    return {
        **{name: _Loss(build_criterion(LossConfig(loss=name), **given)) for name in LOSSES},
        "SoftBinAP, relaxed": losses.SoftBinAP(ties="relaxed"),
        "SupAP without the query": losses.SupAP(exclude_self=True),
        "SumOverLevels": losses.SumOverLevels(losses.SmoothAP()),
        "MatryoshkaLoss": losses.MatryoshkaLoss(losses.SupHAP(), (4, dim)),
    }


def right(bench: Bench) -> Iterator[Case]:
    for name, module in loss_modules().items():
        for ties in (False, True):
            told = f"{name}{' with ties' if ties else ''}"
            yield told, lambda module=module, ties=ties: loss_error(bench, module, ties=ties)
    yield "memory", lambda: memory_error(bench)
    yield "metrics", lambda: metric_error(bench, ties=False)
    yield "metrics with ties", lambda: metric_error(bench, ties=True)


def batch_of(items: int, *, ties: bool) -> tuple[Tensor, Tensor]:
    embeddings, labels = loss_benchmark.make(items, 16)
    if ties:
        embeddings = embeddings[torch.arange(items) // 2 * 2]  # duplicate every second item, so that scores are tied
    return embeddings, labels


def loss_error(bench: Bench, module: nn.Module, *, ties: bool) -> Values:
    """Return the largest relative differences of value and gradient from float64 on the CPU."""
    import copy

    embeddings, labels = batch_of(256 if not bench.toy else 64, ties=ties)
    found = []
    for device, dtype in ((bench.device, torch.float32), (torch.device("cpu"), torch.float64)):
        torch.manual_seed(0)
        loss = copy.deepcopy(module).to(device)
        if dtype == torch.float64:
            loss.double()
        leaf = embeddings.to(device, dtype).clone().requires_grad_()
        value = loss(leaf, labels.to(device))
        value.backward()
        assert leaf.grad is not None
        found.append((value.detach().cpu().double(), leaf.grad.cpu().double()))
    (value, gradient), (right_value, right_gradient) = found
    scale = right_gradient.abs().max().clamp(min=1e-12)
    return {
        "value": float(value),
        "value_error": float((value - right_value).abs() / right_value.abs().clamp(min=1e-12)),
        "gradient_error": float((gradient - right_gradient).abs().max() / scale),
    }


def memory_error(bench: Bench) -> Values:
    from hgld.losses import CrossBatchMemory, SupAP

    values = []
    for device in (bench.device, torch.device("cpu")):
        loss = CrossBatchMemory(SupAP(), 200, 16, num_levels=3).to(device)
        for step in range(4):
            embeddings, labels = batch_of(64 * (step + 1), ties=False)
            values.append(float(loss(embeddings[-64:].to(device), labels[-64:].to(device))))
    return {"value": values[3], "value_error": max(abs(a - b) for a, b in zip(values[:4], values[4:], strict=True))}


def metric_error(bench: Bench, *, ties: bool) -> Values:
    import hgld
    from hgld.evaluation.metric import offered_names

    embeddings, labels = batch_of(2000 if not bench.toy else 200, ties=ties)
    metrics = [name for name in offered_names() if not name.startswith("top-")]
    reports = [hgld.evaluate(embeddings.to(device), labels, metrics=metrics) for device in (bench.device, "cpu")]
    values = [{name: float(value) for name, value in report.values.items()} for report in reports]
    errors = {name: abs(value - values[1][name]) for name, value in values[0].items()}
    return {"values": len(errors), "largest_error": max(errors.values()), "of": max(errors, key=lambda n: errors[n])}


# -- Losses: Triton, compiled torch over the positives, the equations -------------------------------------------------

_MOST_CUBIC = 1024  # maximum batch size for losses that build (B, B, B) tensors


def losses(bench: Bench) -> Iterator[Case]:
    for items in bench.sizes((256, 1024, 4096, 16384), (32,)):
        for name in ("SmoothAP", "SupHAP", "SupNDCG", "PNP", "SoftBinAP", "Triplet", "BlackboxAP"):
            yield f"hgld {name}, B {items}", lambda n=name, b=items: loss_speed(bench, f"hgld {n}", b)
        yield f"torch over the positives SmoothAP, B {items}", lambda b=items: positives_speed(bench, b)
        if items <= _MOST_CUBIC:
            for name in loss_benchmark.EQUATIONS:
                yield f"equations {name}, B {items}", lambda n=name, b=items: loss_speed(bench, f"equations {n}", b)
        yield f"GEMM, B {items}", lambda b=items: gemm_speed(bench, b)


def loss_speed(bench: Bench, side: str, items: int, bank: int = 0) -> Values:
    embeddings, labels = (part.to(bench.device) for part in loss_benchmark.make(max(items, bank), 512))
    loss = loss_benchmark.loss_of(side, (embeddings, labels) if bank else None)
    return timed_loss(bench, loss, embeddings[:items], labels[:items])


def timed_loss(bench: Bench, loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> Values:
    def run() -> None:
        leaf = embeddings.clone().requires_grad_()
        loss(leaf, labels).backward()

    return {"ms": round(bench.milliseconds(run), 3), "peak_mb": round(bench.peak_mb(run), 1)}


def smooth_ap_over_positives(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return Smooth-AP of adjacent classes of four items, computed in plain torch with tensors (B, 4, B)."""
    unit = nn.functional.normalize(embeddings)
    scores = unit @ unit.T
    mine = torch.arange(len(unit), device=unit.device) // 4 * 4
    places = mine[:, None] + torch.arange(4, device=unit.device)
    found = scores.gather(1, places)
    step = torch.sigmoid((scores[:, None, :] - found[:, :, None]) / loss_benchmark.TAU)
    ranks, among = 0.5 + step.sum(2), 0.5 + step.gather(2, places[:, None, :].expand(-1, 4, -1)).sum(2)
    return 1 - (among / ranks).mean()


def positives_speed(bench: Bench, items: int) -> Values:
    embeddings, labels = (part.to(bench.device) for part in loss_benchmark.make(items, 512))
    loss = smooth_ap_over_positives if bench.toy else torch.compile(smooth_ap_over_positives)
    return timed_loss(bench, loss, embeddings, labels)


def gemm_speed(bench: Bench, items: int) -> Values:
    embeddings, labels = (part.to(bench.device) for part in loss_benchmark.make(items, 512))
    return timed_loss(bench, loss_benchmark.loss_of(loss_benchmark.GEMM), embeddings, labels)


def memories(bench: Bench) -> Iterator[Case]:
    for bank in bench.sizes((60_000, 1_000_000), (300,)):
        for name in ("SmoothAP", "SupHAP"):
            for items in bench.sizes((1, 16, 256), (16,)):
                yield (
                    f"{name}, {items} queries against {bank:,}",
                    lambda n=name, b=items, m=bank: loss_speed(bench, f"hgld {n}", b, m),
                )


# -- A training step --------------------------------------------------------------------------------------------------


def model_of(backbone: str, size: int) -> Any:
    from hgld.training.config import ModelConfig
    from hgld.training.models.backbones import build_model

    pooling = "token" if "vit" in backbone else "avg"
    return build_model(ModelConfig(backbone=backbone, pretrained="none", pooling=pooling), image_size=size)


def step_of(bench: Bench, backbone: str, size: int, fields: Values) -> Callable[[], None]:
    """Return a training step of ``hgld train`` on images in page-locked memory."""
    import numpy as np

    from hgld import Hierarchy
    from hgld.data.batch import Batch
    from hgld.distributed import Processes
    from hgld.training import loop
    from hgld.training.config import TrainConfig, with_fields
    from hgld.training.criterion import build_criterion
    from hgld.training.optimizers import build_optimizers, weight_average

    config = with_fields(TrainConfig(), fields)
    items = config.batch.batch_size
    classes = items // 4
    groups = max(classes // 8, 1)
    tree = Hierarchy(
        ("fine", "coarse"),
        (tuple(map(str, range(classes))), tuple(map(str, range(groups)))),
        (np.minimum(np.arange(classes) // 8, groups - 1),),
    )
    labels = torch.as_tensor(tree.expand(np.repeat(np.arange(classes), 4))).long()
    model = model_of(backbone, size).to(bench.device, memory_format=torch.channels_last).train()
    criterion = build_criterion(config.loss, hierarchy=tree, train_labels=labels, dim=model.dim, steps_per_epoch=1)
    criterion.to(bench.device).train()
    if config.model.compile:
        model.backbone.compile()
        criterion.compile()
    parts = {**model.parameter_groups(), "proxies": list(criterion.named_parameters())}
    state: Any = SimpleNamespace(
        config=config,
        processes=Processes(0, 1, bench.device),
        model=model,
        wrapped=model,
        criterion=criterion,
        optimizers=build_optimizers(config.optimizer, parts),
        scaler=torch.amp.GradScaler(bench.device.type, enabled=config.optimizer.amp == "fp16"),
        average=weight_average(model, config.optimizer.ema) if config.optimizer.ema else None,
        data=SimpleNamespace(steps_per_epoch=1000),
        step=0,
    )
    backward = loop._backward(state)
    images = torch.randint(255, (items, 3, size, size), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    images = images.pin_memory() if bench.device.type == "cuda" else images
    batch = Batch(images, labels, torch.arange(items))

    def run() -> None:
        loop._step(state, backward, batch)
        state.step += 1

    return run


def shapes(bench: Bench) -> dict[str, tuple[str, int, int]]:
    if bench.toy:
        return {"small net": ("small", 32, 8)}
    return {"ResNet-50": ("torchvision:resnet50", 224, 256), "ViT-B/16": ("torchvision:vit_b_16", 224, 256)}


def steps(bench: Bench) -> Iterator[Case]:
    for name, (backbone, size, items) in shapes(bench).items():
        for compiled in (False, True) if not bench.toy else (False,):
            for amp in ("bf16", "off"):
                fields = {"batch_size": items, "amp": amp, "compile": compiled}
                told = f"{name}, batch {items}, amp {amp}{', compiled' if compiled else ''}"
                yield told, lambda b=backbone, s=size, f=fields: step_speed(bench, b, s, f)


def step_speed(bench: Bench, backbone: str, size: int, fields: Values) -> Values:
    from hgld.training.config import TrainConfig, with_fields
    from hgld.training.loop import arithmetic

    with arithmetic(with_fields(TrainConfig(), fields), bench.device):
        run = step_of(bench, backbone, size, fields)
        ms = bench.milliseconds(run)
        peak = bench.peak_mb(run)
    items = fields["batch_size"]
    loss = loss_speed(bench, "hgld SupHAP", items)["ms"]
    return {
        "ms": round(ms, 1),
        "images_per_second": round(1000 * items / ms),
        "peak_mb": round(peak),
        "loss_share": round(loss / ms, 4),
    }


FAMILIES: dict[str, Values] = {
    "HAPPIER": {},
    "ROADMAP": {"loss": "ROADMAP"},
    "Sup-NDCG": {"loss": "RODNDCG"},
    "recall with SiMix": {"loss": "SmoothRecall", "simix": True},
    "PNP": {"loss": "PNP"},
    "SoftBinAP": {"loss": "SoftBinAP"},
    "BlackboxAP": {"loss": "BlackboxAP"},
    "Triplet": {"loss": "Triplet"},
    "Margin": {"loss": "Margin"},
    "CSL": {"loss": "CSL", "csl_margins": (0.25, 0.45)},
    "memory": {"memory": 4096, "memory_from_epoch": 0},
    "fp16, average, clipped": {"amp": "fp16", "ema": 0.999, "clip_norm": 1.0},
    "chunks": {"micro_batch_size": 16, "freeze_batch_norm": True},
}


def stalls(bench: Bench) -> Iterator[Case]:
    for name, fields in list(FAMILIES.items())[:: 6 if bench.toy else 1]:
        yield name, lambda f=fields: stalls_of(bench, f)


def stalls_of(bench: Bench, fields: Values) -> Values:
    """Count GPU synchronisations in five steps with torch's debug mode and with the profiler."""
    items = 64 if not bench.toy else 8
    run = step_of(bench, "small", 64 if not bench.toy else 16, {"batch_size": items, **fields})
    for _ in range(3):
        run()
    bench.wait()
    on_gpu = bench.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    try:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("error")
        run()
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("default")
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(5):
            run()
    waits = {
        event.key: event.count
        for event in profile.key_averages()
        if re.search(r"Synchronize|aten::item|_local_scalar_dense|aten::nonzero|Memcpy DtoH", event.key)
    }
    return {"waits_in_5_steps": sum(waits.values()) if on_gpu else -1, "calls": waits}


# -- Loader, evaluation, processes ------------------------------------------------------------------------------------


def loader(bench: Bench) -> Iterator[Case]:
    for workers in bench.sizes((1, 4, 8, 16, 0), (1,)):
        yield f"{workers or 'auto'} threads", lambda w=workers: loader_speed(bench, w)


def loader_speed(bench: Bench, workers: int) -> Values:
    import made_shards

    from hgld import open_dataset
    from hgld.data import Loader, TrainView
    from hgld.samplers import EpochSampler

    count, side = (2048, 256) if not bench.toy else (64, 32)
    shards, _ = made_shards.make_dataset(bench.out / "made" / f"{count}-{side}", count, side, side)
    dataset = open_dataset(shards, "train")
    size = 224 if not bench.toy else 16
    items = min(256 if not bench.toy else 16, len(dataset))
    pin = bench.device.type == "cuda"
    sampler = EpochSampler(len(dataset), items, drop_last=True)
    reader = Loader(dataset, sampler, TrainView(size=size), workers=workers, pin_memory=pin)
    seen, began = 0, 0.0
    for epoch in range(3):
        if epoch == 1:
            began = time.perf_counter()
        for batch in reader:
            batch.images.to(bench.device, non_blocking=True)
            seen += len(batch.images) * (epoch > 0)
    bench.wait()
    return {"images_per_second": round(seen / (time.perf_counter() - began)), "cores": os.cpu_count() or 0}


def evaluation(bench: Bench) -> Iterator[Case]:
    if bench.toy:
        sizes = {"toy": (200, 200, 16)}
    else:
        sizes = {"SOP": (60_502, 60_502, 512), "iNaturalist": (136_093, 136_093, 512), "GLDv2": (1_000, 4_132_914, 512)}
    for name, (queries, gallery, dim) in sizes.items():
        for metrics in (("R@1", "mAP@100"), ("R@1", "AP", "H-AP", "NDCG", "ASI")):
            told = f"{name}: {queries:,} x {gallery:,} x {dim}, {', '.join(metrics)}"
            yield told, lambda q=queries, g=gallery, d=dim, m=metrics: evaluation_speed(bench, q, g, d, m)


def evaluation_speed(bench: Bench, queries: int, gallery: int, dim: int, metrics: tuple[str, ...]) -> Values:
    import hgld

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(max(gallery // 20, 2), (gallery,), generator=generator)
    labels = torch.stack([labels, labels // 50], dim=1)
    embeddings = torch.randn(gallery, dim, generator=generator, dtype=torch.float32)
    arguments: tuple[Any, ...] = (embeddings, labels)
    if queries != gallery:
        arguments = (embeddings[:queries] + 0.5, labels[:queries], embeddings, labels)

    began = time.perf_counter()
    report = hgld.evaluate(*arguments, metrics=metrics, device=str(bench.device))
    seconds = time.perf_counter() - began
    unit, rows = embeddings.to(bench.device), min(queries, 1000)
    part = unit[:rows]
    gemm = bench.milliseconds(lambda: part @ unit.T, most=5) * queries / rows / 1000
    values = {name: round(float(value), 6) for name, value in report.values.items()}
    return {"seconds": round(seconds, 2), "gemm_seconds": round(gemm, 3), "values": values}


def processes(bench: Bench) -> Iterator[Case]:
    most = torch.cuda.device_count() if bench.device.type == "cuda" else 2
    for count in (n for n in (1, 2, 4, 8) if n <= most):
        yield f"{count} processes", lambda n=count: exchanged(bench, n)


def exchanged(bench: Bench, count: int) -> Values:
    """Measure a step of DDP and the gathering of embeddings in several processes."""
    return together(count, exchange, bench)[0]


def exchange(bench: Bench) -> Values:
    """Run one process of :func:`exchanged`."""
    from hgld import distributed

    with distributed.process_group("cpu" if bench.device.type == "cpu" else "", lambda: "") as own:
        there = replace(bench, device=own.device)
        items, dim = (128, 512) if not bench.toy else (4, 8)
        rows = torch.randn(items, dim, device=own.device, requires_grad=True)
        gather = there.milliseconds(lambda: distributed.gather_with_gradients(rows, own).sum().backward())
        name, (backbone, size, _) = next(iter(shapes(bench).items()))
        model = model_of(backbone, size).to(own.device)
        wrapped = distributed.wrap_model(model, own)
        images = torch.randn(items if not bench.toy else 4, 3, size, size, device=own.device)

        def step() -> None:
            with torch.autocast(own.device.type, dtype=torch.bfloat16):
                found = wrapped(images)
            distributed.gather_with_gradients(found.float(), own).square().mean().backward()

        ms = there.milliseconds(step)
        flag = there.milliseconds(lambda: distributed.any_process(False, own))
        speed = round(own.count * len(images) * 1000 / ms)
        told = {"gather_ms": round(gather, 3), "flag_ms": round(flag, 3), f"{name} step_ms": round(ms, 2)}
        return told | {"images_per_second": speed}


# -- A real run -------------------------------------------------------------------------------------------------------


def training(bench: Bench) -> Iterator[Case]:
    if bench.data is None and not bench.toy:
        return
    for number, _ in enumerate(bench.sizes((1, 2, 3), (1,))):
        yield f"happier-sop, {number * 7}th to {number * 7 + 7}th minute", lambda: trained(bench)


def trained(bench: Bench) -> Values:
    """Train for seven minutes; the next case resumes the run."""
    run, seconds = bench.out / "happier-sop", 420.0
    command = [sys.executable, "-m", "hgld", "train", "happier-sop", "--data", str(bench.data), "--out", str(run)]
    command += ["--json", "--amp", "bf16", "--evaluate-on", ""]
    if bench.toy:
        command[command.index("--data") + 1] = str(bench.out / "made" / "64-32" / "dataset")
        command += ["--backbone", "small", "--pretrained", "none", "--batch-size", "8", "--images-per-class", "4"]
        command += ["--epochs", "1", "--steps-per-epoch", "2", "--frozen-epochs", "0", "--device", "cpu"]
        command += ["--size", "16", "--resize", "16", "--dim", "8", "--sampler", "pk"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=120)
    found = json.loads(out[out.index("{") :]) if "{" in out else None
    if found is None:
        raise RuntimeError(f"hgld train ended with {process.returncode}: {errors[-3000:]}")
    return {name: found[name] for name in ("step", "images_per_second", "wait_share", "finished")}


PARTS: dict[str, Callable[[Bench], Iterator[Case]]] = {
    "here": here,
    "kernels": kernels,
    "right": right,
    "losses": losses,
    "memories": memories,
    "stalls": stalls,
    "steps": steps,
    "loader": loader,
    "evaluation": evaluation,
    "processes": processes,
    "train": training,
}


# -- Run cases in turn, save each result ------------------------------------------------------------------------


def run_part(part: str, bench: Bench, done: Lines) -> bool:
    """Run the remaining cases of a part; return whether all are done."""

    def keep(name: str, result: Values) -> None:
        done.add({"part": part, "case": name, **result})
        print(f"{part} | {name} | {in_short(result)}", flush=True)
        write_table(bench.out, done)

    bench.deadline = time.monotonic() + _PART_SECONDS
    try:
        for name, case in PARTS[part](bench):
            if "values" in (done.get({"part": part, "case": name}) or {}):
                continue
            if time.monotonic() > bench.deadline:
                print(
                    f"{part}: the time limit of this call is reached; the same command runs the remaining cases.",
                    flush=True,
                )
                return False
            began = time.monotonic()
            try:
                result: Values = {"values": case()}
            except Exception:  # noqa: BLE001  # a failed case must not stop the next cases
                result = {"traceback": traceback.format_exc()}
            keep(name, {**result, "seconds": round(time.monotonic() - began, 2)})
    except Exception:  # noqa: BLE001  # a failed case must not stop the next cases
        keep("the part itself", {"traceback": traceback.format_exc()})
    return True


def in_short(result: Values) -> str:
    if "traceback" in result:
        return f"FAILED: {result['traceback'].strip().splitlines()[-1][:160]}"
    return ", ".join(f"{name} {value}" for name, value in result["values"].items())


def write_table(out: Path, done: Lines) -> None:
    lines = [head("part", "case", "found", "seconds")]
    for one in done.rows.values():
        cells = one["part"], one["case"], in_short(one).replace("|", "\\|"), one.get("seconds", "")
        lines.append(row(cells))
    (out / "gpu.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> int:
    parser = make_parser(__doc__, out=Path)
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="part to run; again for more; default: all parts"
    )
    parser.add_argument("--data", type=Path, help="dataset directory of Stanford Online Products, for the part train")
    parser.add_argument("--toy", action="store_true", help="use toy sizes even on a GPU")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    bench = Bench(
        torch.device("cuda" if on_gpu else "cpu"), options.out, options.data, options.toy or not on_gpu, options.toy
    )
    options.out.mkdir(parents=True, exist_ok=True)
    done = Lines(options.out / "gpu.jsonl", ("part", "case"))
    whole = [run_part(part, bench, done) for part in options.part or PARTS]
    failed = sum("traceback" in result for result in done.rows.values())
    print(f"{options.out / 'gpu.md'}: {len(done.rows)} cases, {failed} failed", flush=True)
    return 0 if all(whole) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
