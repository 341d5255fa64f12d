"""The processes of a run: their numbers, signals that ask them to stop, and the data that they exchange.

Only this module uses ``torch.distributed``. Every process reads its part of a batch, computes its embeddings and
gathers the embeddings of all processes. If the loss is a mean over queries, a process computes the part of its own
queries; otherwise it computes the loss of the whole batch. So memories, miners and normalisers over the batch work as
in one process, and the gradients are those of the one loss.
"""

import itertools
import json
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]  # not in __all__
    rendezvous,  # pyright: ignore[reportPrivateImportUsage]  # not in __all__
)
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from hgld.errors import ConfigError, HgldError, InputError

if TYPE_CHECKING:
    from hgld.losses.rank_loss import TermSum


def is_main_process() -> bool:
    """Tell whether this is the first process that torchrun or Slurm started; it works before they are connected."""
    return os.environ.get(_variables()[0], "0") == "0"


def _variables() -> tuple[str, str, str]:
    """Return the names of the variables that hold index, count and index on this machine."""
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
    return "RANK", "WORLD_SIZE", "LOCAL_RANK"


def rank_from_env() -> tuple[int, int, int]:
    """Return index, count and index on this machine from torchrun's or Slurm's variables; 0, 1, 0 without either.

    Raises:
        ConfigError: the environment is incomplete.
    """
    names = _variables()
    if names[0] == "RANK" and "RANK" not in os.environ:
        return 0, 1, 0
    missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        started = "RANK" if "RANK" in os.environ else "SLURM_STEP_NUM_TASKS"
        raise ConfigError(
            f"{started} is set but {', '.join(missing)} is not; start with torchrun, or under Slurm export "
            "MASTER_ADDR and MASTER_PORT of the first node (docs/how-to/training.md has the lines)."
        )
    index, count, local = (int(os.environ[name]) for name in names)
    return index, count, local


# -- Signals that ask a run to stop: after the first signal the step ends, the second stops it at once --


class StopRequests:
    """Requests to stop that came as signals; true after the first signal.

    Attributes:
        signal: number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Catch SIGTERM (from a scheduler), SIGINT (Ctrl-C) and SIGHUP (a closing terminal) during a run.

    Every process of a group gets these signals: torchrun and Slurm pass them on. Ignored signals stay ignored: nohup
    ignores SIGHUP.
    """
    requests, before = StopRequests(), {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, requests._handle)
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- Starting and leaving the group --

_TIMEOUT = timedelta(minutes=15)  # evaluation on the main process may keep the others waiting
_STARTS = itertools.count()
_SECONDS_TO_REST = 0.5


