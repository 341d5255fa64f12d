"""The processes of a run: their ranks, signals that ask them to stop, and the data that they exchange.

Only this module uses ``torch.distributed``. Every process reads its part of a batch, computes its embeddings and
gathers the embeddings of all processes. If the loss is a mean over queries, a process computes the part of its own
queries; otherwise it computes the loss of the whole batch. So memories, miners and normalisers over the batch work as
in one process, and the gradients equal the gradients of a single process.
"""

import itertools
import json
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
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
    """Tell whether this is the first process that torchrun or Slurm started, even before they are connected."""
    return os.environ.get(_variables()[0], "0") == "0"


def _variables() -> tuple[str, str, str]:
    """Return the names of the environment variables for rank, world size and local rank."""
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
    return "RANK", "WORLD_SIZE", "LOCAL_RANK"


def rank_from_env() -> tuple[int, int, int]:
    """Return rank, world size and local rank from the variables of torchrun or Slurm; 0, 1, 0 without either.

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
    """Requests to stop, received as signals; true after the first signal.

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

_MINUTES = 30.0  # as --process-timeout
_STARTS = itertools.count()
_SECONDS_TO_REST = 0.5


@dataclass(frozen=True)
class Processes:
    """The rank and device of this process in a run.

    Attributes:
        index: rank of this process, from 0.
        count: number of processes.
        device: device of this process.
    """

    index: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True for the process of rank 0, which writes files and prints."""
        return self.index == 0


ALONE = Processes(0, 1, torch.device("cpu"))


def launch(device: str = "", minutes: float = _MINUTES) -> Processes:
    """Join the processes that torchrun or Slurm started; without either, run alone.

    Args:
        device: ``cpu``, ``cuda``, ...; default: this process's GPU if there is one.
        minutes: how long an exchange waits for the other processes.

    Raises:
        ConfigError: the environment is incomplete, the device cannot be used, or there are more processes on this
            machine than GPUs.
    """
    index, count, local = rank_from_env()
    chosen = _device(device, local)
    if count > 1 and not dist.is_initialized():
        # Gloo exchanges small values on the CPU, so that these exchanges do not wait for the GPU.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        # torchrun may keep one store when it restarts workers, and a command may join several groups. The prefix makes
        # the keys of each start distinct, so that no process reads the address of an earlier process.
        timeout = timedelta(minutes=minutes)
        store = _store(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], index, count, timeout)
        store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{next(_STARTS)}", store)
        dist.init_process_group(backend, store=store, rank=index, world_size=count, timeout=timeout)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return Processes(index, count, chosen)


@cache
def _store(address: str, port: str, index: int, count: int, timeout: timedelta) -> Any:
    """Connect to the store at which processes meet (MASTER_ADDR, MASTER_PORT); it lives as long as this process.

    If every group had its own store, the first process could close one while the others join the next group there.
    """
    return next(iter(rendezvous("env://", index, count, timeout=timeout)))[0]


def shutdown(processes: Processes, *, failed: bool = False) -> None:
    """Leave the group of processes.

    After a failure the group is aborted, because leaving it would wait for the GPU's exchanges with processes that may
    have ended.

    If DDP has used the group, Gloo's threads outlive it. If such a thread releases a tensor while the interpreter shuts
    down, the process aborts; this happened sometimes on busy machines (the cause is inferred, not proven). So the
    threads get a moment to finish after the last exchange. Signals are held back meanwhile: if a process dies, torchrun
    sends SIGTERM to all others at once, and they must first report what happened.
    """
    if processes.count > 1 and dist.is_initialized():
        with stop_requests():
            if failed and processes.device.type == "cuda":
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
            time.sleep(_SECONDS_TO_REST)


@contextmanager
def process_group(device: str, hint: Callable[[], str], minutes: float = _MINUTES) -> Iterator[Processes]:
    """Join the processes in the ``with`` block (:func:`launch`, :func:`shutdown`); report a lost process with ``hint``.

    If the processes are connected already, they stay connected afterwards.

    Args:
        device: ``cpu``, ``cuda``, ...; empty: this process's GPU if there is one.
        hint: function that returns the fix for a lost process.
        minutes: how long an exchange waits for the other processes.

    Raises:
        HgldError: another process of the run died, or does not respond.
        ConfigError: the environment is incomplete, the device cannot be used, or there are more processes on this
            machine than GPUs.
    """
    is_outer = not dist.is_initialized()
    processes, failed = launch(device, minutes), True
    try:
        yield processes
        failed = False
    except RuntimeError as error:
        # NCCL has its own error class. Gloo raises a plain RuntimeError whose text begins with the name of a source
        # file.
        if not isinstance(error, dist.DistError) and "/gloo/" not in str(error):
            raise
        raise HgldError(
            f"process {processes.index} of {processes.count}: another process of the run died or does not respond; "
            f"its own message says why. {hint()}"
        ) from error
    finally:
        if is_outer:
            shutdown(processes, failed=failed)


def _device(asked: str, local: int) -> torch.device:
    if asked != "cuda" and (asked or not torch.cuda.is_available()):
        try:
            chosen = torch.device(asked or "cpu")
            torch.empty(0, device=chosen).cpu()  # raises an error for the device meta, which holds no numbers
        except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
            # keep the first sentence: the rest lists torch's backends
            reason = str(error).partition(". ")[0].rstrip(".")
            raise ConfigError(f"device {asked!r} cannot be used here ({reason}). Use the device cpu.") from error
        return chosen
    visible = torch.cuda.device_count()
    # Slurm may bind one GPU to each task; the task then sees only this GPU, as number 0.
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
    """Gather the rows of all processes in order of rank; backward returns the gradient of this process's rows."""

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
            # Every process has this gradient. DistributedDataParallel averages it over the processes; the factor undoes
            # the average.
            start = ctx.processes.index * ctx.size
            own = grads[0][start : start + ctx.size] * ctx.processes.count
        return own, None, None


