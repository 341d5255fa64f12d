"""Gradients of every loss in two processes, for ``tests/training/test_distributed.py``."""

import os
import socket

import torch
import torch._dynamo  # import before the fork, else both processes import it for DistributedDataParallel
from safetensors.torch import save_file
from torch import nn
from torch.multiprocessing.spawn import start_processes

from hgld import distributed, losses
from hgld.training.step import Backward, StepInput

SIZE = 32


class Criterion(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, embeddings, labels, instances):
        if isinstance(self.loss, losses.MultiGrain):
            value = self.loss(embeddings, labels, instances=instances)
        else:
            value = self.loss(embeddings, labels)
        return value, {"loss": value}


LOSSES = {
    "HAPPIER": lambda: losses.HAPPIER(8, 8),
    "Triplet": lambda: losses.Triplet(),
    "MultiGrain": lambda: losses.MultiGrain(8, 8),
    "memory": lambda: losses.CrossBatchMemory(losses.SupAP(), 48, 8, num_levels=2),
    "SiMix": lambda: losses.SiMix(losses.SmoothRecall(normalize=False)),
}


def model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 8))


def global_batch(step):
    generator = torch.Generator().manual_seed(step)
    fine = torch.arange(SIZE) // 4
    images = torch.randint(0, 256, (SIZE, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return images, torch.stack([fine, fine // 3], dim=1), torch.arange(SIZE) // 2


def gradients(processes, chunk):
    """Return gradients and losses of two steps of every loss; the first step fills the memory."""
    found = {}
    for name, make in LOSSES.items():
        torch.manual_seed(0)
        inner = model()
        net = distributed.wrap_model(inner, processes)
        criterion = Criterion(make())
        backward = Backward(net, criterion, processes, lambda images: images.float() / 255, micro_batch_size=chunk)
        part = SIZE // processes.count
        own = slice(processes.index * part, (processes.index + 1) * part)
        for step in range(2):
            net.zero_grad()
            criterion.zero_grad()
            images, labels, instances = global_batch(step)
            values = backward(StepInput(images[own], labels[own], instances[own], seed=step))
            found[f"{name}/{step}/value"] = values.loss
            for key, parameter in [*inner.named_parameters(), *criterion.named_parameters()]:
                if parameter.grad is not None:
                    found[f"{name}/{step}/{key}"] = parameter.grad.clone()
    return found


def talk(processes):
    """Exchange flags, a value of the main process, rows and statistics, and return what this process received."""
    norm = nn.Sequential(nn.BatchNorm2d(2), nn.InstanceNorm2d(2, track_running_stats=True), nn.BatchNorm1d(2))
    for buffer in norm.buffers():
        buffer.fill_(processes.index + 5)
    distributed.share_statistics(norm, processes)
    heard = distributed.from_main({"note": "ü", "of": processes.index}, processes)
    rows = distributed.gather(torch.tensor([processes.index]), processes)
    return {
        "heard": torch.tensor(int(heard == {"note": "ü", "of": 0})),
        "rows": rows,
        "statistics": torch.cat([buffer.reshape(-1).float() for buffer in norm.buffers()]),
        "any": torch.tensor([distributed.any_process(flag == processes.index, processes) for flag in range(3)]),
    }


def answer(index: int, out: str, port: str) -> None:
    """Run as one of two processes: join the group as under torchrun, and write the results."""
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    run = distributed.launch("cpu")
    answers = {f"chunk{chunk}/{name}": v for chunk in (0, 5) for name, v in gradients(run, chunk).items()} | talk(run)
    save_file(answers, out if run.is_main else f"{out}.{run.index}")
    distributed.wait_for_all(run)
    distributed.shutdown(run)


def answer_in_two(out: str) -> None:
    """Run two forked processes; torch is imported before the fork, because its import takes most of the time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = str(free.getsockname()[1])
    start_processes(answer, (out, address), nprocs=2, start_method="fork")