@dataclass(frozen=True)
class Processes:
    """This process's number and device among the processes of a run.

    Attributes:
        index: number of this process, from 0.
        count: number of processes.
        device: device of this process.
    """

    index: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True for the process that writes files and prints."""
        return self.index == 0


def launch(device: str = "") -> Processes:
    """Join the processes that torchrun or Slurm started; without either, run alone.

    Args:
        device: ``cpu``, ``cuda``, ...; default: this process's GPU if there is one.

    Raises:
        ConfigError: the environment is incomplete, or there are more processes on this machine than GPUs.
    """
    index, count, local = rank_from_env()
    chosen = _device(device, local)
    if count > 1 and not dist.is_initialized():
        # Gloo exchanges small facts on the CPU, so that these exchanges do not wait for the GPU.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        # torchrun may keep one store over the restarts of its workers, and a sweep starts several runs: with keys of
        # this start alone, no process takes the address of an earlier process.
        store = next(iter(rendezvous("env://", index, count, timeout=_TIMEOUT)))[0]
        store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{next(_STARTS)}", store)
        dist.init_process_group(backend, store=store, rank=index, world_size=count, timeout=_TIMEOUT)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return Processes(index, count, chosen)


def shutdown(processes: Processes) -> None:
    """Leave the group of processes.

    Gloo's threads outlive the group once DDP has used it. A thread that releases a tensor while the interpreter shuts
    down aborts the process; this happened sometimes on busy machines (the cause is inferred, not proven). So the
    threads get a moment to finish after the last exchange. Signals wait meanwhile: if a process dies, torchrun sends
    SIGTERM to the others at once, and they still have to report what happened.
    """
    if processes.count > 1 and dist.is_initialized():
        with stop_requests():
            dist.destroy_process_group()
            time.sleep(_SECONDS_TO_REST)


@contextmanager
def process_group(device: str, hint: Callable[[], str]) -> Iterator[Processes]:
    """Join the processes for the body (:func:`launch`, :func:`shutdown`); a lost process is reported with ``hint``.

    If the processes are connected already, they stay connected afterwards.

    Args:
        device: ``cpu``, ``cuda``, ...; empty: this process's GPU if there is one.
        hint: returns the fix if another process is lost.

    Raises:
        HgldError: another process of the run died, or does not answer.
        ConfigError: as :func:`launch`.
    """
    is_outer = not dist.is_initialized()
    processes = launch(device)
    try:
        yield processes
    except RuntimeError as error:
        # NCCL has a class of errors. Gloo's errors are plain RuntimeErrors whose text begins with a file of its source.
        if not isinstance(error, dist.DistError) and "/gloo/" not in str(error):
            raise
        raise HgldError(
            f"process {processes.index} of {processes.count}: another process of the run is gone or does not answer; "
            f"its own message says why. {hint()}"
        ) from error
    finally:
        if is_outer:
            shutdown(processes)


def _device(asked: str, local: int) -> torch.device:
    if asked != "cuda" and (asked or not torch.cuda.is_available()):
        try:
            chosen = torch.device(asked or "cpu")
            torch.empty(0, device=chosen).cpu()  # fails for the device meta, which holds no numbers
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            reason = str(error).partition(". ")[0].rstrip(".")  # the rest lists torch's builds
            raise ConfigError(f"device {asked!r} cannot be used here ({reason}). Take the device cpu.") from error
        return chosen
    visible = torch.cuda.device_count()
    # Slurm may bind one GPU to each of its tasks, so that a task sees only this GPU, as number 0.
    one_per_task = any(os.environ.get(name) == "1" for name in ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU"))
    if visible == 1 and "SLURM_LOCALID" in os.environ and (one_per_task or "SLURM_GPU_BIND" in os.environ):
        return torch.device("cuda", 0)
    if local >= visible:
        raise ConfigError(
            f"process {local} of this machine has no GPU of its own: there are {visible}. "
            "Start as many processes as GPUs (torchrun --nproc-per-node; Slurm: --gpus-per-task 1, or as many "
            "--gpus-per-node as --ntasks-per-node)."
        )
    return torch.device("cuda", local)


# -- Exchanges between the processes --


class _Gather(torch.autograd.Function):
    """Gather all processes' rows in their order; backward returns the gradient of this process's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: Processes, adding: bool) -> Tensor:
        ctx.processes, ctx.size, ctx.adding = processes, len(rows), adding
        return _gathered(rows, processes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if ctx.adding:
            own = grads[0].new_empty((ctx.size, *grads[0].shape[1:]))
            _reduce_scatter(own, grads[0].contiguous())
        else:
            # Every process has this gradient. DistributedDataParallel takes the mean, which the factor undoes.
            start = ctx.processes.index * ctx.size
            own = grads[0][start : start + ctx.size] * ctx.processes.count
        return own, None, None


# torch 2.13 and later have these names; the old names warn there, or will.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def _gathered(rows: Tensor, processes: Processes) -> Tensor:
    out = rows.new_empty((processes.count * len(rows), *rows.shape[1:]))
    _all_gather(out, rows.detach().contiguous())
    return out


def gather_with_gradients(rows: Tensor, processes: Processes, *, adding: bool = False) -> Tensor:
    """Gather all processes' rows, with a gradient path to this process's own.

    Args:
        rows: (b, ...) floating, the same b on every process.
        processes: the run's processes.
        adding: whether every process computes a part of the loss, so that the gradients of all processes are added.
            Otherwise every process computes the same loss of all rows.

    Returns:
        (count x b, ...) in the order of the processes; ``rows`` itself if there is one process.
    """
    if processes.count == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows, processes, adding)  # pyright: ignore[reportAssignmentType]
    return gathered


def gather(rows: Tensor, processes: Processes) -> Tensor:
    """Gather all processes' rows in their order, without gradients: (b, ...) -> (count x b, ...)."""
    return rows if processes.count == 1 else _gathered(rows, processes)


