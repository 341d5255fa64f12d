"""The state of a training run: creation, restoring from a checkpoint, and saving as a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.swa_utils import AveragedModel

from hgld import distributed
from hgld.data.dataset import open_dataset
from hgld.distributed import Processes
from hgld.errors import ConfigError, HgldError, InputError, quoted, storage_errors

from .batches import TrainingData
from .checkpoint import (
    Checkpoint,
    checkpoint_step,
    find_checkpoint,
    forget_best,
    mark_best,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    rewrite_state,
    write_checkpoint,
)
from .config import CONFIG, TrainConfig, flag_of, flat, read_config, save_config
from .config_checks import config_problems, has_classifier, raise_together
from .criterion import Criterion, build_criterion, level_number
from .evaluation import check_evaluation
from .inference.classification import (
    Classifier,
    check_synsets,
    classifier_of,
    library_head,
    trained_classes,
    write_classes,
)
from .models.backbone import load_all
from .models.backbones import build_model
from .models.embedding_model import EmbeddingModel, prepare_images
from .optimizers import build_optimizers, optimizer_state, restore_optimizers, weight_average
from .plan import as_begun, check_network, choose_test_size, plan_run, try_machine
from .seen import write_seen

_T = TypeVar("_T")

_RESTORED = ("judged", "best", "values", "start")  # fields that a checkpoint stores unchanged

# Options that change the weights by no more than rounding: a run may resume with other values.
_MAY_CHANGE = {
    *("workers", "device", "micro_batch_size", "compile", "deterministic"),
    *("log_every", "keep", "checkpoint_every", "loggers", "max_faults", "process_timeout"),
    *("evaluate_on", "evaluate_every", "metrics", "monitor", "select_on_test"),
}


@dataclass
class TrainState:
    """State of a training run between two steps.

    Attributes:
        config: the run's options.
        folder: the run's folder.
        processes: processes that train together.
        data: the training set.
        model: the model without the wrapper.
        wrapped: the model in the wrapper with which the processes train it.
        criterion: the loss.
        optimizers: optimizers of the model's and the criterion's parameters.
        scaler: gradient scaler for fp16.
        average: average of the weights over the steps; None: no average is made.
        step: number of steps done.
        best_of: entry of ``evaluate_on`` and metric by which the best checkpoint is chosen; empty if no checkpoint is
            chosen.
        judged: number of epochs that need no evaluation any more; -1: the initial model is still to be evaluated.
        best: metric, value, epoch and step of the best evaluation; empty before the first evaluation.
        values: the last evaluation's metrics by split.
        start: the metrics by split of the evaluation before the first step; empty if the initial model was not
            evaluated.
        blended: interpolation between the initial and the last weights, which evaluations use; None: there is no
            interpolation.
    """

    config: TrainConfig
    folder: Path
    processes: Processes
    data: TrainingData
    model: EmbeddingModel
    wrapped: nn.Module
    criterion: Criterion
    optimizers: list[torch.optim.Optimizer]
    scaler: GradScaler
    average: AveragedModel | None
    step: int = 0
    best_of: tuple[str, ...] = ()
    judged: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    start: dict[str, dict[str, float]] = field(default_factory=dict)
    blended: dict[str, Tensor] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next step; between two epochs, the number of epochs done."""
        return self.step // self.data.steps_per_epoch

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.data.steps_per_epoch * self.config.run.epochs

    @property
    def evaluation_due(self) -> bool:
        """True if an evaluation is due now: after an epoch as configured, or of the initial model before epoch 1."""
        asked, epoch = self.config.run, self.epoch
        in_turn = asked.evaluate_every > 0 and epoch % asked.evaluate_every == 0
        due = epoch == asked.epochs or (in_turn if epoch else asked.evaluate_start)
        return bool(asked.evaluate_on) and due

    @property
    def classifier(self) -> Classifier | None:
        """The loss's classifier with its current weights; None if the loss has no classifier.

        Every process must read this. The weights of shared proxies have meaning on the main process only.
        """
        if not has_classifier(self.config):
            return None
        level, names = trained_classes(self.config.loss, self.data.hierarchy, self.data.labels)
        tensors = distributed.whole_state(self.criterion, self.processes)
        return classifier_of(self.config.loss, tensors, level, names)

    @property
    def frozen(self) -> bool:
        """True if the next step does not train the backbone."""
        return self.epoch < self.config.optimizer.frozen_epochs


