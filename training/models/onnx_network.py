"""Networks in ONNX files, run with onnxruntime."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError, MissingResourceError, excerpt, quoted
from hgld.files import read_json

from .backbone import IMAGENET_MEAN, IMAGENET_STD, USUAL_VIEW, Backbone, BackboneOptions

_MOST_BYTES = 1 << 31  # maximum size of a protobuf file
_MOST_RECORD = 1 << 20
_EMBEDDINGS = "embeddings"
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


class OnnxNetwork(nn.Module):
    """A network of an ONNX file: normalised images (B, 3, H, W) -> its output, on the images' device.

    If there are several outputs, the network returns ``embeddings`` (the name in files of ``hgld export``), else the
    first.

    The network runs on the CPU; or on a GPU, if the images are on the GPU and onnxruntime supports GPUs. If the file
    refers to weights in other files, an error is raised, because such a file could read any other file of the machine.

    Args:
        path: path of the ONNX file.
        token: whether to return a vector (B, F); else a feature map (B, F, H', W'), or (B, F, N, 1) if the network
            returns tokens.

    Attributes:
        side: side of the square input images in pixels; None: any size.
        digest: (32,) uint8 SHA-256 of the file, which identifies it for kept embeddings.
    """

    digest: Tensor

    def __init__(self, path: Path, *, token: bool | None) -> None:
        super().__init__()
        self._path, self._token = path, token
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise InputError(
                    f"{path} has {path.stat().st_size} bytes; expected a network of at most {_MOST_BYTES}."
                )
            self._data = path.read_bytes()
        except FileNotFoundError as error:
            raise MissingResourceError(f"onnx:{path}: there is no such file.") from error
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
        self._sessions: dict[str, Any] = {}
        taken, made = self._session("cpu").get_inputs(), self._session("cpu").get_outputs()
        shape = taken[0].shape
        if len(taken) != 1 or len(shape) != 4 or shape[1] in range(3) or shape[3] == 3 or taken[0].type not in _TYPES:
            found = ", ".join(f"{one.name} {one.type} {one.shape}" for one in taken)
            raise InputError(
                f"{path}: its inputs are {found}; expected one input, images (B, 3, H, W) of float32, float16 or uint8."
            )
        names = [one.name for one in made]
        self._output = _EMBEDDINGS if _EMBEDDINGS in names else names[0]
        self._input, self._type = taken[0].name, _TYPES[taken[0].type]
        self._at_once, _, height, width = (side if isinstance(side, int) and side > 0 else None for side in shape)
        if height != width:
            raise ConfigError(f"{path}: its input images have {width} x {height} pixels; expected squares.")
        self.side = height
        digest = bytearray(hashlib.sha256(self._data).digest())
        self.register_buffer("digest", torch.frombuffer(digest, dtype=torch.uint8))

    def _session(self, device: str) -> Any:
        if device not in self._sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = 4  # do not log errors, because they are raised below
            on_gpu = device == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
            providers = ["CUDAExecutionProvider"] * on_gpu + ["CPUExecutionProvider"]
            try:
                self._sessions[device] = onnxruntime.InferenceSession(self._data, options, providers=providers)
            except Exception as error:  # onnxruntime's errors have no other common base class
                raise InputError(
                    f"{self._path}: cannot be read as an ONNX network ({excerpt(error)}). Expected one file with its "
                    "weights inside."
                ) from error
        return self._sessions[device]

    def forward(self, images: Tensor) -> Tensor:
        array = images.cpu().numpy()
        array = np.ascontiguousarray(np.rint(array) if self._type is np.uint8 else array).astype(self._type)
        at_once = self._at_once or len(array)
        parts = [self._run(array[i : i + at_once], at_once, images.device.type) for i in range(0, len(array), at_once)]
        return self._formed(torch.from_numpy(np.concatenate(parts)).to(images.device, torch.float32))

    def _run(self, images: np.ndarray, at_once: int, device: str) -> np.ndarray:
        """Run some images; if the network has a fixed batch size, copies of the first image fill the batch."""
        padded = np.concatenate([images, *[images[:1]] * (at_once - len(images))])
        try:
            (found,) = self._session(device).run([self._output], {self._input: padded})
        except Exception as error:  # onnxruntime's errors have no other common base class
            reason = excerpt(error)
            raise ConfigError(f"{self._path}: does not take images of shape {images.shape} ({reason}).") from error
        return found[: len(images)]

    def _formed(self, found: Tensor) -> Tensor:
        """Return the output as a vector or a map; the first of several tokens is the class token."""
        if found.ndim == 4 and self._token is not True and not (found.shape[2:] == (1, 1) and self._token is None):
            return found
        if found.ndim == 3:
            return found.transpose(1, 2).unsqueeze(-1) if self._token is False else found[:, 0]
        if self._token is False or (found.ndim > 2 and found[0].numel() != found.shape[1]):
            kind = "no feature map" if self._token is False else "no vector"
            raise ConfigError(
                f"{self._path}: its output, of shape {tuple(found.shape)}, is {kind}; use another pooling."
            )
        return found.flatten(1)


def onnx_network(name: str, options: BackboneOptions) -> Backbone:
    """Build the network of an ONNX file.

    A file of ``hgld export`` has a record of the preprocessing next to it (``FILE.json``). For all other files, images
    have the size of the network's input (224 px if any size is allowed), and are normalised as for ImageNet.

    Raises:
        ConfigError: the network lacks the requested pooling, or its input is not square.
        MissingResourceError: the file does not exist.
        InputError: the file cannot be read, or is not a network for images.
    """
    if options.pretrained not in ("default", "none"):
        raise ConfigError(f"onnx:{name} holds its own weights; omit {quoted(options.pretrained)}.")
    path = Path(name).expanduser()
    module = OnnxNetwork(path, token=options.token)
    record, mean, std = path.with_name(path.name + ".json"), IMAGENET_MEAN, IMAGENET_STD
    if record.is_file():
        try:
            own = read_json(record, max_bytes=_MOST_RECORD)["view"]
            view = TestView(own["size"], own["resize"], own["resize_mode"])
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise InputError(
                f"{record}: not a record of hgld export ({quoted(error)}). Remove or rename it; images are "
                "then prepared as for ImageNet."
            ) from error
        side = module.side or options.image_size or view.size
        view = replace(view, size=side, resize=max(side, view.resize))
        mean, std = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)  # the network normalises its input itself
    else:
        side = module.side or options.image_size or USUAL_VIEW.size
        view = USUAL_VIEW.changed(side)
    found = module(torch.zeros(1, 3, side, side))
    return Backbone(module, found.shape[1], mean, std, token=found.ndim == 2, view=view)
