"""The processes of a run, and the few things that they say to each other; the one door to ``torch.distributed``.

Every process reads its part of a batch, computes its embeddings, gathers those of all, and takes the same loss of the
whole batch. So memories, miners and normalisers over the batch mean what they mean in one process, and the gradients
are those of the one loss.
"""

import json
import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hgld.errors import ConfigError

TIMEOUT_MINUTES = 15.0  # evaluation on the main process may keep the others waiting


@dataclass(frozen=True)
class Processes:
    """Which of the run's processes this one is.

    Attributes:
        index: of this process, from 0.
        count: of all processes.
        device: that this process computes on.
    """

    index: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to people."""
        return self.index == 0


def launch(device: str = "", timeout_minutes: float = TIMEOUT_MINUTES) -> Processes:
    """Join the processes that torchrun or Slurm started; alone where neither did.

    Args:
        device: ``cpu``, ``cuda``, ...; default: this process's GPU where there is one.
        timeout_minutes: after which a process that waits for another one gives up.

    Raises:
        ConfigError: the environment is incomplete, or there are more processes on this machine than GPUs.
    """
    index, count, local = _environment()
    chosen = _device(device, local)
    if count > 1 and not dist.is_initialized():
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=index, world_size=count, timeout=timedelta(minutes=timeout_minutes))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return Processes(index, count, chosen)


def leave(processes: Processes) -> None:
    """Take leave of the other processes."""
    if processes.count > 1 and dist.is_initialized():
        dist.destroy_process_group()


def _environment() -> tuple[int, int, int]:
    """Index, count and index on this machine, as torchrun or else Slurm (srun) says."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    elif "RANK" not in os.environ:
        return 0, 1, 0
    missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"{names[0]} is set but {', '.join(missing)} is not; start with torchrun, or under Slurm export "
            "MASTER_ADDR and MASTER_PORT of the first node (docs/training.md has the lines)."
        )
    index, count, local = (int(os.environ[name]) for name in names)
    return index, count, local


def _device(asked: str, local: int) -> torch.device:
    if asked != "cuda" and (asked or not torch.cuda.is_available()):
        try:
            chosen = torch.device(asked or "cpu")
            torch.empty(0, device=chosen)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            reason = str(error).partition(". ")[0].rstrip(".")  # what follows lists torch's builds
            raise ConfigError(f"device {asked!r} cannot be used here ({reason}). Take the device cpu.") from error
        return chosen
    if local >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local} of this machine has no GPU of its own: there are {torch.cuda.device_count()}. "
            "Start as many processes as GPUs (torchrun --nproc-per-node)."
        )
    return torch.device("cuda", local)


class _Gather(torch.autograd.Function):
    """All processes' rows, in the order of the processes; backward takes the own rows' gradient, times their number.

    Every process takes the same loss of all rows, so the gradient of the one loss with respect to its own rows is its
    slice; DistributedDataParallel then takes the mean over the processes, which the factor undoes.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: Processes) -> Tensor:
        ctx.processes, ctx.size = processes, len(rows)
        return _gathered(rows, processes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        start = ctx.processes.index * ctx.size
        return grads[0][start : start + ctx.size] * ctx.processes.count, None


def _gathered(rows: Tensor, processes: Processes) -> Tensor:
    out = rows.new_empty((processes.count * len(rows), *rows.shape[1:]))
    dist.all_gather_into_tensor(out, rows.detach().contiguous())
    return out


def gather_with_gradients(rows: Tensor, processes: Processes) -> Tensor:
    """All processes' rows with a gradient path to one's own.

    Args:
        rows: (b, ...) floating, as many on every process.
        processes: of the run.

    Returns:
        (count x b, ...) in the order of the processes; ``rows`` itself where there is one process.
    """
    if processes.count == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows, processes)  # pyright: ignore[reportAssignmentType]
    return gathered


def gather(rows: Tensor, processes: Processes) -> Tensor:
    """All processes' rows, in the order of the processes, without gradients: (b, ...) -> (count x b, ...)."""
    return rows if processes.count == 1 else _gathered(rows, processes)


def wrap(model: nn.Module, processes: Processes, *, sync_batch_norm: bool = False) -> nn.Module:
    """The model as the processes train it together.

    Args:
        model: on this process's device.
        processes: of the run.
        sync_batch_norm: batch norm's statistics over all processes.

    Raises:
        ConfigError: synchronised batch norm on a CPU, where torch has none.
    """
    if sync_batch_norm and processes.device.type != "cuda":
        raise ConfigError("--sync-batch-norm needs GPUs; the small net has group norm and needs none.")
    if processes.count == 1:
        return model
    if sync_batch_norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ids = [processes.device.index] if processes.device.type == "cuda" else None
    # Buffers are the same everywhere (group norm has none, frozen or synchronised batch norm agrees), or each
    # process's own statistics, of which the main process's are kept in checkpoints.
    with warnings.catch_warnings():
        # The argument's successor, of torch 2.13, is not known to the releases before it.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside :func:`wrap`'s."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def without_gradient_exchange(model: nn.Module) -> AbstractContextManager[None]:
    """Backward passes inside add up gradients on this process alone; the first one outside exchanges them all."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def average_gradients(parameters: Iterable[nn.Parameter], processes: Processes) -> None:
    """Mean over the processes of the gradients of parameters outside the wrapped model."""
    if processes.count == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= processes.count


def any_process(flag: bool, processes: Processes) -> bool:
    """Whether the flag is raised on any process; every process gets the same answer."""
    if processes.count == 1:
        return flag
    raised = torch.tensor([int(flag)], device=processes.device)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX)
    return bool(raised.item())


def from_main(value: Any, processes: Processes) -> Any:
    """The main process's value on all of them; it must be JSON-ready (nothing is unpickled)."""
    if processes.count == 1:
        return value
    text = json.dumps(value).encode() if processes.is_main else b""
    size = torch.tensor([len(text)], device=processes.device)
    dist.broadcast(size, 0)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(int(size), dtype=torch.uint8)
    data = data.to(processes.device)
    dist.broadcast(data, 0)
    return json.loads(bytes(data.cpu().tolist()))


def from_all(data: bytes, processes: Processes) -> list[bytes]:
    """What every process says, in their order, on all of them."""
    if processes.count == 1:
        return [data]
    sizes = _gathered(torch.tensor([len(data)], device=processes.device), processes).tolist()
    if not max(sizes):
        return [b""] * len(sizes)
    padded = torch.frombuffer(bytearray(data.ljust(max(sizes), b"\0")), dtype=torch.uint8).to(processes.device)
    rows = _gathered(padded[None], processes).cpu().numpy()
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def wait_for_all(processes: Processes) -> None:
    """Wait until every process is here."""
    if processes.count > 1:
        dist.barrier()
