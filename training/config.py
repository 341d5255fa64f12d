"""The options of a training run: one frozen dataclass per section, all of them in :class:`TrainConfig`.

``hgld train --help`` is built from this module, so it imports nothing heavy. Every field is a flag, and its metadata
holds the flag's help. Field names are unique over all sections, so flags need no prefix. Recipes are named configs
(``training/recipes``). A run's folder keeps its config as ``config.json``, and ``--show`` prints a config as YAML.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hgld.errors import ConfigError, InputError, SchemaError, did_you_mean, excerpt, quoted
from hgld.evaluation.metric import offered_names
from hgld.files import open_regular, read_json, write_atomic
from hgld.losses.registry import loss_names
from hgld.settings import Option, bound_problems, options_of, setting

SCHEMA_VERSION = 2
_MOST_BYTES = 1 << 20

Pooling = Literal["avg", "gem", "max", "crow", "rmac", "token"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


# -- the options, by section ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelConfig:
    """Options of the model: backbone, pooling, projection."""

    backbone: str = setting(
        "torchvision:resnet50",
        "Network: small, small-resnet, torchvision:NAME, timm:NAME or open_clip:NAME.",
        common=True,
    )
    pretrained: str = setting(
        "default",
        "Pretrained weights. default: the library's own; a name (torchvision's IMAGENET1K_V1, a tag of timm or "
        "open_clip); a local .safetensors or .pt file; none: random weights.",
        common=True,
    )
    pooling: Pooling = setting(
        "avg",
        "Pooling of the feature map. avg: average; gem: generalised mean (GeM); max: maximum; crow: weights per "
        "position and channel (CroW); rmac: maxima of regions (R-MAC); token: the network's own vector.",
    )
    gem_p: float = setting(3.0, "Exponent of GeM pooling.", above=0)
    gem_learned: bool = setting(True, "Learn the exponent of GeM pooling.")
    layer_norm: bool = setting(True, "Apply layer norm without affine parameters before the projection.")
    dim: int = setting(
        512, "Dimension of the embedding; 0: the backbone's dimension, without a projection.", least=0, most=65_536
    )
    projection: Literal["random", "pca"] = setting(
        "random", "Initial weights of the projection: random, or the PCA of the training set's features."
    )
    classifier: Literal["random", "pretrained"] = setting(
        "random",
        "Initial weights of MultiGrain's classifier: random, or the backbone's pretrained classifier for the 1,000 "
        "classes of ImageNet (torchvision, timm).",
    )
    freeze_batch_norm: bool = setting(False, "Freeze batch norm: keep its pretrained statistics and parameters.")
    compile: bool = setting(False, "Compile the backbone and the loss with torch.compile.")


@dataclass(frozen=True)
class ImagesConfig:
    """Options for reading and augmenting images."""

    size: int = setting(224, "Side of the model's square input.", unit="pixels", above=0, common=True)
    resize: int = setting(
        256, "Length of the image's short side before evaluation crops the central square.", unit="pixels", above=0
    )
    test_size: int = setting(
        0,
        "Side of the model's square input in evaluation; --resize changes in proportion. 0: the value of --size.",
        unit="pixels",
        least=0,
    )
    interpolation: Literal["bilinear", "bicubic"] = setting(
        "bilinear", "Interpolation method that evaluation uses to resize images."
    )
    test_resize_mode: Literal["crop", "squash", "longest", "original"] = setting(
        "crop",
        "How evaluation resizes images. crop: the central square; squash: the whole image as a square; longest: the "
        "whole image, its longest side scaled to the test size; original: the whole image at its own size.",
    )
    train_crop: Literal["random-resized", "squared"] = setting(
        "random-resized",
        "How training crops images. random-resized: a random rectangle, resized to --size; squared: the image is "
        "resized to a square of --resize pixels, and a random square of --size pixels is cut out.",
    )
    crop_min: float = setting(
        0.16, "Minimum share of the image's area that a random-resized crop covers.", above=0, most=1
    )
    flip: float = setting(0.5, "Probability that a training image is flipped horizontally.", least=0, most=1)
    jitter: float = setting(0.0, "Strength of the colour jitter of training images; MultiGrain uses 0.3.", least=0)
    lighting: float = setting(0.0, "Strength of the lighting noise of training images; MultiGrain uses 0.1.", least=0)
    autoaugment: bool = setting(False, "Apply torchvision's AutoAugment policies for ImageNet.")
    erasing: float = setting(
        0.0, "Probability that a rectangle of 2 to 33% of the image is painted over (random erasing).", least=0, most=1
    )
    workers: int = setting(
        0, "Number of decoding threads per process. 0: one per core of the process, at most 16.", least=0
    )


@dataclass(frozen=True)
class BatchConfig:
    """Options for making batches."""

    batch_size: int = setting(256, "Images per training step, over all processes.", above=0, common=True)
    images_per_class: int = setting(4, "Number of images per class in a batch (K of P x K).", above=0)
    sampler: Literal["pk", "hierarchical-pk", "repeated-augmentation", "class-balanced", "shuffled"] = setting(
        "pk", "Sampler that chooses the images of each batch."
    )
    coverage: Literal["exact", "classes"] = setting(
        "exact",
        "Images that an epoch contains. exact: every image at least once; classes: random classes and images, as "
        "published.",
    )
    super_level: str = setting("", "Level of the super-classes of hierarchical-pk; default: the coarsest.")
    super_classes: int = setting(2, "Number of super-classes in a batch of hierarchical-pk.", above=0)
    repeats: int = setting(3, "Number of views per image in a batch of repeated-augmentation.", above=0)
    merge_classes: int = setting(
        1,
        "Number of classes per merged class: training merges the finest classes in random groups of this size (PNP's "
        "robustness test: 3).",
        above=0,
    )
    steps_per_epoch: int = setting(
        0,
        "Steps per epoch; 0: the length of the sampler's own epoch (with --coverage exact, enough to show every "
        "image).",
        least=0,
    )
    micro_batch_size: int = setting(
        0,
        "Number of images that the model processes at once in each process (multi-stage back-propagation). 0: all "
        "images of the process's share.",
        least=0,
    )
    stream: bool = setting(
        False,
        "Read the shards in their order instead of images in random order; needs fewer requests to a server.",
    )
    num_streams: int = setting(
        8, "Number of sequences of shards that --stream reads in parallel, over all processes.", above=0
    )


@dataclass(frozen=True)
class LossConfig:
    """Options of the loss; if the chosen loss does not have an option, the option must keep its default."""

    loss: str = setting("HAPPIER", "Name of the loss in hgld.losses.", choices=loss_names(), common=True)
    sum_levels: bool = setting(False, "Sum a binary loss over all levels instead of using one level.")
    level: str = setting("", "Level whose classes a binary loss learns; default: the finest.")
    lambda_: float = setting(
        0.1, "Weight of a composition's second term, or of MultiGrain's classification term.", least=0, most=1
    )
    decomposability: Literal["", "pair", "proxy"] = setting(
        "",
        "Second term of a composed loss: pair (CalibrationLoss) or proxy (NormSoftmax); --lambda weights it. Default: "
        "the second term of the chosen loss.",
    )
    alpha: float = setting(1.0, "Exponent of a level's relevance in H-AP, or exponent of PNP's D_q.", least=0)
    relevance: Literal["population", "total", "weighted_ap", "exponential"] = setting(
        "population", "Definition of an item's relevance in H-AP."
    )
    tau: float = setting(0.01, "Temperature of the step function's surrogate.", above=0)
    rho: float = setting(100.0, "Slope of SupRank's straight line.", above=0)
    delta: float = setting(0.05, "Score difference above which SupRank's surrogate is a straight line.", above=0)
    recall_at: tuple[int, ...] = setting((1, 2, 4, 8, 16), "Cutoffs k of the recall losses (R@k).")
    recall_temperature: float = setting(
        1.0, "Temperature of the sigmoid that compares ranks with the cutoffs of the recall losses.", above=0
    )
    bins: int = setting(20, "Number of bins of SoftBinAP and FastAP.", above=0)
    ties: Literal["ignored", "relaxed", "integral"] = setting(
        "ignored",
        "Treatment of ties (items in one bin) in SoftBinAP. relaxed and integral approximate tie-aware AP: the average "
        "of AP over all orders of tied items.",
    )
    pnp: Literal["O", "Iu", "Ib", "Ds", "Dq"] = setting("Dq", "Variant of the loss PNP.")
    pnp_b: float = setting(4.0, "Constant b of PNP's variant I_b.", least=0)
    blackbox_lambda: float = setting(4.0, "Interpolation constant lambda of BlackboxAP.", above=0)
    margin: float = setting(0.2, "Margin of Triplet, Margin, MultiGrain and Contrastive.", least=0)
    contrastive: Literal["distance", "cosine"] = setting(
        "distance",
        "Whether Contrastive's margin is a distance or a cosine. cosine: the loss of the cross-batch "
        "memory paper (XBM), a sum over pairs.",
    )
    beta: float = setting(1.2, "Initial boundary between positives and negatives in Margin and MultiGrain.")
    reach: float = setting(
        1.4,
        "Distance beyond which Margin and MultiGrain draw a negative only if the anchor has no nearer one; 2: no limit "
        "(MultiGrain, Eq. 4).",
        most=2,
    )
    pair_positive: float = setting(0.9, "Score above which the pair loss ignores positives.")
    pair_negative: float = setting(0.6, "Score below which the pair loss ignores negatives.")
    proxy_temperature: float = setting(0.05, "Temperature of the proxies; ProxyNCA++ uses 1/9.", above=0)
    csl_margins: tuple[float, ...] = setting((), "Margins of CSL, finest level first; default: the published margins.")
    class_weights: bool = setting(
        False,
        "Weight each query by the inverse size of its class, so that all classes have equal weight in an epoch of "
        "--sampler shuffled.",
    )
    matryoshka: tuple[int, ...] = setting(
        (),
        "Dimensions to which embeddings can be truncated (Matryoshka), ascending, the last one equal to --dim. The "
        "loss is computed for each.",
    )
    simix: bool = setting(False, "Add virtual items between the items of a class (SiMix).")
    memory: int = setting(
        0, "Number of items in the cross-batch memory. -1: the whole training set; 0: no memory.", least=-1
    )
    memory_from_epoch: int = setting(5, "First epoch that uses the cross-batch memory.", least=0)


@dataclass(frozen=True)
class OptimizerConfig:
    """Options of the optimizers; learning rates are not rescaled by the batch size."""

    optimizer: Literal["adam", "adamw", "sgd"] = setting("adam", "Optimizer of the weights.")
    lr: float = setting(1e-5, "Learning rate of the backbone.", least=0, common=True)
    lr_head: float = setting(2e-5, "Learning rate of the head: pooling and projection.", least=0)
    lr_proxies: float = setting(
        1e-3, "Learning rate of the loss's own parameters: proxies, classifiers, beta.", least=0
    )
    lr_beta: float = setting(
        -1.0,
        "Learning rate of beta in Margin and MultiGrain, with the schedule of --lr-proxies. -1: the value of "
        "--lr-proxies.",
        least=-1,
    )
    weight_decay: float = setting(
        1e-4, "Weight decay of the model's weights; biases and norms decay only with --decay-all.", least=0
    )
    weight_decay_proxies: float = setting(0.0, "Weight decay of the loss's proxies or classifier.", least=0)
    decay_all: bool = setting(
        False,
        "Apply weight decay to biases and norms too, like MultiGrain's code, but not to beta or GeM's exponent.",
    )
    nesterov: bool = setting(False, "Use Nesterov momentum with --optimizer sgd.")
    schedule: Literal["cosine", "step", "linear", "constant"] = setting("cosine", "Schedule of the learning rates.")
    lr_floor: float = setting(
        0.0, "Final learning rate of backbone and head with --schedule cosine or linear.", least=0
    )
    lr_floor_proxies: float = setting(
        0.0, "Final learning rate of the loss's own parameters with --schedule cosine or linear.", least=0
    )
    milestones: tuple[int, ...] = setting((), "Epochs at which --schedule step lowers the learning rates.")
    gamma: float = setting(0.1, "Factor by which --schedule step lowers the learning rates.", above=0, most=1)
    warmup_steps: int = setting(0, "Number of steps at the start over which the learning rates rise from 0.", least=0)
    frozen_epochs: int = setting(0, "Number of epochs at the start in which the backbone is frozen.", least=0)
    clip_norm: float = setting(0.0, "Norm to which larger gradients are clipped; 0: no clipping.", least=0)
    amp: Literal["off", "bf16", "fp16"] = setting(
        "off", "Mixed precision of the model; the loss is always computed in fp32."
    )
    ema: float = setting(
        0.0,
        "Decay of an exponential moving average of the weights; evaluations use the average. 0: no average.",
        least=0,
        most=1,
    )


@dataclass(frozen=True)
class RunConfig:
    """Options of the run: its length, checkpoints and evaluations."""

    epochs: int = setting(100, "Number of epochs; 0: only evaluate and save the initial model.", least=0, common=True)
    seed: int = setting(0, "Seed of all random numbers.", least=0, common=True)
    train_split: str = setting("train", "Split to train on.")
    evaluate_on: tuple[str, ...] = setting(
        ("test",),
        "Splits to evaluate on: SPLIT; QUERY/GALLERY for two splits; protocol for the dataset's own protocol; "
        "protocol=NAME for another protocol. DIR:SPLIT and DIR:protocol evaluate on the dataset in DIR.",
    )
    evaluate_start: bool = setting(False, "Also evaluate the initial model; it can then be the best checkpoint.")
    blend: float = setting(
        0.0,
        "Share of the last weights in a weighted average with the initial weights (WiSE-FT). hgld evaluates the "
        "average after the last epoch and keeps it if it improves --monitor. 0: no average.",
        least=0,
        most=1,
    )
    evaluate_every: int = setting(
        1, "Number of epochs between evaluations. 0: evaluate only after the last epoch.", least=0
    )
    metrics: tuple[str, ...] = setting(
        ("R@1", "AP", "H-AP", "NDCG", "ASI"),
        "Metrics to compute when evaluating on splits. A protocol has its own metrics.",
        offered=offered_names,
    )
    monitor: str = setting(
        "H-AP", "Metric that chooses the best checkpoint, measured on the split val.", offered=offered_names
    )
    monitor_tolerance: float = setting(
        0.0,
        "Prefer a later checkpoint to the best one if its value of --monitor is at most this much worse. With "
        "--evaluate-start, its value must not be worse than the initial model's.",
        least=0,
    )
    select_on_test: bool = setting(
        False,
        "Choose the best checkpoint on the first entry of --evaluate-on, even a test split; reports state this.",
    )
    checkpoint_every: int = setting(
        0, "Number of steps between checkpoints. 0: save at the end of every epoch.", least=0
    )
    keep: int = setting(1, "Number of newest checkpoints to keep in addition to the best one.", above=0)
    max_faults: float = setting(
        0.01,
        "Maximum share of an epoch's images that may be unreadable and replaced by others; if there are more (and more "
        "than ten), the run stops.",
        least=0,
        most=1,
    )
    process_timeout: float = setting(
        30.0,
        "Minutes that a process waits for the others, for example while one of them embeds its share or writes to a "
        "slow disk. Then the run ends with an error.",
        above=0,
    )
    log_every: int = setting(10, "Number of steps between two lines of the log.", above=0)
    device: str = setting("", "Device: cpu, cuda, ...; default: a GPU if there is one.")
    deterministic: bool = setting(
        False,
        "Use only deterministic algorithms, which are slower: every run on the same GPU has bitwise equal results.",
    )
    sync_batch_norm: bool = setting(False, "Compute the statistics of batch norm over all processes.")
    loggers: tuple[str, ...] = setting(
        (),
        "Additional loggers: wandb:PROJECT (Weights & Biases), or NAME or NAME:PROJECT of a logger from another "
        "package (entry points hgld.loggers).",
    )


@dataclass(frozen=True)
class TrainConfig:
    """All options of a run.

    Attributes:
        recipe: name of the recipe that the config was made from.
        init_from: path, as the user gave it, of the run or checkpoint whose weights the run began with; empty: the run
            began with the config's weights.
        to_derive: fields whose values are derived from network, data and machine when a run begins
            (:mod:`hgld.training.plan`); until then the values of these fields mean nothing.
        plan: names of the derived fields, and why each has its value.
    """

    recipe: str = ""
    init_from: str = ""
    to_derive: tuple[str, ...] = ()
    plan: tuple[tuple[str, str], ...] = ()
    model: ModelConfig = ModelConfig()
    images: ImagesConfig = ImagesConfig()
    batch: BatchConfig = BatchConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    run: RunConfig = RunConfig()


SECTIONS = {
    "model": ModelConfig,
    "images": ImagesConfig,
    "batch": BatchConfig,
    "loss": LossConfig,
    "optimizer": OptimizerConfig,
    "run": RunConfig,
}
"""The dataclasses of the options, keyed by their field in :class:`TrainConfig`."""

_VALIDATION = re.compile(r"(val|valid|validation|dev)(_[A-Za-z0-9_]+)?\Z")


def is_validation(entry: str) -> bool:
    """Tell whether an entry of ``evaluate_on`` has only validation splits: ``val``, ``validation``, ``dev`` ...

    The entry ``train`` counts as validation, too. All other splits, and all splits of a protocol, are test splits.
    """
    splits = entry.rpartition(":")[2].split("/")
    return all(_VALIDATION.match(split) for split in splits) or splits == ["train"]


# -- Configs as files and as flags: read, changed by name, written --

CONFIG = "config.json"
_TEXT_FIELDS = ("recipe", "init_from")  # fields that belong to no section
_OPTIONS = {name: option for config in SECTIONS.values() for name, option in options_of(config).items()}
_SECTION_OF = {name: section for section, config in SECTIONS.items() for name in options_of(config)}


def _option(name: str) -> Option:
    if name not in _OPTIONS:
        raise ConfigError(f"the config has no field {quoted(name)}. {_nearest(name, _OPTIONS)}")
    return _OPTIONS[name]


def with_fields(config: TrainConfig, fields: Mapping[str, Any]) -> TrainConfig:
    """Return a config with changed values of some fields: ``with_fields(config, {"tau": 0.05})``.

    A ``size`` without a ``resize`` scales ``resize`` in proportion, so that an evaluation uses the same share of an
    image.

    Raises:
        ConfigError: no field has that name (the message suggests the nearest), or a value has another type.
    """
    if "size" in fields and "resize" not in fields and "resize" not in config.to_derive:
        resize = _OPTIONS["size"].check(fields["size"]) * config.images.resize / config.images.size
        fields = {**fields, "resize": round(resize)}
    changes: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        checked = _option(name).check(value)
        changes.setdefault(_SECTION_OF[name], {})[name] = checked
    sections = {section: dataclasses.replace(getattr(config, section), **own) for section, own in changes.items()}
    to_derive = tuple(name for name in config.to_derive if name not in fields)
    plan = tuple((name, why) for name, why in config.plan if name not in fields)
    return dataclasses.replace(config, **sections, to_derive=to_derive, plan=plan)


def flat(config: TrainConfig) -> dict[str, Any]:
    """Return all fields of a config by name, including fields that are not derived yet."""
    return {name: getattr(getattr(config, section), name) for name, section in _SECTION_OF.items()}


def parse_field(name: str, text: str) -> Any:
    """Parse the text of a flag or sweep into a field's value; commas separate the values of a tuple.

    Raises:
        ConfigError: there is no such field, or the text does not have its type.
    """
    return _option(name).parse(text)


def flag_of(name: str) -> str:
    """Return the flag of a field, for instance ``--batch-size`` for ``batch_size``."""
    return f"--{_OPTIONS[name].flag}"


def stored(config: TrainConfig) -> dict[str, Any]:
    """Return the JSON-ready content of a config file: fields per section, without fields that are not derived yet."""
    record: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    record |= {name: getattr(config, name) for name in _TEXT_FIELDS}
    for name, value in flat(config).items():
        section = record.setdefault(_SECTION_OF[name], {})
        if name not in config.to_derive:
            section[name] = value
    return {**record, "plan": dict(config.plan)}


def save_config(config: TrainConfig, path: Path) -> None:
    """Write a config as JSON, so that it can be run again."""
    write_atomic(path, json.dumps(stored(config), indent=2, ensure_ascii=False) + "\n")


def config_text(config: TrainConfig) -> str:
    """Return a config as YAML that :func:`read_config` reads; comments give the reasons of derived values."""
    whole, why = stored(config), dict(config.plan)
    lines = [f"{key}: {yaml_value(whole[key])}" for key in ("schema_version", *_TEXT_FIELDS)]
    for section in SECTIONS:
        lines.append(f"{section}:")
        for name, value in whole[section].items():
            lines.append(f"  {name}: {yaml_value(value)}" + (f"  # {why[name]}" if name in why else ""))
        later = [name for name in config.to_derive if _SECTION_OF[name] == section]
        lines += [f"  # {name}: derived when the run begins" for name in later]
    return "\n".join(lines) + "\n"


def yaml_value(value: Any) -> str:
    """Return a field's value in one line of YAML."""
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1 << 20).removesuffix("\n").removesuffix("\n...")