# torch 2.13 and later have these names, and deprecate the old ones.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def _gathered(rows: Tensor, processes: Processes) -> Tensor:
    out = rows.new_empty((processes.count * len(rows), *rows.shape[1:]))
    _all_gather(out, rows.detach().contiguous())
    return out


def gather_with_gradients(rows: Tensor, processes: Processes, *, adding: bool = False) -> Tensor:
    """Gather the rows of all processes, with a gradient for this process's rows.

    Args:
        rows: (b, ...) floating point; b is the same on every process.
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
    """Gather the rows of all processes in order of rank, without gradients: (b, ...) -> (count x b, ...)."""
    return rows if processes.count == 1 else _gathered(rows, processes)


def wrap_model(model: nn.Module, processes: Processes, *, sync_batch_norm: bool = False) -> nn.Module:
    """Wrap a model so that the processes train it together.

    Args:
        model: model on this process's device.
        processes: the run's processes.
        sync_batch_norm: whether to compute batch norm's statistics over all processes.

    Raises:
        ConfigError: ``sync_batch_norm`` is set on a CPU, for which torch has no implementation.
    """
    if processes.count == 1:
        return model
    if sync_batch_norm and processes.device.type != "cuda":
        raise ConfigError(
            "--sync-batch-norm with several processes needs GPUs; the small net has group norm and does not need it."
        )
    if sync_batch_norm and not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ids = [processes.device.index] if processes.device.type == "cuda" else None
    # DDP need not copy buffers. Group norm has no buffers, and frozen or synchronised batch norm has equal buffers on
    # all processes. Otherwise the buffers are statistics that training does not read; share_statistics makes them equal
    # for evaluations.
    with warnings.catch_warnings():
        # Releases before torch 2.13 have only this argument, not its successor.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)


def without_gradient_exchange(model: nn.Module) -> AbstractContextManager[None]:
    """Accumulate gradients without exchange; the first backward pass after the context exchanges them all."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def average_gradients(module: nn.Module, processes: Processes) -> None:
    """Average, over the processes, the gradients that DistributedDataParallel has not exchanged."""
    if processes.count == 1 or isinstance(module, DistributedDataParallel):
        return
    for parameter in module.parameters():
        if parameter.grad is not None:
            if not isinstance(parameter, RowShare):  # only this process has the gradient of its rows
                dist.all_reduce(parameter.grad)
            parameter.grad /= processes.count


def any_process(flag: bool, processes: Processes) -> bool:
    """Tell whether the flag is True on any process; every process gets the same result."""
    return bool(most_of_all(int(flag), processes))


def most_of_all(number: int, processes: Processes) -> int:
    """Return the largest number of all processes, without waiting for a GPU."""
    if processes.count == 1:
        return number
    on_cpu = "cpu" in dist.get_backend_config()  # a process group that the caller made may support only GPUs
    numbers = torch.tensor([number], device="cpu" if on_cpu else processes.device)
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    return int(numbers)


