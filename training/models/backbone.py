"""Shared parts of all library adapters: options of a backbone, its weights from a file, and errors."""

import difflib
import logging
import pickle
import struct
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError, MissingResourceError, excerpt, quoted, some
from hgld.files import check_pickles, reading_tensors

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
USUAL_VIEW = TestView()
# errors of the libraries, Hugging Face's client and torch for weights that they cannot download or read
FETCH_FAULTS = (
    *(RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, ImportError, AssertionError),
    *(pickle.UnpicklingError, SafetensorError),
)


@dataclass(frozen=True)
class BackboneOptions:
    """Options with which a library builds a backbone.

    Attributes:
        pretrained: weights of the model: ``default``, a tag, a path or ``none``.
        load_weights: whether to read the weights; without them, the model has the same architecture.
        token: whether the model returns its own vector rather than a feature map; None: the model's default (the
            result's :attr:`Backbone.token` states it).
        image_size: side of the images in pixels; None: the test size of the library.
    """

    pretrained: str
    load_weights: bool
    token: bool | None
    image_size: int | None


@dataclass(frozen=True)
class Backbone:
    """A model without its classifier.

    Attributes:
        module: (B, 3, H, W) -> (B, F, H', W'), or (B, F) if ``token``.
        num_features: number of features F.
        image_mean: mean of red, green and blue in 0..1, with which training images were normalised.
        image_std: standard deviation of red, green and blue in 0..1, with which training images were normalised.
        token: whether the module returns one vector per image (B, F), such as the class token, instead of a feature
            map.
        view: the library's preprocessing in tests; None: :class:`TestView` cannot express it.
    """

    module: nn.Module
    num_features: int
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    image_std: tuple[float, ...] = IMAGENET_STD
    token: bool = False
    view: TestView | None = USUAL_VIEW


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the libraries' log about random weights, downloads and retries, but not progress bars and errors."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.disable(before)