def wrap_model(model: nn.Module, processes: Processes, *, sync_batch_norm: bool = False) -> nn.Module:
    """Return the model wrapped so that the processes train it together.

    Args:
        model: model on this process's device.
        processes: the run's processes.
        sync_batch_norm: compute batch norm's statistics over all processes.

    Raises:
        ConfigError: synchronised batch norm on a CPU, for which torch has no implementation.
    """
    if processes.count == 1:
        return model
    if sync_batch_norm and processes.device.type != "cuda":
        raise ConfigError(
            "--sync-batch-norm of several processes needs GPUs; the small net has group norm and needs none."
        )
    if sync_batch_norm and not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ids = [processes.device.index] if processes.device.type == "cuda" else None
    # Buffers are equal on all processes (group norm has none, frozen or synchronised batch norm agrees), or they are
    # each process's own statistics. Training does not read these; share_statistics makes them equal for evaluations.
    with warnings.catch_warnings():
        # Releases before torch 2.13 do not know the argument's successor.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)


def without_gradient_exchange(model: nn.Module) -> AbstractContextManager[None]:
    """Add up gradients on this process alone; the first backward pass after the context exchanges them all."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def average_gradients(module: nn.Module, processes: Processes) -> None:
    """Average over the processes the gradients that DistributedDataParallel has not exchanged."""
    if processes.count == 1 or isinstance(module, DistributedDataParallel):
        return
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= processes.count


def any_process(flag: bool, processes: Processes) -> bool:
    """Tell whether the flag is raised on any process; every process gets the same answer."""
    return bool(most_of_all(int(flag), processes))


def most_of_all(number: int, processes: Processes) -> int:
    """Return the largest of the processes' numbers on every process, without waiting for a GPU."""
    if processes.count == 1:
        return number
    on_cpu = "cpu" in dist.get_backend_config()  # a caller's group may be for GPUs alone
    numbers = torch.tensor([number], device="cpu" if on_cpu else processes.device)
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    return int(numbers)


def from_main(value: Any, processes: Processes) -> Any:
    """Return the main process's value on every process; it must be JSON-ready (nothing is unpickled)."""
    if processes.count == 1:
        return value
    return json.loads(from_all(json.dumps(value).encode() if processes.is_main else b"", processes)[0])


def from_all(data: bytes, processes: Processes) -> list[bytes]:
    """Return the bytes of all processes, in their order, on every process."""
    if processes.count == 1:
        return [data]
    sizes = _gathered(torch.tensor([len(data)], device=processes.device), processes).tolist()
    if not max(sizes):
        return [b""] * len(sizes)
    padded = torch.frombuffer(bytearray(data.ljust(max(sizes), b"\0")), dtype=torch.uint8).to(processes.device)
    rows = _gathered(padded[None], processes).cpu().numpy()
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def share_statistics(module: nn.Module, processes: Processes) -> None:
    """Copy the main process's running statistics of norms to all, so that every process has the checkpoint's model."""
    for norm in module.modules():
        if processes.count > 1 and isinstance(norm, _NormBase):
            for statistic in norm.buffers(recurse=False):
                dist.broadcast(statistic, 0)


def wait_for_all(processes: Processes) -> None:
    """Wait until every process has reached this call."""
    if processes.count > 1:
        dist.barrier()


# -- A loss shared by the processes --


def current_processes() -> Processes:
    """Return this process's number in torch's default group; without a group it is the only process."""
    if not dist.is_available() or not dist.is_initialized():
        return Processes(0, 1, torch.device("cpu"))
    on_gpu = "nccl" in dist.get_backend() and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    return Processes(dist.get_rank(), dist.get_world_size(), device)


def add_up_terms(sums: Mapping[str, "TermSum"], processes: Processes) -> tuple[Tensor, dict[str, Tensor]]:
    """Combine the processes' sums into one loss.

    Args:
        sums: this process's part of every term; the same terms on every process.
        processes: the run's processes.

    Returns:
        the loss of all processes' items, the same on every process, and its unweighted terms. The loss's gradient on a
        process is the gradient of its own part times the number of processes, so that their average is right.
    """
    terms = list(sums.values())
    facts = torch.stack([torch.stack([term.total.detach().double(), term.count.detach().double()]) for term in terms])
    if processes.count > 1:
        dist.all_reduce(facts)
    counts = torch.where(facts[:, 1] > 0, facts[:, 1], 1.0)
    values = (facts[:, 0] / counts).unbind()
    loss, parts = terms[0].total.new_zeros(()), {}
    for name, term, count, value in zip(sums, terms, counts.unbind(), values, strict=True):
        own = term.total / count.to(term.total.dtype)
        part = own * processes.count
        parts[name] = value.to(part.dtype) + (part - part.detach())  # the same on every process, to the last bit
        loss = loss + term.weight * parts[name]
    return loss, parts


