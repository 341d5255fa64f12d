"""A GPU that holds no numbers: tensors of a device of torch's own (PrivateUse1) under FakeTensorMode.

Every operation gives shapes, dtypes and devices; mixed devices are refused, as a real GPU refuses them, and what needs
a number on the host is an error at the line that needs it. Autograd runs, which it cannot for fake tensors of the
device ``cuda`` without a driver. hgld asks of a device only whether it is the CPU.
"""

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.backend_registration as backends
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hgld.losses import surrogates
from hgld.losses.kernels import objectives, triton_pairs

NAME = "pretended"


_LIBRARY = torch.library.Library("_", "IMPL")  # what it registers lasts as long as it does


class _Backend(backends._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@functools.cache
def device() -> torch.device:
    """The device; registered with torch once a process."""
    backends._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    # Autocast knows no kernels of such a device; none are changed then.
    _LIBRARY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return torch.device(NAME, 0)


# Operations that make the host wait for the device, or the device for the host.
STALLS = {
    "aten::_local_scalar_dense": "a number is read by the host",
    "aten::item": "a number is read by the host",
    "aten::nonzero": "the size of the result is read by the host",
    "aten::masked_select": "the size of the result is read by the host",
    "aten::unique_dim": "the size of the result is read by the host",
    "aten::_unique2": "the size of the result is read by the host",
    "aten::unique_consecutive": "the size of the result is read by the host",
    "aten::repeat_interleave": "the size of the result is read by the host",
    "aten::equal": "a number is read by the host",
}
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class StallCounter(TorchDispatchMode):
    """Counter of the operations of a region that would wait.

    The insides of hgld's operators are run too, in place of the shapes that they promise.

    Attributes:
        found: what waits, and how often.
        copies: host to device, page-locked.
        ran: names of hgld's operators that were run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.copies = 0
        self.ran: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition(".")[0]
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [t for t in tensors if t.device.type == NAME]
        if name.startswith("hgld::") and on_device:
            self.ran.add(name)
            with self:
                if name == "hgld::rank_metric":
                    return _triton_metric(*args)
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        if not on_device and name in (
            "aten::_local_scalar_dense",
            "aten::item",
        ):  # what the host holds is fake here too
            return 1
        if not on_device and name == "aten::nonzero":
            return args[0].new_empty((8, args[0].ndim), dtype=torch.int64)
        if on_device and name in STALLS:
            self.found[f"{name}: {STALLS[name]}"] += 1
        if on_device and name in _INDEXED and any(t is not None and t.dtype == torch.bool for t in args[1]):
            self.found[f"{name} by a mask: the size of the result is read by the host"] += 1
        result = func(*args, **kwargs)
        self._count_copies(name, args, result)
        return result

    def _count_copies(self, name: str, args: Any, result: Any) -> None:
        if name == "aten::copy_":
            to, source = args[0], args[1]
        elif name == "aten::_to_copy":
            to, source = result, args[0]
        elif name == "aten::_copy_from":
            source, to = args[0], args[1]
        else:
            return
        if to.device.type == source.device.type:
            return
        if source.device.type == NAME:
            self.found[f"{name}: a copy from the device, of {source.numel()} numbers"] += 1
        elif source.untyped_storage()._cdata in _PINNED:
            self.copies += 1
        else:
            self.found[f"{name}: a copy of {source.numel()} pageable numbers to the device"] += 1


_PINNED: set[int] = set()
_KEPT: list[Tensor] = []  # whose storages no other tensor gets meanwhile


def pinned(tensor: Tensor) -> Tensor:
    """Mark a tensor of the host as page-locked."""
    _PINNED.add(tensor.untyped_storage()._cdata)
    _KEPT.append(tensor)
    return tensor


class _NoKernel:
    """A Triton kernel that does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: None


def _triton_metric(*args: Any) -> Any:
    scores, grades, gains, norms, objective, numbers, surrogate, _ = args
    unpacked = objectives.unpack(objective, numbers), surrogates.unpack(surrogate)
    return triton_pairs.triton_rank_metric(scores, grades, gains, norms, *unpacked)


@contextmanager
def pretended_gpu() -> Iterator[FakeTensorMode]:
    """Tensors of the body are fake; host tensors can be pinned, Triton's kernels launched without effect."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    device()  # registered before there are fake tensors
    host_generator = torch.Generator

    def generator(where: Any = None) -> torch.Generator:
        return host_generator()

    with (
        patch.object(triton_pairs, "_rank_positives", _NoKernel()),
        patch.object(triton_pairs, "_reach_items", _NoKernel()),
        patch.object(torch.Tensor, "pin_memory", lambda tensor: pinned(tensor.clone())),
        patch("hgld.losses.pairs.torch.Generator", generator),
        fake,
    ):
        try:
            yield fake
        finally:
            _PINNED.clear()
            _KEPT.clear()


def to_gpu(module: nn.Module) -> nn.Module:
    """Replace a module's parameters and buffers by such of the device; call it in the body of the context."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(like(parameter), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = like(buffer)
    return module


def like(tensor: Tensor) -> Tensor:
    """Return a tensor of the device of the same shape and dtype."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device())
