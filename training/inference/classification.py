"""The classifier that a run learned beside its embeddings: top-k and the names of its classes.

MultiGrain (Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019) tests one embedding
on classes and on instances; a loss with a proxy a class is a classifier of cosines.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from hgld.data.dataset import ShardDataset
from hgld.errors import ConfigError, InputError, SchemaError, quoted
from hgld.evaluation.postprocess import Whitening
from hgld.files import write_atomic
from hgld.hierarchy import Hierarchy

from ..checkpoint import read_state, read_tensors
from ..config import LossConfig, TrainConfig, read_json_object
from ..config_checks import has_classifier
from ..criterion import level_number

SCHEMA_VERSION = 1
CLASSES = "classes.json"
_MOST_BYTES = 1 << 28
_ROWS = 4096  # embeddings at a time


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear classifier of a model's embeddings, or of their cosines to one proxy per class.

    Attributes:
        weight: (C, D) floating.
        bias: (C,) bias of each class.
        scale: factor of the cosines; None: the classifier reads the embedding without normalisation.
        level: level of the hierarchy at which its classes are.
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

    def targets(self, dataset: ShardDataset) -> Tensor:
        """Return the classifier's numbers of the items' classes; see :func:`targets_of`."""
        return targets_of(dataset, self.level, self.names)

    def top_k(self, embeddings: Tensor, targets: Tensor, ks: Sequence[int]) -> dict[str, np.ndarray]:
        """Tell whether each item's class is among the k most likely ones; among equal scores its own comes last.

        Args:
            embeddings: (N, D) embeddings of the images.
            targets: (N,) class numbers that :meth:`targets` returned.
            ks: the numbers k.

        Returns:
            by name (``top-1``) (N,) float64: 1 or 0, and NaN if the target is -1.
        """
        ranks = torch.empty(len(embeddings), dtype=torch.int64)
        for start in range(0, len(embeddings), _ROWS):
            rows = slice(start, start + _ROWS)
            logits = self.logits(embeddings[rows])
            own = logits.gather(1, targets[rows, None].clamp(min=0).to(logits.device))
            ranks[rows] = (logits >= own).sum(1).cpu() - 1
        unknown = (targets < 0).numpy()
        return {f"top-{k}": np.where(unknown, np.nan, (ranks < k).numpy().astype(np.float64)) for k in ks}

    def describe(self) -> dict[str, object]:
        """Return facts for a report's settings."""
        return {"level": self.level, "classes": len(self.names)}


def targets_of(dataset: ShardDataset, level: str, names: Sequence[str]) -> Tensor:
    """Return (N,) indices of the items' classes among a classifier's classes, by name; -1 for other classes.

    Args:
        dataset: N items.
        level: level of the classifier's classes.
        names: names of its classes.

    Raises:
        ConfigError: the dataset has no such level.
        InputError: no item is of one of its classes.
    """
    if level not in dataset.levels:
        raise ConfigError(
            f"the classifier's classes are of level {quoted(level)}; {quoted(dataset)} has no such level."
        )
    column = dataset.levels.index(level)
    places = {name: place for place, name in enumerate(names)}
    of_class = torch.tensor([places.get(name, -1) for name in dataset.hierarchy.names[column]], dtype=torch.int64)
    labels = dataset.labels[:, column]
    targets = torch.where(labels >= 0, of_class[labels.clamp(min=0)], -1)
    if not (targets >= 0).any():
        raise InputError(
            f"{quoted(dataset)}: no item is of one of the {len(names)} classes that the classifier learned (the first "
            f"is {quoted(names[0])}). Measure top-k on a split with the classes of training, and others by retrieval."
        )
    return targets


# -- from a criterion's tensors, and the classes' names beside a run --------------------------------------------------


def classifier_of(config: LossConfig, tensors: Mapping[str, Tensor], level: str, names: Sequence[str]) -> Classifier:
    """Make the classifier of a loss's state.

    Args:
        config: the loss and its options; with several classifiers, the finest level's is taken.
        tensors: state of the criterion.
        level: level of the classes.
        names: names of the C classes.

    Raises:
        InputError: the tensors are not those of a loss with a classifier of so many classes.
    """
    found = sorted(name for name in tensors if name.endswith((".classifier.weight", ".proxies")))
    if not found or tensors[found[0]].ndim != 2 or len(tensors[found[0]]) != len(names):
        shape = tuple(tensors[found[0]].shape) if found else "nothing"
        raise InputError(f"a classifier of {len(names)} classes is expected in the criterion's state; found {shape}.")
    weight = tensors[found[0]].detach()
    if found[0].endswith(".classifier.weight"):
        return Classifier(weight, tensors[found[0].replace("weight", "bias")].detach(), None, level, tuple(names))
    scale = {"CSL": 32.0, "ProxyNCApp": 2 / config.proxy_temperature}.get(config.loss)
    return Classifier(weight, weight.new_zeros(len(weight)), scale or 1 / config.proxy_temperature, level, tuple(names))


def trained_classes(config: LossConfig, hierarchy: Hierarchy, labels: Tensor) -> tuple[str, tuple[str, ...]]:
    """Return the level of a loss's classifier and the names of its classes, in the order of its rows.

    Args:
        config: the loss.
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
    """Read the classifier of a checkpoint; None if the run's loss has none.

    Args:
        checkpoint: folder of the checkpoint, ``RUN/checkpoints/step-N``.
        config: options of the run.

    Raises:
        InputError: a file of it is missing or damaged, or they do not fit together.
        SchemaError: the names are of another schema version.
    """
    file, state = checkpoint.parent.parent / CLASSES, read_state(checkpoint)
    if not has_classifier(config) or not (file.is_file() and "criterion" in state["files"]):
        return None
    record = read_json_object(file, most=_MOST_BYTES)
    level, names = record.get("level"), record.get("names", ())
    if record.get("schema_version") != SCHEMA_VERSION:
        raise SchemaError(
            f"{file}: schema version is {quoted(record.get('schema_version'))}; this hgld reads version "
            f"{SCHEMA_VERSION}."
        )
    if not isinstance(level, str) or not _is_names(names):
        raise InputError(f"{file}: expected a level and a list of different names of classes. Restore the file.")
    try:
        return classifier_of(config.loss, read_tensors(checkpoint, state, "criterion"), level, names)
    except InputError as error:
        raise InputError(f"{checkpoint}: {error} Do {CLASSES} and the checkpoint belong to one run?") from error


def _is_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


# -- whitening, folded into the classifier ----------------------------------------------------------------------------


class WhitenedHead(nn.Module):
    """Whitening of embeddings with the classifier folded into it, so that one vector serves both tasks.

    With Phi(e) = S (e / ‖e‖ - mu), <w, e> + b = ‖e‖ (<w', Phi(e)> + b') + b for w' = S^-T w and b' = <w, mu>
    (MultiGrain, section 3.4): the scores are those of the classifier before. They need all components of the
    whitening; a whitening to fewer dimensions has lost what the classifier reads.

    Args:
        classifier: classifier of the embeddings before whitening.
        whitening: whitening of unit vectors, with as many components as dimensions.

    Raises:
        ConfigError: the whitening keeps fewer components, or is of another number of dimensions.
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
                f"the whitening of {whitening.fitted_on} keeps {kept} components of {dim} dimensions, and the "
                f"classifier reads {classifier.weight.shape[1]}; only a whitening that keeps all of them can be folded "
                "into it. Fit it with all dimensions (hgld embed --fit-whitening)."
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
            "weight": weight @ components.T * deviations,  # S^-T w, as the components are orthonormal
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