@contextmanager
def _draws_of_main(processes: Processes, device: torch.device) -> Iterator[None]:
    """Let torch's generators of the CPU and of a GPU draw the main process's numbers on every process in the body.

    Processes with different negatives would have different losses, and no loss has the average of their gradients.
    """
    gpus = [device] if device.type == "cuda" else []
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
    shared = torch.cat(states).to(processes.device)
    dist.broadcast(shared, 0)
    if processes.is_main:
        yield
        return
    with torch.random.fork_rng(gpus):
        first, *others = shared.cpu().split([len(state) for state in states])
        torch.set_rng_state(first)
        for gpu, state in zip(gpus, others, strict=True):
            torch.cuda.set_rng_state(state, gpu)
        yield


class DistributedLoss(nn.Module):
    """A loss over the items of all processes together, for any training loop.

    Every process gives the embeddings and labels of its own part of the batch, and gets the loss of the whole batch.
    Under DistributedDataParallel, or another wrapper that averages gradients over the processes, the model's gradients
    are those of one process with the whole batch. Parameters of the loss (proxies) are in no such wrapper: call
    :meth:`average_gradients` after the backward pass.

    A loss that is a mean over queries is shared: every process ranks its own b queries against the B items of all
    processes, so that its tables are (b, B). Every process computes other losses (:attr:`shared` is False) on the whole
    batch, with the random numbers of the first process. These are Triplet, Margin, MultiGrain, BlackboxAP, SiMix,
    MatryoshkaLoss, pair losses with reduction ``nonzero``, ``ClassWeighted`` with balanced weights, combinations of
    these, and other libraries' losses.

    Args:
        loss: a loss of hgld, or any module whose arguments are embeddings and labels; its parameters must be equal on
            all processes.
        processes: None: the processes of torch's default group.

    Attributes:
        loss: the loss.
        shared: whether the processes share the queries.

    Raises:
        ConfigError: a loss that does not return a scalar.

    >>> import torch
    >>> from hgld.losses import SupAP
    >>> loss = DistributedLoss(SupAP())
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
    torch.Size([])
    """

    def __init__(self, loss: nn.Module, processes: Processes | None = None) -> None:
        super().__init__()
        if getattr(loss, "reduction", "mean") == "none":
            raise ConfigError(f"{type(loss).__name__} has reduction='none'; the processes share a scalar.")
        self.loss = loss
        self._finds_group = processes is None
        self.processes = processes or current_processes()
        self.shared = bool(getattr(loss, "sums_over_queries", False))

    def forward(self, embeddings: Tensor, labels: Tensor, **others: Tensor) -> Tensor:
        """Return the loss of all processes' items, the same on every process.

        Args:
            embeddings: (b, D) floating, this process's items; the same b on every process.
            labels: (b, L) or (b,) integers.
            others: further (b, ...) arguments of the loss by name, such as ``instances`` of MultiGrain.

        Raises:
            ConfigError: the processes were connected after this loss was made.
            InputError: labels that are no tensor.
        """
        processes = self.processes
        if not isinstance(labels, Tensor):
            raise InputError(
                f"labels are {type(labels).__name__}; expected a tensor of class numbers, which mean the same on every "
                "process: hgld.Hierarchy.from_columns numbers the classes of a table."
            )
        if processes.count == 1:
            if self._finds_group and current_processes().count > 1:
                raise ConfigError(
                    "this DistributedLoss was made before torch's processes were connected, and would be the loss of a "
                    "part. Make it after init_process_group: in Lightning in configure_model, in accelerate after "
                    "Accelerator()."
                )
            return self.loss(embeddings, labels, **others)
        known = gather(labels.to(embeddings.device), processes)
        if not self.shared:
            given = {name: gather(rows.to(embeddings.device), processes) for name, rows in others.items()}
            everyone = gather_with_gradients(embeddings, processes)
            with _draws_of_main(processes, embeddings.device):
                return self.loss(everyone, known, **given)
        everyone = gather_with_gradients(embeddings, processes, adding=True)
        own = torch.arange(len(embeddings), device=embeddings.device) + processes.index * len(embeddings)
        loss: Any = self.loss
        return add_up_terms(loss.query_sums(everyone[own], known[own], everyone, known, own), processes)[0]

    def average_gradients(self) -> None:
        """Average the gradients of the loss's own parameters over the processes."""
        average_gradients(self.loss, self.processes)