def read_config(path: Path, base: Callable[[str], TrainConfig] | None = None) -> TrainConfig:
    """Read a config from a file: YAML or JSON, according to the suffix.

    Fields may be in their sections or at the top level.

    Args:
        path: path of the file.
        base: function that returns the config of a recipe, from which omitted fields are taken. Its argument is the
            file's ``recipe``, or an empty text if the file has none. None: omitted fields have their defaults.

    Raises:
        InputError: the file cannot be read, or does not hold fields with values.
        SchemaError: this hgld does not read the file's schema version.
        ConfigError: a section or field is unknown (the message suggests the nearest), or a value has a wrong type.
    """
    data = _read_yaml(path) if path.suffix in (".yaml", ".yml") else read_json(path, kind=dict, max_bytes=_MOST_BYTES)
    _check_version(path, data.pop("schema_version", SCHEMA_VERSION), SCHEMA_VERSION, "Train the run again.")
    texts = {name: data.pop(name) for name in _TEXT_FIELDS if name in data}
    for name, text in texts.items():
        if not isinstance(text, str) or "\0" in text:
            raise ConfigError(f"{path}: {name} is {quoted(text)}; expected text.")
    plan = data.pop("plan", {})
    if not isinstance(plan, dict) or not all(name in _OPTIONS and isinstance(why, str) for name, why in plan.items()):
        raise ConfigError(f"{path}: plan is {quoted(plan)}; expected a mapping from option names to reasons.")
    try:
        fields = _fields_in(data)
        start = TrainConfig() if base is None or fields.keys() >= _OPTIONS.keys() else base(texts.get("recipe", ""))
        config = dataclasses.replace(with_fields(start, fields), **texts, plan=tuple(plan.items()))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    # checked first, because a network is built from it before anything else is checked
    for name, problem in bound_problems(config.model):
        raise ConfigError(f"{path}: {name} {problem}")
    return config


