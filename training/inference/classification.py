"""Classifiers of embeddings for the metric top-k: learned by a run, or part of a pretrained network.

MultiGrain (Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019) tests one embedding
on classes and on instances. A loss with one proxy per class is a classifier of cosines.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from hgld.data.dataset import ShardDataset
from hgld.errors import ConfigError, InputError, quoted
from hgld.evaluation.postprocess import Whitening
from hgld.files import write_atomic
from hgld.hierarchy import Hierarchy

from ..checkpoint import read_state, read_tensors
from ..config import LossConfig, TrainConfig, read_record
from ..config_checks import has_classifier
from ..criterion import level_number
from ..models.backbone import FETCH_FAULTS, load_into, no_weights, read_weights, weights_file
from ..models.embedding_model import EmbeddingModel

SCHEMA_VERSION = 1
CLASSES = "classes.json"
_MOST_BYTES = 1 << 28
_ROWS = 4096  # number of embeddings at a time


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear classifier of a model's embeddings, or of their cosines to one proxy per class.

    Attributes:
        weight: (C, D) floating-point weights, one row per class.
        bias: (C,) bias of each class.
        scale: factor of the cosines; None: the classifier reads the embedding without normalisation.
        level: level of the hierarchy to which the classes belong.
        names: names of the C classes.
    """

    weight: Tensor
    bias: Tensor
    scale: float | None
    level: str
    names: tuple[str, ...]

    def logits(self, embeddings: Tensor) -> Tensor:
        """Compute (N, C) scores of (N, D) embeddings of the weights' dtype, on their device."""
        weight, bias = self.weight.to(embeddings.device), self.bias.to(embeddings.device)
        if self.scale is None:
            return linear(embeddings, weight, bias)
        return self.scale * linear(normalize(embeddings, dim=1), normalize(weight, dim=1)) + bias

    def top_k(self, embeddings: Tensor, targets: Tensor, ks: Sequence[int]) -> dict[str, np.ndarray]:
        """Tell whether each item's class is among the k classes with the highest scores; in a tie, this class is last.

        Args:
            embeddings: (N, D) embeddings of the images.
            targets: (N,) class numbers that :func:`targets_of` returned.
            ks: values of k.

        Returns:
            (N,) float64 values by metric name (``top-1``): 1 if the class is among the k, else 0; NaN if the target is
            -1.
        """
        parts = []
        for rows, classes in zip(embeddings.split(_ROWS), targets.split(_ROWS), strict=True):
            logits = self.logits(rows)
            own = logits.gather(1, classes[:, None].clamp(min=0).to(logits.device))
            parts.append((logits >= own).sum(1).cpu() - 1)
        ranks = torch.cat(parts).numpy()
        return {f"top-{k}": np.where(targets.numpy() < 0, np.nan, ranks < k) for k in ks}


def targets_of(dataset: ShardDataset, level: str, names: Sequence[str]) -> Tensor:
    """Return (N,) indices of the items' classes among a classifier's classes, by name; -1 for other classes.

    Args:
        dataset: dataset of N items.
        level: level of the classifier's classes.
        names: names of the classifier's classes.

    Raises:
        ConfigError: the dataset has no such level.
        InputError: no item belongs to a class of the classifier.
    """
    if level not in dataset.levels:
        raise ConfigError(
            f"the classifier predicts classes of the level {quoted(level)}, which {quoted(dataset)} does not have."
        )
    column = dataset.levels.index(level)
    places = {name: place for place, name in enumerate(names)}
    of_class = torch.tensor([places.get(name, -1) for name in dataset.hierarchy.names[column]], dtype=torch.int64)
    labels = dataset.labels[:, column]
    targets = torch.where(labels >= 0, of_class[labels.clamp(min=0)], -1)
    if not (targets >= 0).any():
        raise InputError(
            f"{quoted(dataset)}: no item belongs to one of the {len(names)} classes that the classifier learned (the "
            f"first is {quoted(names[0])}). Measure top-k on a split with training classes; other classes need "
            "retrieval metrics."
        )
    return targets


# -- the classifier of a run, and the names of its classes --


def classifier_of(config: LossConfig, tensors: Mapping[str, Tensor], level: str, names: Sequence[str]) -> Classifier:
    """Make the classifier of a loss's state.

    Args:
        config: the loss and its options; if the loss has several classifiers, the finest level's classifier is
            returned.
        tensors: state of the criterion.
        level: level of the classes.
        names: names of the C classes.

    Raises:
        InputError: the tensors hold no classifier of C classes.
    """
    found = min((name for name in tensors if name.endswith((".classifier.weight", ".proxies"))), default="")
    weight = tensors[found].detach() if found else torch.empty(0)
    if weight.ndim != 2 or len(weight) != len(names):
        raise InputError(
            f"the criterion's state has a classifier of shape {tuple(weight.shape)}; expected {len(names)} classes."
        )
    if found.endswith(".classifier.weight"):
        return Classifier(weight, tensors[found.replace("weight", "bias")].detach(), None, level, tuple(names))
    scale = {"CSL": 32.0, "ProxyNCApp": 2 / config.proxy_temperature}.get(config.loss, 1 / config.proxy_temperature)
    return Classifier(weight, weight.new_zeros(len(weight)), scale, level, tuple(names))