def check_folder(config: TrainConfig, out: Path) -> None:
    """Raise an error if the folder holds a run with other options.

    Raises:
        ConfigError: the options differ; the message states them and the fix.
    """
    if not (out / CONFIG).is_file():
        return
    begun = read_config(out / CONFIG)
    before, now = flat(begun), flat(as_begun(config, begun))
    other = [name for name in now if before[name] != now[name] and name not in _MAY_CHANGE]
    if other:
        told = "; ".join(f"{flag_of(name)} is {quoted(now[name])}, was {quoted(before[name])}" for name in other)
        raise ConfigError(
            f"{out} holds a run with other options ({told}). Choose another --out (--init-from {out} starts from "
            "its weights), or resume the run with its own options."
        )


def prepare_run(config: TrainConfig, data: str, out: Path, processes: Processes, init_from: Path | None) -> TrainState:
    """Begin a run, or restore one from its newest checkpoint.

    Raises:
        ConfigError: options contradict the dataset or the run in ``out``.
        InputError: the dataset or a checkpoint cannot be read, or does not fit the config.
        MissingResourceError: pretrained weights are not available.
        StorageError: the folder cannot be written.
    """
    newest = distributed.from_main(str(newest_checkpoint(out) or ""), processes)
    config = checked_plan(config, data, out, processes)
    source, config, best_of = _check_all(config, data, processes, fresh=not newest)
    config = try_machine(config, processes)
    before = read_checkpoint(Path(newest)) if newest else None
    if before is not None:
        _check_resumed(config, source, best_of, before, out)
    config = replace(config, init_from=_init_from(config, out, init_from, fresh=before is None))
    model, criterion = _build_modules(config, source, processes, fresh=before is None)
    config = choose_test_size(config, model, data, out, processes, best_of)
    step = before.step if before else 0
    model.freeze_backbone(step // source.steps_per_epoch < config.optimizer.frozen_epochs)
    optimizer, run = config.optimizer, config.run
    state = TrainState(
        config=config,
        folder=out,
        processes=processes,
        data=source,
        model=model,
        wrapped=distributed.wrap_model(model, processes, sync_batch_norm=run.sync_batch_norm),
        criterion=criterion,
        optimizers=build_optimizers(
            optimizer, {**model.parameter_groups(), "proxies": list(criterion.named_parameters())}, processes
        ),
        scaler=GradScaler(processes.device.type, enabled=optimizer.amp == "fp16"),
        average=weight_average(model, optimizer.ema) if optimizer.ema else None,
        step=step,
        best_of=best_of,
        judged=-1 if run.evaluate_start or not run.epochs else 0,
    )
    if before is not None:
        _restore(state, before, Path(newest))
    if processes.is_main:
        _write_folder(state)
    return state


def checked_plan(config: TrainConfig, data: str, out: Path, processes: Processes) -> TrainConfig:
    """Return the config with its plan; one message lists all errors of the options."""
    try:
        return plan_run(config, data, out, processes)
    except HgldError as refusal:
        raise_together([refusal, *map(ConfigError, config_problems(config))])
        raise


def _check_all(
    config: TrainConfig, place: str, processes: Processes, *, fresh: bool
) -> tuple[TrainingData, TrainConfig, tuple[str, ...]]:
    """Return the training set, the config with all evaluations, and the metric that chooses the best checkpoint.

    Raises:
        HgldError: one message with all errors of options, dataset and network; no weights are read yet.
    """
    refusals: list[HgldError] = [ConfigError(problem) for problem in config_problems(config)]

    def attempt(make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except HgldError as refusal:
            refusals.append(refusal)
            return None

    source = attempt(lambda: TrainingData(config, place, processes))
    if source is not None:
        steps, total = config.optimizer.warmup_steps, source.steps_per_epoch * config.run.epochs
        if steps > total > 0:
            problem = (
                f"warmup_steps is {steps} and the run has {total} (epochs {config.run.epochs}, "
                f"{source.steps_per_epoch} steps each on {place}): the learning rates would never reach their "
                "values. Use --warmup-steps 0 for a short trial, or more epochs."
            )
            refusals.append(ConfigError(problem))
    if config.loss.level:
        attempt(lambda: level_number(open_dataset(place, config.run.train_split).hierarchy, config.loss.level))
    judged = attempt(lambda: check_evaluation(config, place))
    attempt(lambda: check_network(config, config.batch.batch_size // processes.count, fresh=fresh))
    raise_together(refusals)
    assert source is not None  # otherwise an error about it was raised above
    assert judged is not None
    return source, *judged


def _check_resumed(
    config: TrainConfig, source: TrainingData, best_of: Sequence[str], before: Checkpoint, out: Path
) -> None:
    """Raise an error if a run would resume with another training set, or would lose its ``select_on_test``.

    Without ``select_on_test``, the run's best checkpoint would be lost.
    """
    was, now = before.state["data"], source.facts
    if other := [name for name in now if was.get(name) != now[name]]:
        told = "; ".join(f"{name} was {was.get(name)}, is {now[name]}" for name in other)
        raise ConfigError(
            f"{out} holds a run on other data than {source.place} ({told}; the checksum covers the images in their "
            f"order and their labels). Choose another --out (with --init-from {out} to start from its weights), or "
            "pass the run's own data."
        )
    chosen = before.state.get("best_of")
    if config.run.evaluate_on and not best_of and chosen and before.state.get("best"):
        raise ConfigError(
            f"{out}: its best checkpoint was chosen on {chosen[0]}, a test split, but --select-on-test is not given. "
            "Pass --select-on-test to resume, or choose another --out for a run that keeps its last checkpoint."
        )


def _init_from(config: TrainConfig, out: Path, asked: Path | None, *, fresh: bool) -> str:
    """Return the run whose weights this run began with; empty if it began with the weights of its backbone."""
    given = str(asked or config.init_from)
    if fresh:
        return given
    recorded = read_config(out / CONFIG).init_from if (out / CONFIG).is_file() else ""
    if given and not (recorded and Path(given).resolve() == Path(recorded).resolve()):
        began = f"with --init-from {recorded}" if recorded else "without --init-from"
        raise ConfigError(
            f"{out} holds a run that began {began}; the weights of {given} would not be used. Choose another --out "
            f"for a new run, or resume this run {began}."
        )
    return recorded


def _build_modules(
    config: TrainConfig, source: TrainingData, processes: Processes, *, fresh: bool
) -> tuple[EmbeddingModel, Criterion]:
    """Build the model and the criterion that a run begins with, on the device."""
    torch.manual_seed(config.run.seed)  # initial weights: the same on every process
    pretrained = fresh and not config.init_from
    features = partial(_compute_features, source=source, processes=processes) if pretrained else None
    model = build_model(config.model, image_size=config.images.size, features=features, load_weights=pretrained)
    if fresh and config.init_from:
        path = find_checkpoint(Path(config.init_from))
        tensors = read_checkpoint(path).tensors
        file = "ema" if "ema" in tensors else "model"
        _load(model, tensors.get(file, {}), path / f"{file}.safetensors")
    criterion = build_criterion(
        config.loss,
        hierarchy=source.hierarchy,
        train_labels=source.labels,
        dim=model.dim,
        steps_per_epoch=source.steps_per_epoch,
        processes=processes,
    )
    if fresh and config.model.classifier == "pretrained":  # MultiGrain starts from the network's classifier
        head = library_head(config.model.backbone, config.model.pretrained, model, image_size=config.images.size)
        level, names = trained_classes(config.loss, source.hierarchy, source.labels)
        check_synsets(names, len(head[1]), level)
        classifier = criterion.get_submodule("loss.classifier")
        classifier.load_state_dict(dict(zip(("weight", "bias"), head, strict=True)))
    model.to(processes.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's overloads
    criterion.to(processes.device)
    if config.model.compile:
        model.backbone.compile()
        criterion.compile()
    return model, criterion


@torch.no_grad()
def _compute_features(model: EmbeddingModel, source: TrainingData, processes: Processes) -> Tensor:
    """Compute (N, F) features of a sample of the training set, the same on every process, on the CPU."""
    model.to(processes.device).eval()
    parts = [model.features(prepare_images(batch.images, model, processes.device)).float() for batch in source.sample()]
    model.train()
    features = distributed.gather(torch.cat(parts), processes).cpu()
    model.cpu()
    return features


def set_frozen(state: TrainState) -> None:
    """Freeze or unfreeze the backbone for the epoch of the next step."""
    if state.model.backbone_frozen == state.frozen:
        return
    state.model.freeze_backbone(state.frozen)
    # DistributedDataParallel fixes at creation which gradients it exchanges, so it is created again.
    state.wrapped = state.model
    sync = state.config.run.sync_batch_norm
    state.wrapped = distributed.wrap_model(state.model, state.processes, sync_batch_norm=sync)


def _load(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    load_all(module, tensors, f"{path} does not fit this run's model or loss")


def _restore(state: TrainState, before: Checkpoint, path: Path) -> None:
    """Restore a run from a checkpoint; forget the run's best checkpoint if another metric chose it."""
    _load(state.model, before.tensors.get("model", {}), path / "model.safetensors")
    of_loss = distributed.own_state(state.criterion, before.tensors.get("criterion", {}))
    _load(state.criterion, of_loss, path / "criterion.safetensors")
    restore_optimizers(state.optimizers, before.tensors.get("optimizer", {}), state.processes)
    try:
        state.scaler.load_state_dict(before.state["scaler"])
        for name in _RESTORED:
            setattr(state, name, before.state[name])
        if state.average is not None:
            state.average.n_averaged.fill_(before.state["average_updates"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path} does not hold the state of this run ({error}). Remove this checkpoint to resume from the previous "
            "one."
        ) from error
    if state.average is not None:
        _load(state.average.module, before.tensors.get("ema", {}), path / "ema.safetensors")
    if list(state.best_of) != before.state.get("best_of", list(state.best_of)):
        state.best = {}
        if state.step and state.step % state.data.steps_per_epoch == 0 and state.evaluation_due:
            state.judged = min(state.judged, state.epoch - 1)  # evaluate the newest checkpoint with the new metric


def _write_folder(state: TrainState) -> None:
    """Write the config, and the record of the best checkpoint in case the run was killed before writing it."""
    path = state.folder / CONFIG
    with storage_errors(f"write {path}", "Use another --out."):
        state.folder.mkdir(parents=True, exist_ok=True)
        save_config(state.config, path)
        write_seen(state.folder, state.data.dataset)
        if has_classifier(state.config):
            write_classes(state.folder, *trained_classes(state.config.loss, state.data.hierarchy, state.data.labels))
    newest = newest_checkpoint(state.folder)
    if newest is not None and state.best.get("step") == checkpoint_step(newest):
        mark_best(state.folder, newest, state.best["metric"], state.best["value"], state.best_of[0])
    elif not state.best:
        forget_best(state.folder)


def save_run(state: TrainState) -> None:
    """Let the main process write the state as a checkpoint, while all other processes wait.

    Raises:
        StorageError: the checkpoint cannot be written; earlier checkpoints are kept.
    """
    # The next evaluation must use the statistics that the checkpoint stores.
    for module in (state.model, state.average):
        if module is not None:
            distributed.share_statistics(module, state.processes)
    of_optimizers = optimizer_state(state.optimizers, state.processes)
    of_loss = distributed.whole_state(state.criterion, state.processes)
    if state.processes.is_main:
        record = {name: getattr(state, name) for name in _RESTORED}
        record |= {"data": state.data.facts, "best_of": list(state.best_of), "scaler": state.scaler.state_dict()}
        if state.average is not None:
            record["average_updates"] = int(state.average.n_averaged)
        newest = newest_checkpoint(state.folder)
        if newest is not None and checkpoint_step(newest) == state.step and state.blended is None:
            rewrite_state(newest, record)  # the checkpoint's tensors already belong to this step
        else:
            tensors = {
                "model": state.model.state_dict(),
                "criterion": of_loss,
                "optimizer": of_optimizers,
            }
            if state.average is not None:
                tensors["ema"] = state.average.module.state_dict()
            if state.blended is not None:
                tensors["ema"] = state.blended
            newest = write_checkpoint(state.folder, Checkpoint(state.step, tensors, record))
        if state.best.get("step") == state.step:
            mark_best(state.folder, newest, state.best["metric"], state.best["value"], state.best_of[0])
        needs_start = state.config.run.blend and state.judged < state.config.run.epochs
        prune_checkpoints(state.folder, state.config.run.keep, spared=[0] if needs_start else [])
    distributed.wait_for_all(state.processes)
