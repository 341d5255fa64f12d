"""Checks of a config before any work: options that contradict each other or have no effect; imports nothing heavy."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hgld.errors import ConfigError, HgldError
from hgld.losses.registry import LOSSES, entry_of, options_of
from hgld.settings import bound_problems

from .config import SECTIONS, TrainConfig, flag_of, flat


@dataclass(frozen=True)
class Reader:
    """The part of a run that uses a field.

    Attributes:
        reads: function that tells whether a run with a given config has the part that reads the options.
        name: text for messages that names the part by its flags; the message puts "only" before the text.
    """

    reads: Callable[[TrainConfig], bool]
    name: str


def second_term(config: TrainConfig) -> str:
    """Return the second term of a composition, ``pair`` or ``proxy``; empty for other losses."""
    usual = entry_of(config.loss.loss).second
    return usual and (config.loss.decomposability or usual)


def _has_own_parameters(config: TrainConfig) -> bool:
    return entry_of(config.loss.loss).learns or second_term(config) == "proxy"


def has_classifier(config: TrainConfig) -> bool:
    """Tell whether the loss learns a classifier or one proxy per class, as the metric top-k requires."""
    name = config.loss.loss
    if config.loss.matryoshka:  # each truncated dimension has one classifier
        return False
    return name in LOSSES and (LOSSES[name].kind in ("proxies", "views") or second_term(config) == "proxy")


_GEM = Reader(lambda c: c.model.pooling == "gem", "--pooling gem uses it")
_GROUPS = Reader(lambda c: c.batch.sampler == "hierarchical-pk", "--sampler hierarchical-pk uses it")
_MEMORY = Reader(lambda c: c.loss.memory != 0, "a memory (--memory) uses it")
_PAIR = Reader(lambda c: second_term(c) in ("", "pair"), "--decomposability pair uses it")
_PROXY = Reader(lambda c: second_term(c) in ("", "proxy"), "--decomposability proxy uses it")
_FALLING = Reader(lambda c: c.optimizer.schedule in ("cosine", "linear"), "--schedule cosine or linear uses it")
_STEP = Reader(lambda c: c.optimizer.schedule == "step", "--schedule step uses it")

READERS: dict[str, Reader] = {
    "gem_p": _GEM,
    "gem_learned": _GEM,
    "classifier": Reader(lambda c: c.loss.loss == "MultiGrain", "--loss MultiGrain uses it"),
    "projection": Reader(lambda c: c.model.dim > 0, "a projection (--dim above 0) uses it"),
    "coverage": Reader(
        lambda c: c.batch.sampler == "pk" and not c.batch.stream, "--sampler pk without --stream uses it"
    ),
    "merge_classes": Reader(lambda c: not c.batch.stream, "a run without --stream uses it"),
    "crop_min": Reader(lambda c: c.images.train_crop == "random-resized", "--train-crop random-resized uses it"),
    "images_per_class": Reader(
        lambda c: c.batch.sampler in ("pk", "hierarchical-pk"), "--sampler pk or hierarchical-pk uses it"
    ),
    "super_level": _GROUPS,
    "super_classes": _GROUPS,
    "repeats": Reader(lambda c: c.batch.sampler == "repeated-augmentation", "--sampler repeated-augmentation uses it"),
    "alpha": Reader(
        lambda c: c.loss.pnp == "Dq" if c.loss.loss == "PNP" else c.loss.relevance in ("population", "total"),
        "--relevance population or total, or --pnp Dq, uses it",
    ),
    "pnp_b": Reader(lambda c: c.loss.pnp == "Ib", "--pnp Ib uses it"),
    "pair_positive": _PAIR,
    "pair_negative": _PAIR,
    "proxy_temperature": _PROXY,
    "memory_from_epoch": _MEMORY,
    "lr_floor": _FALLING,
    "lr_floor_proxies": Reader(
        lambda c: _FALLING.reads(c) and _has_own_parameters(c),
        "--schedule cosine or linear of a loss with parameters of its own uses it",
    ),
    "lr_beta": Reader(lambda c: "beta" in options_of(c.loss.loss), "a loss with a boundary beta uses it"),
    "weight_decay_proxies": Reader(
        lambda c: _has_own_parameters(c) and c.loss.loss != "Margin",
        "a loss with proxies or a classifier uses it",
    ),
    "blend": Reader(
        lambda c: c.run.evaluate_start and not c.optimizer.ema, "a run with --evaluate-start and without --ema uses it"
    ),
    "milestones": _STEP,
    "nesterov": Reader(lambda c: c.optimizer.optimizer == "sgd", "--optimizer sgd uses it"),
    "gamma": _STEP,
}
"""The reader of each field that has no effect in some runs."""

_UNIFORM_SAMPLERS = ("shuffled", "repeated-augmentation")  # samplers that draw every image equally often


def check_config(config: TrainConfig) -> None:
    """Raise an error for options that contradict each other or that the chosen loss does not have.

    Raises:
        ConfigError: one or more options are wrong; the message states the flag, value, expected value and fix for each.
    """
    raise_together([ConfigError(problem) for problem in config_problems(config)])


def config_problems(config: TrainConfig) -> list[str]:
    """Return errors that can be found from only the options, one or two sentences each, with the names of the flags.

    Errors about an option that is not derived yet are omitted, because its value is unknown.
    """
    later = tuple(re.compile(rf"{flag_of(name)}(?![a-z-])") for name in config.to_derive)
    found = itertools.chain.from_iterable(find(config) for find in _PROBLEMS)
    return [problem for problem in found if not any(flag.search(problem) for flag in later)]


def raise_together(refusals: Sequence[HgldError]) -> None:
    """Raise all errors as one error that lists them; raise a single error unchanged; do nothing if there are no errors.

    Raises:
        HgldError: the listed errors; the exception has the type of the first error.
    """
    each = list({str(refusal): refusal for refusal in refusals}.values())
    if len(each) == 1:
        raise each[0]
    if each:
        listed = "".join(f"\n  {number}. {refusal}" for number, refusal in enumerate(each, 1))
        raise type(each[0])(f"{len(each)} errors prevent this run from starting:{listed}")


def _loss_problems(config: TrainConfig) -> Iterator[str]:
    loss, taken = config.loss, options_of(config.loss.loss)
    for option in dataclasses.fields(loss):
        value = getattr(loss, option.name)
        if option.name == "loss" or option.name in taken or value == option.default:
            continue
        takers = ", ".join(name for name in LOSSES if option.name in options_of(name))
        yield (
            f"--loss {loss.loss} does not use {flag_of(option.name)} (it is {value!r}); leave it at "
            f"{option.default!r}, or choose one of {takers}."
        )
    if loss.level and loss.sum_levels:
        yield (
            f"--level is {loss.level!r} and --sum-levels is on, but a sum over all levels has no single level. Omit "
            "one of them."
        )
    dims = loss.matryoshka
    if dims and (sorted(set(dims)) != list(dims) or dims[0] < 1 or config.model.dim not in (0, dims[-1])):
        yield (
            f"--matryoshka is {dims} and --dim {config.model.dim}; expected ascending dimensions, the last of which "
            "is --dim."
        )
    if dims and loss.sum_levels:
        yield "--sum-levels is on and --matryoshka is given; omit one of them."
    if loss.loss == "CSL" and config.batch.merge_classes > 1:
        yield f"--loss {loss.loss} learns the tree of the classes, which --merge-classes breaks; choose another loss."
    if loss.simix and loss.class_weights:
        yield "--simix mixes the items of a class after they were weighted; choose either --simix or --class-weights."
    if loss.class_weights and config.batch.sampler not in _UNIFORM_SAMPLERS:
        yield (
            "--class-weights makes all classes equal only if every image is drawn equally often; --sampler "
            f"{config.batch.sampler} draws by class already, and small classes would outweigh the others. Use "
            f"--sampler {_UNIFORM_SAMPLERS[0]}."
        )
    if loss.loss == "BlackboxAP" and config.optimizer.amp == "fp16":
        yield (
            "--loss BlackboxAP and --amp fp16: the scale that keeps fp16's gradients from vanishing (65536 at first) "
            f"would multiply --blackbox-lambda, which is {loss.blackbox_lambda}, and so change the gradient; use "
            "--amp bf16."
        )


def _batch_problems(config: TrainConfig) -> Iterator[str]:
    batch = config.batch
    grouped = batch.sampler in ("pk", "hierarchical-pk")
    if grouped and batch.batch_size % batch.images_per_class:
        yield (
            f"--batch-size {batch.batch_size} is not a multiple of --images-per-class {batch.images_per_class}; "
            "P x K batches have the same number of images from every class."
        )
    if grouped and batch.images_per_class == 1 and _needs_pairs(config):
        yield (
            f"--images-per-class is 1, so no image has a positive in its batch, but --loss {config.loss.loss} learns "
            "only from positives. Use 2 or more."
        )
    if batch.stream and batch.sampler != "pk":
        yield (
            "--stream reads P x K batches from shards in their order, so it cannot be combined with --sampler "
            f"{batch.sampler}."
        )
    loss = config.loss
    if batch.sampler == "repeated-augmentation" and batch.batch_size % batch.repeats:
        yield f"--batch-size {batch.batch_size} is not a multiple of --repeats {batch.repeats}."
    if loss.loss != "MultiGrain" or loss.lambda_ == 1:
        return
    if batch.sampler != "repeated-augmentation":
        yield (
            f"--sampler {batch.sampler} gives only one view of an image, but MultiGrain's retrieval term learns from "
            "several views; use --sampler repeated-augmentation, or --lambda 1 for only the classification term."
        )
    elif batch.repeats == 1:
        yield (
            "--repeats is 1, so no image has another view in its batch, but MultiGrain's retrieval term learns only "
            "from such views. Use 2 or more, or --lambda 1 for only the classification term."
        )


def _needs_pairs(config: TrainConfig) -> bool:
    """Tell whether the loss learns only from pairs of images of one finest class in a batch."""
    loss = config.loss
    binary = "sum_levels" in options_of(loss.loss) and entry_of(loss.loss).kind != "proxies"
    return binary and not (loss.sum_levels or loss.level or loss.memory or second_term(config) == "proxy")


def _run_problems(config: TrainConfig) -> Iterator[str]:
    epochs, optimizer = config.run.epochs, config.optimizer
    for section in SECTIONS:
        for name, problem in bound_problems(getattr(config, section)):
            yield f"{flag_of(name)} {problem}"
    if optimizer.schedule == "step" and not optimizer.milestones:
        yield "--schedule step needs --milestones, the epochs at which the rates fall."
    classified = [name for name in config.run.metrics if name.startswith("top-")]
    if classified and not has_classifier(config):
        yield (
            f"--metrics name {', '.join(classified)}, but --loss {config.loss.loss} has no classifier. Use --loss "
            "MultiGrain or a loss with proxies, or omit these metrics."
        )
    if optimizer.frozen_epochs and not config.model.dim and not (_GEM.reads(config) and config.model.gem_learned):
        yield (
            f"--frozen-epochs is {optimizer.frozen_epochs}, but without a projection (--dim 0) no other part of the "
            "model could learn in these epochs; use --frozen-epochs 0 or a --dim above 0."
        )
    if not epochs:  # if there are no epochs, nothing is trained
        return
    if optimizer.frozen_epochs > epochs:
        yield (
            f"--frozen-epochs is {optimizer.frozen_epochs} and --epochs {epochs}: the backbone would never learn; "
            f"lower it (to {epochs} to train only the head)."
        )
    if config.loss.memory and config.loss.memory_from_epoch >= epochs:
        yield (
            f"--memory-from-epoch is {config.loss.memory_from_epoch} and --epochs {epochs}: the memory would never be "
            "used; lower it (0: from the first epoch)."
        )


def _unread(config: TrainConfig) -> Iterator[str]:
    """Yield an error for each option that is set but has no effect."""
    values, defaults = flat(config), flat(TrainConfig())
    for name, reader in READERS.items():
        if values[name] != defaults[name] and not reader.reads(config):
            yield (
                f"{flag_of(name)} is {values[name]!r}, but only {reader.name}; choose that, or leave it at "
                f"{defaults[name]!r}."
            )


_PROBLEMS = (_loss_problems, _batch_problems, _run_problems, _unread)