def trained_classes(config: LossConfig, hierarchy: Hierarchy, labels: Tensor) -> tuple[str, tuple[str, ...]]:
    """Return the level of a loss's classifier and the names of its classes, in the order of its rows.

    Args:
        config: options of the loss.
        hierarchy: hierarchy of the dataset.
        labels: (N, L) labels of the training split; classes without an item have no row.

    Raises:
        ConfigError: the hierarchy has no such level.
    """
    column = level_number(hierarchy, config.level)
    present = labels[:, column][labels[:, column] >= 0].unique().tolist()
    return hierarchy.levels[column], tuple(hierarchy.names[column][number] for number in present)


def write_classes(run: Path, level: str, names: Iterable[str]) -> None:
    """Write the names of a run's classes, ``RUN/classes.json``."""
    record = {"schema_version": SCHEMA_VERSION, "level": level, "names": list(names)}
    write_atomic(run / CLASSES, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def read_classifier(checkpoint: Path, config: TrainConfig) -> Classifier | None:
    """Read the classifier of a checkpoint; None if the run's loss has no classifier.

    Args:
        checkpoint: folder of the checkpoint, ``RUN/checkpoints/step-N``.
        config: options of the run.

    Raises:
        InputError: a file of the checkpoint is missing or damaged, or its files do not fit together.
        SchemaError: this hgld does not read the schema version of the file of class names.
    """
    file, state = checkpoint.parent.parent / CLASSES, read_state(checkpoint)
    if not has_classifier(config) or not (file.is_file() and "criterion" in state["files"]):
        return None
    record = read_record(file, SCHEMA_VERSION, max_bytes=_MOST_BYTES)
    level: Any = record.get("level")
    names: Any = record.get("names")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not isinstance(level, str) or not is_list or len(set(names)) < len(names):
        raise InputError(f"{file}: expected a level and a list of different names of classes. Restore the file.")
    try:
        return classifier_of(config.loss, read_tensors(checkpoint, state, "criterion"), level, names)
    except InputError as error:
        raise InputError(f"{checkpoint}: {error} Do {CLASSES} and the checkpoint belong to one run?") from error


# -- whitening, folded into the classifier --


class WhitenedHead(nn.Module):
    """Whitening of embeddings, and a classifier of the whitened vectors, so that one vector serves both tasks.

    With Phi(e) = S (e / ‖e‖ - mu), <w, e> + b = ‖e‖ (<w', Phi(e)> + b') + b for w' = S^-T w and b' = <w, mu>
    (MultiGrain, section 3.4). So a classifier with the inverse whitening in its weights returns for whitened vectors
    the same scores as the classifier without whitening. This needs all components of the whitening; a whitening to
    fewer dimensions loses information that the classifier reads.

    Args:
        classifier: classifier of the embeddings before whitening.
        whitening: whitening of unit vectors, with as many components as dimensions.

    Raises:
        ConfigError: the whitening has fewer components than the embeddings have dimensions, or is for another number of
            dimensions.
    """

    mean: Tensor
    projection: Tensor
    weight: Tensor
    shift: Tensor
    bias: Tensor

    def __init__(self, classifier: Classifier, whitening: Whitening) -> None:
        super().__init__()
        kept, dim = whitening.components.shape
        if (kept, dim) != (classifier.weight.shape[1],) * 2:
            raise ConfigError(
                f"the whitening of {whitening.fitted_on} keeps {kept} components of {dim} dimensions, but the "
                f"classifier takes {classifier.weight.shape[1]} dimensions. A whitening can be folded into a "
                "classifier only if it keeps all dimensions. Fit it again: hgld embed --fit-whitening."
            )
        weight = classifier.weight.double()
        self.scale = classifier.scale
        if self.scale is not None:
            weight = normalize(weight, dim=1)
        deviations = torch.from_numpy(whitening.variances**whitening.power).to(weight.device)
        components = torch.from_numpy(whitening.components).to(weight.device)
        mean = torch.from_numpy(whitening.mean).to(weight.device)
        made = {
            "mean": mean,
            "projection": components / deviations[:, None],
            "weight": weight @ components.T * deviations,  # S^-T w, because the components are orthonormal
            "shift": weight @ mean,
            "bias": classifier.bias,
        }
        for name, tensor in made.items():
            self.register_buffer(name, tensor.to(classifier.weight.dtype))

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (N, D) whitened unit vectors and (N, C) scores from the model's (N, D) embeddings."""
        lengths = embeddings.norm(dim=1, keepdim=True).clamp(min=torch.finfo(embeddings.dtype).tiny)
        whitened = linear(embeddings / lengths - self.mean, self.projection)
        scores = linear(whitened, self.weight, self.shift)
        return normalize(whitened, dim=1), scores * (lengths if self.scale is None else self.scale) + self.bias


# -- the classifier that a library's network was pretrained with --
# Its last linear layer reads GeM's features as well if the network pools by the mean (MultiGrain, appendix E).

_TOLERANCE = 1e-3  # maximum difference of scores, as a share of the largest score
_SYNSET = re.compile(r"n[0-9]{8}\Z")


def library_head(spec: str, pretrained: str, model: EmbeddingModel, *, image_size: int = 64) -> tuple[Tensor, Tensor]:
    """Return weight (C, F) and bias (C,) of the classifier that a network of torchvision or timm comes with.

    The whole network is run on noise. Its scores must equal the scores of the classifier on the model's mean features.

    Args:
        spec: name of the model's backbone, ``torchvision:NAME`` or ``timm:NAME``.
        pretrained: weights of the model: ``default``, a tag of its library, or a file of weights with the classifier.
        model: model with these weights, without norm and projection after its pooling.
        image_size: side of the noise, pixels.

    Raises:
        ConfigError: the network is from another library or has no pretrained weights, its classifier is not one linear
            layer on the mean of the feature map, or the model has a norm or projection.
        MissingResourceError: the weights are not available.
        InputError: the file of weights is damaged or belongs to another model.
    """
    library, _, name = spec.partition(":")
    if library not in ("torchvision", "timm") or pretrained == "none":
        raise ConfigError(
            f"backbone {spec} with pretrained {pretrained} has no classifier of its own; expected weights of "
            "torchvision or timm."
        )
    changes = (model.norm, "a layer norm", "--no-layer-norm"), (model.projection, "a projection", "--dim 0")
    for module, what, hint in changes:
        if not isinstance(module, nn.Identity):
            raise ConfigError(
                f"the pretrained classifier needs the backbone's features, but the model has {what}; use {hint}."
            )
    whole = _build_whole_network(library, name, pretrained).eval()
    head = next((module for module in reversed(list(whole.modules())) if isinstance(module, nn.Linear)), None)
    if head is None or head.bias is None or not _reads_mean(whole, head, model, image_size):
        raise ConfigError(
            f"the classifier of {spec} is not one linear layer behind the mean of its feature map, so it cannot "
            "be tested with another pooling. Use a ResNet, RegNet, DenseNet, EfficientNet or MobileNet."
        )
    return head.weight.detach(), head.bias.detach()


def check_synsets(names: Sequence[str], classes: int, level: str) -> None:
    """Raise an error if a dataset's classes are not the classes of ImageNet-1k, named by sorted WordNet ids.

    Args:
        names: names of the dataset's classes.
        classes: number of the network's classes.
        level: level of the dataset's classes.

    Raises:
        ConfigError: a name is not a WordNet id, the names are not sorted, or their number is not ``classes``.
    """
    if len(names) != classes or list(names) != sorted(names) or not all(_SYNSET.match(name) for name in names):
        raise ConfigError(
            f"level {level!r} has {len(names)} classes, the first is {names[0]!r}; expected the {classes} sorted "
            "WordNet ids of the network's classifier. Build the dataset with hgld build-shards imagenet."
        )


@torch.no_grad()
def _reads_mean(whole: nn.Module, head: nn.Linear, model: EmbeddingModel, size: int) -> bool:
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    features: Any = model.backbone(noise.to(device)).cpu()
    model.train(was_training)
    pooled = features.mean(dim=(2, 3)) if features.ndim == 4 else features
    if pooled.shape[1] != head.in_features:
        return False
    expected = whole(noise)
    return bool((head(pooled) - expected).abs().max() <= _TOLERANCE * expected.abs().max().clamp(min=1))


def _build_whole_network(library: str, name: str, pretrained: str) -> nn.Module:
    """Build a network with its classifier, and with weights of a file or of the library."""
    import timm
    import torchvision

    if (path := weights_file(pretrained)) is not None:
        network = torchvision.models.get_model(name) if library == "torchvision" else timm.create_model(name)
        load_into(network, read_weights(path), str(path))
        return network
    try:
        if library == "timm":
            tagged = name if pretrained == "default" or "." in name else f"{name}.{pretrained}"
            return timm.create_model(tagged, pretrained=True)
        entries = torchvision.models.get_model_weights(name)
        return torchvision.models.get_model(name, weights=entries["DEFAULT" if pretrained == "default" else pretrained])
    except FETCH_FAULTS as error:
        cache = "torch's cache (TORCH_HOME)" if library == "torchvision" else "Hugging Face's cache (HF_HOME)"
        raise no_weights(f"{library}:{name}", library, cache, error) from error