def no_weights(backbone: str, library: str, cache: str, error: BaseException) -> MissingResourceError:
    """Return the error for weights that a library cannot download or read."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return MissingResourceError(
        f"{backbone}: its weights are not available ({excerpt(reason)}). Give their file (--weights FILE, in training "
        f"--pretrained FILE; none: random weights), or put them into {cache}, the folder in which {library} keeps "
        "its downloads."
    )


def no_model(library: str, name: str, names: Sequence[str]) -> ConfigError:
    """Return the error for a name that a library does not have, with the nearest names."""
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.4)
    return ConfigError(f"{library} has no model {name!r}; nearest: {', '.join(near) or 'none'}.")


def require_size(images: Tensor, side: int) -> None:
    """Raise an error if images do not have the size for which a model with a fixed number of patches was built.

    Raises:
        ConfigError: the size differs.
    """
    if images.shape[-2:] != (side, side):
        height, width = images.shape[-2:]
        raise ConfigError(
            f"images of {width} x {height} pixels; this backbone was built for {side} x {side} and accepts "
            "no other size. Use timm's ViTs for several scales, or build the backbone for this size."
        )


# -- weights from a local file, checked against the model that they are for --

_MOST_BYTES = 64 << 30
_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
# keys under which training programs store weights
_WRAPPED = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
# prefixes that DDP, torch.compile and models with a backbone add to the names of weights
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "net.")
_NOT_OF_A_BACKBONE = ("fc", "head", "heads", "head_dist", "classifier", "last_linear", "projection", "pooling")
_UNREADABLE = (  # errors of torch and safetensors on damaged files, as mutated files showed
    *(RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError, EOFError, OverflowError),
    *(MemoryError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile, SafetensorError),
)
_log = logging.getLogger(__name__)


def names_file(pretrained: str) -> bool:
    """Tell whether ``pretrained`` is a path (of a file that may not exist), not ``default``, ``none`` or a tag."""
    path = Path(pretrained).expanduser()
    is_word = pretrained in ("default", "none")
    return not is_word and (path.suffix in _SUFFIXES or len(path.parts) > 1 or path.is_file())


def weights_file(pretrained: str) -> Path | None:
    """Return ``pretrained`` as a path, or None if it is ``default``, ``none`` or a tag.

    Raises:
        MissingResourceError: ``pretrained`` is the path of a file that does not exist.
    """
    if not names_file(pretrained):
        return None
    path = Path(pretrained).expanduser()
    if not path.is_file():
        raise MissingResourceError(
            f"weights {quoted(pretrained)}: there is no such file. Expected a file of weights "
            f"({', '.join(_SUFFIXES)}), default, or none."
        )
    return path


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file of weights by name; no code in it is ever run.

    From a training checkpoint (``{"model": {...}, "epoch": 3}``), the averaged weights are read, or the model's weights
    if there is no average.

    Raises:
        InputError: the file has another format, is damaged or too large, or holds objects that are not tensors.
    """
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise InputError(f"{path} has {size} bytes; expected weights of at most {_MOST_BYTES}.")
        with reading_tensors(path):
            found: object = load_file(path) if path.suffix == ".safetensors" else _read_pickled(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except _UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        reason = excerpt(str(error).strip() or type(error).__name__)
        raise InputError(
            f"{path}: cannot be read as weights ({reason}). Expected a .safetensors file, or a .pt file that holds "
            "only tensors; pickled code is never run."
        ) from error
    return _tensors(found, path)


def load_all(module: nn.Module, tensors: Mapping[str, Tensor], problem: str) -> None:
    """Copy tensors into a module that has the same names and shapes.

    Raises:
        InputError: names or shapes differ; the message begins with ``problem``.
    """
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise InputError(f"{problem}: {excerpt(error)}") from error


def load_into(module: nn.Module, weights: Mapping[str, Tensor], source: str, unused: Collection[str] = ()) -> None:
    """Copy weights into a module, all of them or none.

    Prefixes that wrappers leave (``module.``, ``backbone.``) are removed if the module has no such name. Classifiers
    and projections that the module lacks are ignored, with a log message. Another library's port of a network may have
    none of the module's names. If all shapes agree in order, its weights are loaded by order, with a log message.

    Args:
        module: module without a classifier.
        weights: tensors by name.
        source: name of the weights in messages, such as the file.
        unused: names of weights of the whole model that the module does not use.

    Raises:
        InputError: a weight is missing, is unexpected, or has a wrong shape.
    """
    expected = module.state_dict()
    given: dict[str, Tensor] = {}
    weights = _named_by_position(weights, expected, source)
    for name, tensor in weights.items():
        short = _own_name(name, expected)
        if short in given:
            raise InputError(f"{source}: holds two weights that could be {quoted(short)}. Keep one model in the file.")
        given[short] = tensor
    other = [name for name in given if name not in expected]
    foreign = [n for n in other if n not in unused and n.partition(".")[0] not in _NOT_OF_A_BACKBONE]
    # Batch norm counts its batches only since torch 0.4.1, and nothing reads the count.
    missing = [name for name in expected if name not in given and not name.endswith("num_batches_tracked")]
    shapes = [n for n in given if n in expected and given[n].shape != expected[n].shape]
    for what, names in (("are missing", missing), ("are not of this model", foreign)):
        if names:
            listed = some(sorted(names))
            raise InputError(
                f"{source}: not the weights of this backbone: {len(names)} of {len(expected)} {what} ({listed}). Use "
                "the backbone that the file was made with."
            )
    if shapes:
        name = shapes[0]
        raise InputError(
            f"{source}: {name} has shape {tuple(given[name].shape)}; expected {tuple(expected[name].shape)} "
            f"({len(shapes)} weights differ). Use the backbone that the file was made with."
        )
    if other:
        _log.warning("%s: ignored, because an embedding does not use them: %s", source, some(sorted(other)))
    module.load_state_dict({name: given[name] for name in expected if name in given}, strict=False)


def _named_by_position(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str
) -> Mapping[str, Tensor]:
    """Return weights under the module's names if they have none of these names but all shapes agree in order.

    A linear classifier at the end is ignored.
    """
    more = [tensor.ndim for tensor in weights.values()][len(expected) :]
    shapes = [(t.shape, n.shape) for t, n in zip(weights.values(), expected.values(), strict=False)]
    if (
        any(_own_name(name, expected) in expected for name in weights)
        or len(shapes) < len(expected)
        or any(stored != wanted for stored, wanted in shapes)
        or more not in ([], [2], [2, 1])
    ):
        return weights
    _log.warning(
        "%s: has other names; its %d tensors were loaded by their order, every shape agrees", source, len(shapes)
    )
    return dict(zip(expected, weights.values(), strict=False))


def _read_pickled(path: Path) -> object:
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: suffix {quoted(path.suffix)}; expected weights as {', '.join(_SUFFIXES)}.")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            packed = [info.filename for info in members if info.compress_type != zipfile.ZIP_STORED]
            if packed:  # torch.save does not compress; a compressed member could expand to any size
                raise InputError(
                    f"{path}: its member {quoted(packed[0])} is compressed, but torch.save never compresses. Save it "
                    "again."
                )
            if (stated := sum(info.file_size for info in members)) > path.stat().st_size:  # members can share bytes
                raise InputError(f"{path}: its members have {stated:,} bytes, more than the file.")
            for info in members:
                if info.filename.endswith(".pkl"):
                    with archive.open(info) as file:
                        check_pickles(file)
    else:  # before torch 1.6: five pickles, then the numbers
        with open(path, "rb") as file:
            check_pickles(file, 5)
    # torch warns of unusual pickle protocols, and then reads the file or raises an error.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        return torch.load(path, map_location="cpu", weights_only=True)


def _tensors(found: object, path: Path) -> dict[str, Tensor]:
    for key in _WRAPPED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"{path}: holds {type(found).__name__} without weights; expected tensors by name.")
    weights: dict[str, Tensor] = {}
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{path}: {quoted(name)} is {type(value).__name__}; expected only tensors by name.")
        weights[name] = value
    return weights


def _own_name(name: str, expected: Mapping[str, Tensor]) -> str:
    """Return the name without the prefixes of wrappers, or unchanged if the module has that name."""
    short = name
    while short not in expected:
        prefix = next((p for p in _PREFIXES if short.startswith(p)), None)
        if prefix is None:
            break
        short = short.removeprefix(prefix)
    return short
