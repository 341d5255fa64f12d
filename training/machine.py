"""Measurements on this machine: the memory of a training step, and its time in each precision."""

import time
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hgld.memory import free_memory

from .inference.embedding import Amp, autocast

_TIMED = 8  # number of images per timed step on a CPU
_STEPS = 2  # number of timed steps, after one to warm up
_SHARE = 0.5  # share of the free memory that activations may use


def bytes_of_image(model: nn.Module, size: int) -> int:
    """Measure the bytes per image that a forward pass keeps for the backward pass, as the difference of two passes."""
    return max(1, (_kept_bytes(model, size, 4) - _kept_bytes(model, size, 2)) // 2)


def _kept_bytes(model: nn.Module, size: int, images: int) -> int:
    kept: dict[int, int] = {}
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        embeddings = model(_images(model, images, size))
    # kept until here, so that the graph holds all tensors: a freed block could be allocated again and counted twice
    del embeddings
    return sum(kept.values())


def fitting_images(model: nn.Module, size: int, wanted: int, processes: int, amp: Amp) -> int:
    """Return how many images fit into one pass: ``wanted``, or the largest of its half, its quarter, ... that fits.

    On a GPU, steps of the model are tried. On a CPU, running out of memory would kill the process. So the memory per
    image is measured there with small batches and compared with the free memory.

    Args:
        model: model on its device, in training mode.
        size: side of the images, pixels.
        wanted: wanted number of images per step and process.
        processes: number of processes that share the machine.
        amp: precision of the step.
    """
    device = next(model.parameters()).device
    sizes = [wanted]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    if device.type != "cuda":
        most = _SHARE * free_memory(processes) / bytes_of_image(model, size)
        return next((count for count in sizes if count <= most), 1)
    for count in sizes:
        try:
            _step(model, _images(model, count, size), amp)
        except torch.cuda.OutOfMemoryError:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        else:
            return count
    return 1


def has_bf16(device: torch.device) -> bool:
    """Tell whether a device has units for bf16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpu: Any = torch.cpu
    return device.type == "cpu" and any(
        getattr(cpu, name, bool)() for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    )


def step_seconds(model: nn.Module, size: int, images: int, amp: Literal["off", "bf16"]) -> float:
    """Return the seconds of the faster of two steps (forward and backward) after a warm-up step."""
    device = next(model.parameters()).device
    batch = _images(model, images if device.type == "cuda" else min(images, _TIMED), size)
    seconds = []
    for _ in range(1 + _STEPS):
        began = time.perf_counter()
        _step(model, batch, amp)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def _images(model: nn.Module, count: int, size: int) -> Tensor:
    device = next(model.parameters()).device
    return torch.zeros(count, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)


def _step(model: nn.Module, images: Tensor, amp: Amp) -> None:
    with autocast(images.device, amp):
        embeddings = model(images)
    embeddings.float().square().sum().backward()
    model.zero_grad(set_to_none=True)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
