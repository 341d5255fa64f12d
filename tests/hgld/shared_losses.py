"""Plain training loop with a DistributedLoss, which test_distributed_losses.py runs in several processes."""

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hgld import distributed, losses
from hgld.hierarchy import Hierarchy
from hgld.losses.proxies import ClassSoftmax

SIZE, DIM, CLASSES, STEPS = 24, 6, 8, 2
FINE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, -1, 4, 5, 5, 6, 7, 7, 6, 1, 0, 3, 4, 4, 2])
TREE = Hierarchy.from_labels(torch.tensor([[i, i // 4] for i in range(CLASSES)]).numpy(), ("fine", "coarse"))
MEMORY = 41  # size of the memory: not a multiple of the number of processes; the second step fills it


def memory_of(loss: nn.Module) -> nn.Module:
    return losses.CrossBatchMemory(loss, MEMORY, DIM, num_levels=2, weight=0.5)


SHARED = {
    "SmoothAP": lambda: losses.SmoothAP(tau=0.1),
    "SupAP": lambda: losses.SupAP(exclude_self=True),
    "SupHAP": losses.SupHAP,
    "SupNDCG": losses.SupNDCG,
    "SupRecall": losses.SupRecall,
    "SoftBinAP": losses.SoftBinAP,
    "FastAP": losses.FastAP,
    "PNP": lambda: losses.PNP(tau=0.1),
    "CalibrationLoss": losses.CalibrationLoss,
    "Contrastive": losses.Contrastive,
    "NormSoftmax": lambda: losses.NormSoftmax(CLASSES, DIM),
    "ProxyNCApp": lambda: losses.ProxyNCApp(CLASSES, DIM),
    "CSL": lambda: losses.CSL(TREE, DIM),
    "HAPPIER": lambda: losses.HAPPIER(CLASSES, DIM),
    "ROADMAP": lambda: losses.ROADMAP(),
    "SumOverLevels": lambda: losses.SumOverLevels(losses.SupAP()),
    "ClassWeighted": lambda: losses.ClassWeighted(losses.SoftBinAP(reduction="none"), torch.arange(1.0, 9.0)),
    "Triplet": losses.Triplet,
    "MatryoshkaLoss": lambda: losses.MatryoshkaLoss(losses.SupHAP(), (2, DIM), weights=(1, 3)),
    "MatryoshkaLoss of HAPPIER": lambda: losses.MatryoshkaLoss(
        [losses.HAPPIER(CLASSES, dim) for dim in (2, DIM)], (2, DIM)
    ),
    "memory": lambda: memory_of(losses.SupAP(exclude_self=True)),
    "memory, Triplet": lambda: memory_of(losses.Triplet()),
    "memory, MatryoshkaLoss": lambda: memory_of(losses.MatryoshkaLoss(losses.SupAP(), (2, DIM))),
    "memory of a composition": lambda: memory_of(losses.HAPPIER(CLASSES, DIM)),
}
WHOLE = {
    "Margin": lambda: losses.Margin(DIM),
    "MultiGrain": lambda: losses.MultiGrain(CLASSES, DIM),
    "BlackboxAP": losses.BlackboxAP,
    "SiMix": lambda: losses.SiMix(losses.SmoothRecall(normalize=False)),
    "CalibrationLoss, nonzero": lambda: losses.CalibrationLoss(reduction="nonzero"),
    "ROADMAP, nonzero": lambda: losses.Composition(losses.SupAP(), losses.CalibrationLoss(reduction="nonzero")),
    "balanced": lambda: losses.ClassWeighted(losses.SoftBinAP(reduction="none"), "balanced"),
    "BlackboxAP with proxies": lambda: losses.Composition(losses.BlackboxAP(), losses.NormSoftmax(CLASSES, DIM), 0.5),
    "memory, Margin": lambda: memory_of(losses.Margin(DIM)),
    "MatryoshkaLoss of Margin": lambda: losses.MatryoshkaLoss([losses.Margin(dim) for dim in (2, DIM)], (2, DIM)),
}


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, DIM)).double()


def step_input(step: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    order = torch.randperm(SIZE, generator=generator)
    fine = FINE[order]
    # One item is known only at the coarse level.
    labels = torch.stack([fine, torch.where(fine >= 0, fine // 4, 1)], dim=1)
    return torch.randn(SIZE, 10, generator=generator, dtype=torch.float64), labels, torch.arange(SIZE) // 2


def gradients(index: int, count: int, is_split: bool = False) -> dict[str, Tensor]:
    """Return gradients and losses of a few steps on this process's part of every batch.

    Args:
        index: rank of this process.
        count: number of processes.
        is_split: whether each process holds only its rows of the proxies; gradients of proxies are whole anyway.
    """
    found = {}
    part = SIZE // count
    own = slice(index * part, (index + 1) * part)
    for name, make in {**SHARED, **WHOLE}.items():
        if is_split and not any(isinstance(part, ClassSoftmax) for part in make().modules()):
            continue
        torch.manual_seed(0)
        inner = model()
        net = inner if count == 1 else DistributedDataParallel(inner)
        criterion = distributed.DistributedLoss(make().double())
        for part in criterion.loss.modules():
            if is_split and isinstance(part, ClassSoftmax):
                part.share(criterion.processes)
        for step in range(STEPS):
            net.zero_grad()
            criterion.zero_grad()
            images, labels, instances = (table[own] for table in step_input(step))
            torch.manual_seed(step + 100 * index)  # a different seed per process, as in real training
            others = {"instances": instances} if name == "MultiGrain" else {}
            value = criterion(net(images), labels, **others)
            value.backward()
            criterion.average_gradients()
            found[f"{name}/{step}/value"] = value.detach()
            for key, parameter in [*inner.named_parameters(), *criterion.loss.named_parameters()]:
                if parameter.grad is not None:
                    gradient = parameter.grad.clone()
                    if isinstance(parameter, distributed.RowShare) and count > 1:
                        gradient = torch.zeros(parameter.whole_shape, dtype=torch.float64)
                        gradient[parameter.rows] = parameter.grad
                        dist.all_reduce(gradient)
                    found[f"{name}/{step}/{key}"] = gradient
    return found


def answer(out: str, is_split: bool) -> None:
    """Run as one of torchrun's processes, and write the gradients to a file."""
    run = distributed.launch("cpu")
    found = gradients(run.index, run.count, is_split)
    save_file({key: value.contiguous() for key, value in found.items()}, f"{out}.{run.index}")
    distributed.wait_for_all(run)
    distributed.shutdown(run)
