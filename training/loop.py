"""The training loop: steps, evaluations, checkpoints, until the last epoch or a request to stop.

Everything random in a step is a function of (seed, epoch, step), and all else that a step reads is in the checkpoint,
so that a run which was stopped anywhere ends in the same weights as one that was not (bit for bit on a CPU).
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hgld import distributed
from hgld.data.batch import Batch
from hgld.distributed import StopRequests, stop_requests
from hgld.errors import DivergenceError, HgldError, InputError, StorageError
from hgld.files import write_atomic
from hgld.training.checkpoint import checkpoint_folder, newest_checkpoint
from hgld.training.config import TrainConfig, flat
from hgld.training.config_checks import check_config
from hgld.training.evaluation import evaluate_splits, keep_reports
from hgld.training.log import Phase, RunLog, RunSummary, StepProfile, Timing, write_faults
from hgld.training.models.embedding_model import prepare_images
from hgld.training.optimizers import groups_of, set_rates
from hgld.training.progress import Shown, Silent
from hgld.training.state import Run, check_folder, prepare_run, save_run, set_frozen
from hgld.training.step import Backward, BufferSnapshot, StepInput, StepValues

SUMMARY = "summary.json"
_LEAST_SCALE = 2.0**-14  # below this even gradients that are infinite for fp16 would be representable


@dataclass
class Watch:
    """What looks on while a run goes: people, files, clocks, signals.

    Attributes:
        stop: whether a signal asked to stop.
        shown: to people.
        log: files, of the main process.
        total: of this call.
        recent: since the last line of the log.
        profile: of the first steps, where it was asked for.
    """

    stop: StopRequests
    shown: Shown
    log: RunLog | None
    profile: StepProfile | None
    total: Timing = field(default_factory=Timing)
    recent: Timing = field(default_factory=Timing)

    @property
    def phase(self) -> Phase:
        return self.profile.phase if self.profile is not None else _unprofiled


def _unprofiled(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def train(
    config: TrainConfig,
    data: str,
    out: Path,
    *,
    init_from: Path | None = None,
    profile: bool = False,
    progress: Shown | None = None,
) -> RunSummary:
    """Train a model, or go on with a run that was stopped.

    Args:
        config: the run's options.
        data: dataset directory, or its address.
        out: the run's folder; a run that is there already goes on from its newest checkpoint.
        init_from: a run or checkpoint whose model's weights a new run starts from; default: the config's own. A run
            that goes on must have begun there.
        profile: time the phases of the first steps (``StepProfile``).
        progress: where people see the run go.

    Raises:
        ConfigError: options that contradict each other, the dataset, or the run that is in ``out``.
        InputError: the dataset or a checkpoint cannot be read.
        DivergenceError: the loss is no finite number; the state before it is kept as a checkpoint.
        StorageError: a file of the run cannot be written; earlier checkpoints are kept.
        MissingResourceError: pretrained weights that cannot be had.
        HgldError: another process of the run died.
    """
    check_config(config)
    check_folder(config, out)

    def go_on() -> str:
        newest = newest_checkpoint(out)
        kept = f"the newest checkpoint is {newest}" if newest is not None else "there is no checkpoint yet"
        return f"Start the same command again: {kept}."

    with stop_requests() as stop, distributed.process_group(config.run.device, go_on) as processes:
        run = prepare_run(config, data, out, processes, init_from)
        return _go(run, stop, progress if progress is not None and processes.is_main else Silent(), profile)


def _go(run: Run, stop: StopRequests, shown: Shown, profile: bool) -> RunSummary:
    began = time.monotonic()
    log = None
    if run.processes.is_main:
        log = RunLog(
            run.folder,
            from_step=run.step,
            judged=run.judged,
            wandb=run.config.run.wandb,
            config=flat(run.config),
        )
    phases = {"forward": run.model, "loss": run.criterion}
    watch = Watch(stop, shown, log, StepProfile(run.processes.device, phases) if profile else None)
    shown.begin(run.step, run.total)
    if log is not None and log.note:
        shown.note(log.note)
    try:
        finished = _epochs(run, watch)
    finally:
        if watch.profile is not None and not watch.profile.done:
            shown.note(watch.profile.to_text())
            watch.profile.close()
        if log is not None:
            log.close()
        shown.end()
    faults = distributed.gather(torch.tensor([watch.total.faults], device=run.processes.device), run.processes)
    summary = RunSummary(
        finished=finished,
        step=run.step,
        epoch=run.epoch,
        best=run.best,
        values=run.values,
        seconds=round(time.monotonic() - began, 3),
        images_per_second=round(watch.total.images_per_second, 2),
        wait_share=round(watch.total.wait_share, 4),
        faults=int(faults.sum()),
        run=str(run.folder),
        profile=watch.profile.milliseconds() if watch.profile is not None else {},
    )
    if run.processes.is_main:
        facts = {name: value for name, value in summary.to_dict().items() if name != "run"}  # it may be moved
        _write(run.folder / SUMMARY, json.dumps(facts | {"data": run.data.facts}, indent=2) + "\n")
    return summary


def _write(path: Path, text: str) -> None:
    try:
        write_atomic(path, text)
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error.strerror}). The run's checkpoints are whole.") from error


def _epochs(run: Run, watch: Watch) -> bool:
    """The rest of the run; returns whether it came to its end."""
    while True:
        if run.step % run.data.steps_per_epoch == 0 and run.judged < run.epoch:
            save_run(run)  # a test set that cannot be read must not cost the epoch
            _evaluate(run, watch)
            save_run(run)
        if run.epoch == run.config.run.epochs:
            return True
        if distributed.any_process(bool(watch.stop), run.processes) or _epoch(run, watch):
            return False


def _epoch(run: Run, watch: Watch) -> bool:
    """The steps of the rest of an epoch; returns whether the run was asked to stop, its state being kept."""
    epoch, every = run.epoch, run.config.run.checkpoint_every
    set_frozen(run)
    run.wrapped.train()
    run.criterion.train()
    backward = _backward(run, watch.phase)
    with closing(run.data.batches(epoch, run.step % run.data.steps_per_epoch)) as batches:
        while run.epoch == epoch:
            began = time.monotonic()
            with watch.phase("data"):
                batch = _next(run, batches)
            waited = time.monotonic() - began
            values = _step(run, backward, batch, watch.phase)
            run.step += 1
            if batch.faults:
                told = [f"{fault.where}: {fault.reason}" for fault in batch.faults]
                write_faults(run.folder, run.step, epoch, run.processes.index, told)
            for timing in (watch.total, watch.recent):
                timing.add(run.config.batch.batch_size, time.monotonic() - began, waited, len(batch.faults))
            _tell(run, watch, epoch, values)
            if distributed.any_process(bool(watch.stop), run.processes):
                save_run(run)
                return True
            if every and run.step % every == 0 and run.epoch == epoch:
                save_run(run)
    return False


def _next(run: Run, batches: Iterator[Batch]) -> Batch:
    """The next batch; where a process cannot have its own, all keep the state and leave."""
    fault = batch = None
    try:
        batch = next(batches)
    except HgldError as error:
        fault = error
    if distributed.any_process(fault is not None, run.processes):
        save_run(run)
        raise fault or InputError(
            f"another process could not read its part of the batch of step {run.step + 1}; its own message says why."
        )
    assert batch is not None
    return batch


def _backward(run: Run, phase: Phase) -> Backward:
    device, optimizer = run.processes.device, run.config.optimizer

    def prepare(images: Tensor) -> Tensor:
        with phase("prepare"):
            return prepare_images(images, run.model, device, channels_last=run.config.model.channels_last)

    def autocast() -> AbstractContextManager[object]:
        if optimizer.amp == "off":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16 if optimizer.amp == "bf16" else torch.float16)

    scale: Callable[[Tensor], Tensor] = run.scaler.scale  # pyright: ignore[reportAssignmentType]
    return Backward(run.wrapped, run.criterion, run.processes, prepare, run.config.batch.chunk, autocast, scale)


def _step(run: Run, backward: Backward, batch: Batch, phase: Phase) -> StepValues:
    """One step of the optimizer; a loss or gradient that is no number ends the run with the state before it kept."""
    epoch, position = divmod(run.step, run.data.steps_per_epoch)
    seed = int(np.random.SeedSequence((run.config.run.seed, epoch, position)).generate_state(1, np.uint64)[0])
    config = run.config.optimizer
    lengths = {"steps_per_epoch": run.data.steps_per_epoch, "epochs": run.config.run.epochs}
    set_rates(run.optimizers, config, run.step, **lengths)
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)
    before = BufferSnapshot.take(run.model, run.criterion, run.config.batch.batch_size)
    with phase("gradients"):
        values = backward(StepInput(batch.images, batch.labels, batch.indices, seed))
    with phase("optimizer"):
        for optimizer in run.optimizers:
            run.scaler.unscale_(optimizer)
        moving = [p for group in groups_of(run.optimizers) for p in group["params"] if p.grad is not None]
        norm = distributed.gradient_norm(moving)
        if not _sound(run, values.loss, norm):
            before.put_back()
            _refuse(run, values, norm, batch)
        if config.clip_norm:
            distributed.clip_gradients(moving, config.clip_norm, norm)
        # What overflows in fp16 skips the step of all: by itself the scaler would skip that of one optimizer.
        if not run.scaler.is_enabled() or norm.isfinite():
            for optimizer in run.optimizers:
                run.scaler.step(optimizer)
            if run.average is not None:
                run.average.update(run.model)
        run.scaler.update()
    return StepValues(values.loss, {**values.parts, "gradient_norm": norm})


def _sound(run: Run, loss: Tensor, norm: Tensor) -> bool:
    """Whether the run may go on; what overflows in fp16 alone skips the step and lowers the scale."""
    if run.scaler.is_enabled() and run.scaler.get_scale() > _LEAST_SCALE:
        return bool(loss.isfinite())
    return bool((loss.isfinite() & norm.isfinite()).item())


def _refuse(run: Run, values: StepValues, norm: Tensor, batch: Batch) -> None:
    save_run(run)
    terms = "".join(f", {name} {float(value):.4g}" for name, value in values.parts.items())
    keys = ", ".join(run.data.keys(batch.indices[:4]))
    kept = checkpoint_folder(run.folder, run.step)  # of a run alone --init-from would take the best
    raise DivergenceError(
        f"epoch {run.epoch + 1}, step {run.step + 1}: the loss is {float(values.loss):.4g}{terms} and the "
        f"norm of its gradient {float(norm):.4g}, in the batch that begins with {keys}. The state before this "
        f"step is kept in {kept}. Lower the learning rates, set --clip-norm, or with --amp fp16 take bf16; then "
        f"start a new run with --init-from {kept}."
    )


def _tell(run: Run, watch: Watch, epoch: int, values: StepValues) -> None:
    """The log's line where one is due, and the profile when it is complete."""
    watch.shown.advance(run.step)
    if run.step % run.config.run.log_every == 0 or run.step == run.total:
        row = _row(run, values, watch.recent)
        watch.recent = Timing()
        watch.shown.step(run.step, epoch, row)
        if watch.log is not None:
            watch.log.step(run.step, row)
    if watch.profile is not None and not watch.profile.done:
        watch.profile.step()
        if watch.profile.done:
            watch.profile.close()
            watch.shown.note(watch.profile.to_text())


