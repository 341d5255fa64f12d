"""Pretrained networks from a library or file, with their weights and image preprocessing, without a training run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError, StorageError, quoted, storage_errors
from hgld.files import write_folder

from ..config import read_record
from .backbone import Backbone, BackboneOptions, load_all, read_weights, weights_file
from .backbones import BACKBONES, PLUGINS, build_backbone
from .embedding_model import AveragePool, EmbeddingModel, build_pooling

SAVED, WEIGHTS = "model.json", "model.safetensors"  # files in the folder of a saved network
SCHEMA_VERSION = 1
_SEED = 0  # seed of random weights


@dataclass(frozen=True)
class Network:
    """A pretrained network and its options, as ``hgld evaluate --model`` names them.

    Attributes:
        name: ``timm:NAME``, ``torchvision:NAME``, ``open_clip:MODEL/PRETRAINED``, ``onnx:FILE`` or ``pixels``; or the
            folder of a saved network (:func:`save_network`).
        weights: weights of the network: ``default`` (the library's weights), a tag, a file, or ``none`` (random, always
            the same).
        pooling: pooling of the feature map: ``avg``, ``gem``, ``max``, ``crow``, ``rmac`` or ``token``; empty: the
            network's own vector if it has one, else the average.
    """

    name: str
    weights: str = "default"
    pooling: str = ""


def source_of(name: str, weights: str = "default", pooling: str = "") -> Path | Network:
    """Return the run's folder or the network to which a model name refers.

    Args:
        name: a folder, or a network's name in the form of :class:`Network`.
        weights: weights of a network.
        pooling: pooling of a network.

    Raises:
        ConfigError: the name is neither a folder nor a network, or weights or a pooling are given for a run.
    """
    folder = Path(name).expanduser()
    if name.partition(":")[0] in {*BACKBONES, *PLUGINS.names()} or (folder / SAVED).is_file():
        return Network(name, weights, pooling)
    if not folder.is_dir():
        *first, last = (*(library.form for library in BACKBONES.values()), *PLUGINS.names())
        raise ConfigError(
            f"{quoted(name)} is not a model; expected a run's folder, a saved model's folder, hf:USER/NAME, "
            f"{', '.join(first)} or {last}."
        )
    if weights != "default" or pooling:
        raise ConfigError(f"{name} is a run, which has its own weights and pooling; omit both options.")
    return folder


def save_network(model: EmbeddingModel, network: Network, view: TestView, folder: Path) -> None:
    """Write a network to a new folder: its weights, and a record to build it without a download.

    Args:
        model: model of :func:`build_network`.
        network: name, tag of the weights, and pooling.
        view: view of the images that the network sees.
        folder: new or empty folder to write.

    Raises:
        ConfigError: the network is one file already.
        StorageError: the folder is not empty, or cannot be written.
    """
    from safetensors.torch import save_file

    if network.name.startswith("onnx:"):
        raise ConfigError(f"{network.name} is one file already; copy it.")
    built = _saved(Path(network.name))[0] if (Path(network.name) / SAVED).is_file() else network
    weights = "default" if weights_file(built.weights) else built.weights
    record = {"schema_version": SCHEMA_VERSION, **asdict(replace(built, weights=weights)), "view": asdict(view)}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}

    def fill(made: Path) -> None:
        (made / SAVED).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        save_file(tensors, made / WEIGHTS)

    write_new_folder(folder, fill)


def write_new_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a new folder, completely or not at all.

    Raises:
        StorageError: the folder is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder} exists already. Save to a new folder.")
    with storage_errors(f"write {folder}", "Save it elsewhere."):
        write_folder(folder, fill)


def _saved(folder: Path) -> tuple[Network, TestView]:
    """Read the record that :func:`save_network` wrote next to the weights.

    Raises:
        InputError: the record is damaged.
        SchemaError: this hgld does not read the record's schema version.
    """
    file = folder / SAVED
    found = read_record(file, SCHEMA_VERSION)
    try:
        texts = [found[name] for name in ("name", "weights", "pooling")]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("name, weights and pooling are texts")
        return Network(*texts), TestView(**found["view"])
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise InputError(f"{file}: not the record of a saved model ({quoted(error)}). Save the model again.") from error


def build_network(network: Network, size: int | None = None) -> tuple[EmbeddingModel, TestView | None]:
    """Build a network that embeds images: backbone and pooling only.

    Args:
        network: name, weights and pooling of the network.
        size: side of the images in pixels, for networks with a fixed size; None: the test size of the library.

    Returns:
        the model, on the CPU in evaluation mode, and how its library prepares images (:attr:`Backbone.view`).

    Raises:
        ConfigError: the network does not exist, or does not support the pooling or the image size.
        MissingExtraError: the network's library is not installed.
        MissingResourceError: the network's weights are not available on this machine.
        InputError: a file is damaged or belongs to another network.
    """
    folder, saved_view = Path(network.name), None
    is_saved = (folder / SAVED).is_file()
    if is_saved:
        if network.weights != "default" or network.pooling:
            raise ConfigError(f"{folder} is a saved model, which has its own weights and pooling; omit both options.")
        network, saved_view = _saved(folder)
        size = size or saved_view.size
    options = BackboneOptions(
        pretrained=network.weights,
        load_weights=not is_saved,
        token=None if not network.pooling else network.pooling == "token",
        image_size=size,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        backbone = build_backbone(network.name, options)
    pooling = build_pooling(network.pooling, gem_p=3.0, gem_learned=False) if network.pooling else None
    model = EmbeddingModel(
        backbone.module,
        backbone.num_features,
        pooling or (None if backbone.token else AveragePool()),
        dim=0,
        layer_norm=False,
        image_mean=backbone.image_mean,
        image_std=backbone.image_std,
    )
    if is_saved:
        load_all(model, read_weights(folder / WEIGHTS), f"{folder / WEIGHTS}: not the weights that {SAVED} describes")
    return model.eval(), saved_view or backbone.view


def embed_texts(network: Network, texts: Sequence[str]) -> Tensor:
    """Compute (N, F) unit embeddings of texts, on the CPU, with the text tower of a network.

    Raises:
        ConfigError: the network has no text tower, or its pooling puts images into a different space than texts.
        MissingExtraError: its library is not installed.
        MissingResourceError: the network's weights or tokenizer are not available on this machine.
        InputError: the file of weights is damaged, belongs to another model, or has no text tower.
    """
    library, _, name = network.name.partition(":")
    if library != "open_clip":
        raise ConfigError(
            f"--text: {network.name} has no text tower. Texts need --model open_clip:MODEL/PRETRAINED, for instance "
            "open_clip:ViT-B-32/openai."
        )
    if network.pooling not in ("", "token"):
        raise ConfigError(
            f"--text: {network.name} with pooling {network.pooling} does not embed images and texts into the same "
            "space. Omit "
            "--pooling."
        )
    from .open_clip_backbones import open_clip_texts

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return open_clip_texts(name, network.weights, texts)


# -- raw pixels as an embedding, a baseline for networks --

_SIDE = 32


class RawPixels(nn.Module):
    """The pixels of a small image minus their mean over a dataset, (B, 3, H, W) -> (B, 3 H W).

    Attributes:
        centre: (3 H W,) the mean; zero until it is set.
    """

    centre: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3 * side * side))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) - self.centre


def pixels(options: BackboneOptions) -> Backbone:
    """Return the pixels of the whole image, squashed to 32 x 32, as a network without parameters.

    Raises:
        ConfigError: the options have weights or a pooling.
    """
    if options.token is False or options.pretrained not in ("default", "none"):
        raise ConfigError("the network pixels has neither weights nor a pooling; omit both options.")
    side = options.image_size or _SIDE
    view = TestView(side, side, "squash")
    return Backbone(RawPixels(side), 3 * side * side, token=True, view=view)