def _fields_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in the sections of a file and at its top level.

    Raises:
        ConfigError: a section is unknown, or a field is unknown or in the wrong section.
    """
    fields: dict[str, Any] = {}
    for key, value in data.items():
        if key in _OPTIONS and not isinstance(value, dict):  # loss is both a section and a field
            fields[key] = value
            continue
        if key not in SECTIONS or not isinstance(value, dict):
            raise ConfigError(f"there is no section {quoted(key)}. {_nearest(str(key), SECTIONS)}")
        for name in value:
            if _SECTION_OF.get(name) != key:
                own = options_of(SECTIONS[key])
                raise ConfigError(f"section {quoted(key)} has no field {quoted(name)}. {_nearest(str(name), own)}")
        fields |= value
    return {name: _undo_yaml(_OPTIONS[name], value) for name, value in fields.items()}


def _undo_yaml(option: Option, value: Any) -> Any:
    """Return the intended value if YAML 1.1 misreads it: ``1e-4`` as text, ``off`` as false."""
    if isinstance(value, str) and option.member in (int, float):
        return option.parse(value)
    return "off" if value is False and "off" in option.choices else value


def _read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping of a YAML file of at most 1 MiB.

    Raises:
        InputError: the file cannot be read, is too large, or holds something else.
    """
    import yaml

    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InputError(f"{path}: more than {_MOST_BYTES} bytes; expected a smaller file.")
        data = yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML ({excerpt(error)}).") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {type(data).__name__}; expected a mapping from field names to values.")
    return data


def _nearest(name: str, names: Iterable[str]) -> str:
    return did_you_mean(name, names).lstrip() or f"There are: {', '.join(names)}."


# -- JSON files of a run --


def read_record(path: Path, version: int, *, max_bytes: int = _MOST_BYTES, hint: str = "") -> dict[str, Any]:
    """Read a JSON object of a known schema version.

    Args:
        path: path of the JSON file.
        version: schema version that the file must have.
        max_bytes: maximum size of the file.
        hint: fix for a file of another version.

    Raises:
        InputError: the file cannot be read, is too large, or holds something else.
        SchemaError: the file has another schema version.
    """
    record = read_json(path, kind=dict, max_bytes=max_bytes)
    _check_version(path, record.get("schema_version"), version, hint)
    return record


def _check_version(path: Path, found: object, version: int, hint: str) -> None:
    if found != version:
        message = f"{path}: schema version is {quoted(found)}; this hgld reads version {version}. {hint}"
        raise SchemaError(message.rstrip())