def _row(run: Run, values: StepValues, timing: Timing) -> dict[str, float]:
    rates = {group["part"]: group["lr"] for group in groups_of(run.optimizers)}
    row = {"epoch": run.step / run.data.steps_per_epoch, "loss": float(values.loss)}
    row |= {name: float(value) for name, value in values.parts.items()}
    row |= {f"lr_{part}": rate for part, rate in rates.items()}
    return row | {
        "images_per_second": timing.images_per_second,
        "wait_share": timing.wait_share,
        "memory_mb": _memory(run),
    }


def _memory(run: Run) -> float:
    """Peak memory of this process, MB: of the GPU where it computes on one, else of the process."""
    if run.processes.device.type == "cuda":
        return torch.cuda.max_memory_allocated(run.processes.device) / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _evaluate(run: Run, watch: Watch) -> None:
    """The evaluation after the epochs done, where one is due."""
    epoch = run.epoch - 1
    run.judged = run.epoch
    if not run.evaluation_due:
        return
    watch.shown.evaluating(epoch)
    with run.average.in_place_of(run.model) if run.average is not None else nullcontext():
        run.model.eval()
        reports = evaluate_splits(run.model, run.config, run.data.place, run.processes, run=run.folder)
    values: dict[str, dict[str, float]] = {}
    if run.processes.is_main:
        keep_reports(run.folder, run.epoch, reports)
        for split, report in reports.items():
            values[split] = {name: float(value) for name, value in report.values.items() if math.isfinite(value)}
            if "unreadable" in report.settings:
                count, first = report.settings["unreadable"].values()
                watch.shown.note(
                    f"{split}: images that could not be read and are left out: {count}; the first: {first[0]}"
                )
            assert watch.log is not None
            watch.log.evaluation(run.step, run.epoch, split, report.values)
    run.values = distributed.from_main(values, run.processes)
    watch.shown.evaluated(epoch, run.values)
    _choose_best(run, watch)


def _choose_best(run: Run, watch: Watch) -> None:
    entry, metric = run.best_of
    value = run.values[entry].get(metric)
    if value is None:
        watch.shown.note(f"{entry}: {metric} is undefined for every query; best_by cannot choose a checkpoint by it")
    elif not run.best or value > run.best["value"]:
        run.best = {"metric": metric, "value": value, "epoch": run.epoch, "step": run.step}