def from_main(value: Any, processes: Processes) -> Any:
    """Return the value of the main process on every process. It must be JSON-ready, because nothing is unpickled."""
    if processes.count == 1:
        return value
    return json.loads(from_all(json.dumps(value).encode() if processes.is_main else b"", processes)[0])


def from_all(data: bytes, processes: Processes) -> list[bytes]:
    """Return the bytes of all processes, in order of rank, on every process."""
    if processes.count == 1:
        return [data]
    sizes = _gathered(torch.tensor([len(data)], device=processes.device), processes).tolist()
    if not max(sizes):
        return [b""] * len(sizes)
    padded = torch.frombuffer(bytearray(data.ljust(max(sizes), b"\0")), dtype=torch.uint8).to(processes.device)
    rows = _gathered(padded[None], processes).cpu().numpy()
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def row_shares(count: int, processes: Processes) -> list[slice]:
    """Divide ``count`` rows into one share of consecutive rows per process."""
    bounds = [count * index // processes.count for index in range(processes.count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def exchange_rows(table: Tensor, processes: Processes) -> None:
    """Give every process the rows of a (N, ...) table that the other processes have changed, each in its share."""
    for index, rows in enumerate(row_shares(len(table), processes)):
        if rows.start < rows.stop:
            dist.broadcast(table[rows], index)


def join_rows(own: Tensor, count: int, processes: Processes) -> Tensor:
    """Join the shares of all processes on the main process.

    One share after another passes through a process's memory, so no GPU needs room for the whole table.

    Args:
        own: this process's share of the rows.
        count: number of rows N of the table.
        processes: the run's processes.

    Returns:
        (N, ...) on the CPU of the main process; on all other processes values without meaning.
    """
    whole = own.new_zeros((count if processes.is_main else 1, *own.shape[1:]), device="cpu")
    for index, rows in enumerate(row_shares(count, processes)):
        if rows.start < rows.stop:
            mine = index == processes.index
            part = own if mine else own.new_empty((rows.stop - rows.start, *own.shape[1:]))
            dist.broadcast(part, index)
            if processes.is_main:
                whole[rows] = part.cpu()
    return whole.expand(count, *own.shape[1:])


# -- Tables of which each process holds some rows --

_SPLIT_NUMBERS = 1 << 22  # smaller tables are not split: with Adam's moments, 4 M numbers take 67 MB


def is_split(table: Tensor, processes: Processes) -> bool:
    """Tell whether the processes split a table of a loss by rows."""
    is_large = table.ndim > 1 and table.numel() >= _SPLIT_NUMBERS and len(table) >= processes.count
    return processes.count > 1 and is_large and not isinstance(table, RowShare)


class RowShare(nn.Parameter):
    """This process's rows of a table; the other processes hold the other rows, with their gradients.

    Attributes:
        rows: the rows of the table that this process holds.
        whole_shape: shape of the table (N, ...).
    """

    rows: slice
    whole_shape: torch.Size


def share_rows(table: nn.Parameter, processes: Processes) -> RowShare:
    """Return this process's share of a table that is the same on every process."""
    rows = row_shares(len(table), processes)[processes.index]
    share = RowShare(table.detach()[rows].clone())  # a view would keep the whole table in memory
    share.rows, share.whole_shape = rows, table.shape
    return share


def whole_shape(parameter: Tensor) -> torch.Size:
    """Return the shape of a parameter, or of the table to which this process's rows belong."""
    return parameter.whole_shape if isinstance(parameter, RowShare) else parameter.shape


def whole_state(module: nn.Module, processes: Processes) -> dict[str, Tensor]:
    """Return a module's state dict with whole tables, which have meaning on the main process only.

    Every process must call this.
    """
    state = module.state_dict()
    for name, parameter in module.named_parameters():
        if isinstance(parameter, RowShare):
            state[name] = join_rows(parameter.detach(), parameter.whole_shape[0], processes)
    return state


def own_state(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state that :func:`whole_state` returned, with this process's rows of the tables that are shared."""
    shares = {name: share for name, share in module.named_parameters() if isinstance(share, RowShare)}
    return {
        name: tensor[shares[name].rows] if name in shares and tensor.shape == shares[name].whole_shape else tensor
        for name, tensor in state.items()
    }


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the norm of the gradients of parameters and of whole tables, the same on every process."""
    shares = [p.grad for p in parameters if p.grad is not None and isinstance(p, RowShare)]
    rest = [p.grad for p in parameters if p.grad is not None and not isinstance(p, RowShare)]
    norm = nn.utils.get_total_norm(rest)
    if not shares:
        return norm
    squares = nn.utils.get_total_norm(shares).square()
    dist.all_reduce(squares)
    return (norm.square() + squares).sqrt()


def share_statistics(module: nn.Module, processes: Processes) -> None:
    """Copy the running statistics of batch norms from the main process to all, so that all have the same model."""
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
    """Return this process's rank in torch's default group; without a group, return a single process."""
    if not dist.is_available() or not dist.is_initialized():
        return ALONE
    on_gpu = "nccl" in dist.get_backend() and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    return Processes(dist.get_rank(), dist.get_world_size(), device)


def add_up_terms(sums: Mapping[str, "TermSum"], processes: Processes) -> tuple[Tensor, dict[str, Tensor]]:
    """Combine the processes' sums into one loss.

    Args:
        sums: this process's part of every term; every process must have the same terms.
        processes: the run's processes.

    Returns:
        the loss of all processes' items, the same on every process, and its unweighted terms. On a process, the loss's
        gradient is the gradient of its own part times the number of processes, because wrappers average the gradients.
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
        parts[name] = value.to(part.dtype) + (part - part.detach())  # the value has the same bits on every process
        loss = loss + term.weight * parts[name]
    return loss, parts


@contextmanager
def _draws_of_main(processes: Processes, device: torch.device) -> Iterator[None]:
    """In the ``with`` block, make torch's generators draw the same random numbers as on the main process.

    If processes drew different negatives, they would have different losses, and their average gradient would belong to
    no loss.
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

    Every process passes the embeddings and labels of its own part of the batch, and gets the loss of the whole batch.
    Under DistributedDataParallel, or another wrapper that averages gradients over the processes, the model's gradients
    equal the gradients of one process with the whole batch. That wrapper does not contain the parameters of the loss
    (proxies): call :meth:`average_gradients` after the backward pass.

    If the loss is a mean over queries, the processes share the queries: every process ranks its own b queries against
    the B items of all processes, so its tables are (b, B). All other losses (:attr:`shared` is False) are computed on
    the whole batch by every process, with the random numbers of the first process. The other losses are Margin,
    MultiGrain, BlackboxAP, SiMix, pair losses with reduction ``nonzero``, ``ClassWeighted`` with balanced weights,
    combinations of these losses, and losses of other libraries.

    Args:
        loss: a loss of hgld, or any module whose arguments are embeddings and labels; its parameters must be equal on
            all processes.
        processes: processes that share the batch; None: the processes of torch's default group.

    Attributes:
        loss: the loss.
        shared: whether the processes share the queries.

    Raises:
        ConfigError: the loss does not return a scalar.

    >>> import torch
    >>> from hgld.losses import SupAP
    >>> loss = DistributedLoss(SupAP())
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
    torch.Size([])
    """

    def __init__(self, loss: nn.Module, processes: Processes | None = None) -> None:
        super().__init__()
        if getattr(loss, "reduction", "mean") == "none":
            raise ConfigError(
                f"{type(loss).__name__} has reduction='none', but several processes need a loss that returns one "
                "number. Use reduction='mean'."
            )
        self.loss = loss
        self._finds_group = processes is None
        self.processes = processes or current_processes()
        memories: list[Any] = [module for module in loss.modules() if hasattr(module, "is_whole")]
        for memory in memories:
            memory.is_whole = True  # from now on it gets the items of all processes
        self.shared = bool(getattr(loss, "sums_over_queries", False))

    def forward(self, embeddings: Tensor, labels: Tensor, **others: Tensor) -> Tensor:
        """Return the loss of all processes' items, the same on every process.

        Args:
            embeddings: (b, D) floating-point embeddings of this process's items; b is the same on every process.
            labels: (b, L) or (b,) integers.
            others: further (b, ...) arguments of the loss by name, such as ``instances`` of MultiGrain.

        Raises:
            ConfigError: the processes were connected after this loss was made.
            InputError: the labels are not a tensor.
        """
        processes = self.processes
        if not isinstance(labels, Tensor):
            raise InputError(
                f"labels are {type(labels).__name__}; expected a tensor of class ids that are the same on every "
                "process: hgld.Hierarchy.from_columns numbers the classes of a table."
            )
        if processes.count == 1:
            if self._finds_group and current_processes().count > 1:
                raise ConfigError(
                    "this DistributedLoss was made before torch's processes were connected, and would see part of a "
                    "batch. Make it after init_process_group: in Lightning in configure_model, in accelerate after "
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
