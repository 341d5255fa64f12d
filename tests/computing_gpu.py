"""A simulated GPU for machines without one: tensors of the device ``cuda`` whose numbers are on the CPU.

An operation on tensors of two devices fails, except for scalars and CPU indices, which CUDA also accepts. There are no
derivatives. Use it in a separate process, because torch afterwards believes that CUDA was initialized.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_DEVICE = torch.device("cuda", 0)
_COPIES = ("aten::_to_copy", "aten::copy_")
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_MEMORY = 1 << 30
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


class _OnGpu(Tensor):
    """Tensor of the simulated GPU.

    Attributes:
        held: CPU tensor with the numbers; a view of a simulated tensor holds a view of this CPU tensor.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "_OnGpu":
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, **layout, dtype=held.dtype, device=_DEVICE)
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func.name()} outside of the GPU's context")


class ComputingGpu(TorchDispatchMode):
    """Simulated device that counts how often the host waits for it.

    Attributes:
        waits: number of waits per synchronizing operation.
        ran: number of operations on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.ran = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.name().partition(".")[0]
        if name not in _COPIES:
            with self:  # in inference mode torch passes composite operations undecomposed
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [leaf for leaf in given if isinstance(leaf, _OnGpu)]
        wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if there:
            self.ran += 1
            self._check(name, given, args)
        to_gpu = bool(there) if wanted is None else wanted.type == "cuda"
        if "device" in kwargs:
            kwargs |= {"device": torch.device("cpu"), **({"pin_memory": False} if "pin_memory" in kwargs else {})}
        result = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if name == "aten::copy_":
            to_gpu = isinstance(args[0], _OnGpu)
        self._count(name, given, there, args, to_gpu)
        known = {id(leaf.held): leaf for leaf in there}

        def put(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not to_gpu:
                return leaf
            return known[id(leaf)] if id(leaf) in known else _OnGpu(leaf)

        return tree_map(put, result)

    def _check(self, name: str, given: list[Tensor], args: Any) -> None:
        if name in _COPIES or (name in _INDEXED and isinstance(args[0], _OnGpu)):
            return
        for leaf in given:
            if not isinstance(leaf, _OnGpu) and leaf.ndim:
                raise RuntimeError(f"{name}: expected all tensors to be on one device, found cuda:0 and cpu")

    def _count(self, name: str, given: list[Tensor], there: list[Any], args: Any, to_gpu: bool) -> None:
        if there and name in STALLS:
            self.waits[f"{name}: {STALLS[name]}"] += 1
        elif there and name in _INDEXED:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype == torch.bool for index in indices):
                self.waits[f"{name} by a mask"] += 1
            if any(not isinstance(index, _OnGpu) for index in indices):
                self.waits["a copy to the device"] += 1
        elif name in _COPIES:
            source = args[1] if name == "aten::copy_" else args[0]
            if isinstance(source, _OnGpu) != to_gpu:
                self.waits[f"a copy {'to' if to_gpu else 'from'} the device"] += 1


def _held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, _OnGpu) else leaf


@contextmanager
def computing_gpu() -> Iterator[ComputingGpu]:
    """Make ``cuda`` an available device inside the ``with`` block."""
    torch._C._ensureCUDADeviceGuardSet()  # torch requires this guard, and without a driver nothing else creates it
    with (
        patch.object(torch.cuda, "_lazy_init", lambda: None),
        patch.object(torch, "inference_mode", torch.no_grad),  # a tensor subclass cannot make views in inference mode
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "device_count", lambda: 1),
        patch.object(torch.cuda, "mem_get_info", lambda device=None: (_MEMORY, _MEMORY)),
        patch.object(torch.cuda, "memory_reserved", lambda device=None: 0),
        patch.object(torch.cuda, "memory_allocated", lambda device=None: 0),
        ComputingGpu() as gpu,
    ):
        yield gpu
