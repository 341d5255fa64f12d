"""The training loop: steps, evaluations and checkpoints until the last epoch or a request to stop.

All random numbers of a step are a function of (seed, epoch, step), and all other inputs of a step are in the
checkpoint. So a run that is stopped and resumed ends with the same weights as an uninterrupted run (bit for bit on a
CPU).
"""

import copy
import json
import math
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hgld import distributed
from hgld.data.batch import Batch
from hgld.distributed import Processes, StopRequests, stop_requests
from hgld.errors import DivergenceError, HgldError, InputError, StorageError, storage_errors
from hgld.evaluation.protocols import lower_is_better
from hgld.evaluation.report import RetrievalReport
from hgld.files import file_lock, write_atomic

from .checkpoint import (
    LAST,
    STATE,
    checkpoint_folder,
    described_selection,
    newest_checkpoint,
    read_checkpoint,
)
from .config import CONFIG, TrainConfig, flag_of, flat
from .evaluation import ROWS, evaluate_splits, keep_reports
from .inference.embedding import autocast, keep_freed_memory
from .log import FAULTS, RESUME_HINT, RunLog, RunSummary, Timing, write_faults
from .models.embedding_model import prepare_images
from .optimizers import groups_of, set_rates, step_optimizers
from .plan import plan_table
from .progress import ProgressReporter, metric_text
from .state import TrainState, check_folder, prepare_run, save_run, set_frozen
from .step import Backward, StepInput, StepValues

SUMMARY = "summary.json"
LOCK = ".hgld-train"
_FEW_FAULTS = 10  # number of unreadable images per epoch that never stops a run
_LEAST_SCALE = 2.0**-14  # if gradients overflow fp16 even at this scale, the run has diverged


@dataclass
class TrainingMonitor:
    """Observers of a run: stop requests, displayed progress, log and timing.

    Attributes:
        stop: request to stop; true after a signal.
        reporter: reporter that displays progress.
        log: the log's files; None on all processes but the main process.
        total: timing of this call.
        recent: timing since the last line of the log.
        replaced: number of unreadable images that this process replaced in this epoch.
    """

    stop: StopRequests
    reporter: ProgressReporter
    log: RunLog | None
    total: Timing = field(default_factory=Timing)
    recent: Timing = field(default_factory=Timing)
    replaced: int = 0


def train(
    config: TrainConfig,
    data: str,
    out: Path,
    *,
    init_from: Path | None = None,
    progress: ProgressReporter | None = None,
) -> RunSummary:
    """Train a model, or resume a run that was stopped.

    Args:
        config: options of the run.
        data: path or URL of the dataset directory.
        out: folder of the run; an existing run resumes from its newest checkpoint.
        init_from: run or checkpoint whose weights a new run starts from; default: the config's ``init_from``. A resumed
            run must have begun with the same weights.
        progress: reporter that displays progress; None: no display.

    Raises:
        ConfigError: options contradict each other, the dataset, or the run that is in ``out``.
        InputError: the dataset or a checkpoint cannot be read.
        DivergenceError: the loss or its gradient is not finite.
        StorageError: a file of the run cannot be written; earlier checkpoints are kept. Or another training is running
            in ``out``.
        MissingResourceError: pretrained weights are not available.
        HgldError: another process of the run died.
    """
    check_folder(config, out)

    def hint() -> str:
        newest = newest_checkpoint(out)
        kept = f"the newest checkpoint is {newest}" if newest is not None else "there is no checkpoint yet"
        return f"Start the same command again: {kept}."

    group = distributed.process_group(config.run.device, hint, config.run.process_timeout)
    with stop_requests() as stop, group as processes:
        reporter = progress if progress is not None and processes.is_main else ProgressReporter()
        with _run_lock(out, processes), arithmetic(config, processes.device):
            state = prepare_run(config, data, out, processes, init_from)
            return _train(state, stop, reporter)


@contextmanager
def arithmetic(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Configure a device inside the ``with`` block: TF32 on GPUs, convolution algorithms, determinism, memory."""
    cudnn: Any = torch.backends.cudnn
    on_gpu = device.type == "cuda"
    keep_freed_memory(device)
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    if config.run.deterministic:
        # Read when cuBLAS starts; torch requires it for determinism.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        if on_gpu:
            torch.set_float32_matmul_precision("high")
            cudnn.allow_tf32 = True
            # trying cuDNN's algorithms takes time, and is worth it because all training images have one size
            cudnn.benchmark = not config.run.deterministic
        torch.use_deterministic_algorithms(config.run.deterministic or deterministic)
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        if on_gpu:
            torch.set_float32_matmul_precision(before[0])
            cudnn.allow_tf32, cudnn.benchmark = before[1:]


@contextmanager
def _run_lock(out: Path, processes: Processes) -> Iterator[None]:
    """Lock the run's folder against other trainings on the main process; every process must call this.

    Raises:
        StorageError: another training holds the lock, or the folder cannot be written to.
    """
    busy = f"another training is running in {out}. Wait for it, stop it, or choose another --out."
    with ExitStack() as held:
        failure = None
        if processes.is_main:
            try:
                if not out.exists():
                    out.mkdir(parents=True)
                    held.callback(_remove_empty, out)  # if the run cannot begin, remove the empty folder
                held.enter_context(file_lock(out / LOCK, busy, keep=False))
            except StorageError as error:
                failure = error
            except OSError as error:
                failure = StorageError(f"cannot write {out} ({error.strerror}); choose another --out.")
        if distributed.any_process(failure is not None, processes):
            raise failure or StorageError(f"the main process cannot use {out} for this run; its own message says why.")
        yield


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _train(state: TrainState, stop: StopRequests, reporter: ProgressReporter) -> RunSummary:
    began, asked = time.monotonic(), state.config.run
    log = None
    if state.processes.is_main:
        log = RunLog(
            state.folder,
            from_step=state.step,
            judged=state.judged,
            loggers=asked.loggers,
            config=flat(state.config),
        )
    monitor = TrainingMonitor(stop, reporter, log)
    if state.config.plan and not state.step:
        reporter.heading(f"{plan_table(state.config)}\nplan: {state.folder / CONFIG}")
    reporter.begin(state.step, state.total, _description(state))
    if log is not None and log.note:
        reporter.note(log.note)
    if asked.evaluate_on and not state.best_of and 0 < asked.evaluate_every < asked.epochs:
        reporter.note(
            "no checkpoint is chosen, because only test splits are evaluated; the last one is kept. If the data have a "
            "split val (hgld build-shards --val-classes), it chooses the checkpoint; with --select-on-test, "
            f"{asked.evaluate_on[0]} chooses it."
        )
    try:
        finished = _epochs(state, monitor)
    finally:
        if log is not None:
            log.close()
        reporter.end()
    faults = distributed.gather(torch.tensor([monitor.total.faults], device=state.processes.device), state.processes)
    summary = RunSummary(
        finished=finished,
        step=state.step,
        epoch=state.epoch,
        best=state.best,
        values=state.values,
        start=state.start,
        seconds=round(time.monotonic() - began, 3),
        images_per_second=round(monitor.total.images_per_second, 2),
        wait_share=round(monitor.total.wait_share, 4),
        faults=int(faults.sum()),
        run=str(state.folder),
    )
    if state.processes.is_main:
        # Leave out the run's folder, because it may be moved later.
        facts = {name: value for name, value in summary.to_dict().items() if name != "run"}
        with storage_errors(f"write {state.folder / SUMMARY}", RESUME_HINT):
            write_atomic(state.folder / SUMMARY, json.dumps(facts | {"data": state.data.facts}, indent=2) + "\n")
    return summary


def _description(state: TrainState) -> str:
    """Describe a run in one line: device, data, model, steps."""
    data, processes, config = state.data, state.processes, state.config
    device = str(processes.device)
    if processes.device.type == "cuda":
        device = f"{device} ({torch.cuda.get_device_name(processes.device)})"
    count = f" x {processes.count} processes" if processes.count > 1 else ""
    modules = state.model, state.criterion
    parameters = sum(distributed.whole_shape(p).numel() for module in modules for p in module.parameters())
    finest = data.labels[:, 0]
    classes = finest[finest >= 0].unique().numel()
    return (
        f"{config.recipe or config.loss.loss} on {device}{count}: {len(data.dataset):,} images of {classes:,} classes "
        f"({data.facts['name']}); {parameters:,} parameters; {state.total:,} steps of "
        f"{config.batch.batch_size} images, {data.steps_per_epoch:,} per epoch"
    )


def _epochs(state: TrainState, monitor: TrainingMonitor) -> bool:
    """Train until the end of the run or a stop; return True if the end was reached."""
    while True:
        if state.step % state.data.steps_per_epoch == 0 and state.judged < state.epoch:
            if state.evaluation_due:
                save_run(state)  # save first: if a test set cannot be read, the epoch is not lost
                _evaluate(state, monitor)
            state.judged = state.epoch
            save_run(state)
        if state.epoch == state.config.run.epochs:
            return True
        if distributed.any_process(bool(monitor.stop), state.processes) or _epoch(state, monitor):
            return False


def _epoch(state: TrainState, monitor: TrainingMonitor) -> bool:
    """Do the remaining steps of an epoch; return True if a stop was requested (the state is then saved)."""
    epoch, asked = state.epoch, state.config.run
    monitor.replaced = 0
    set_frozen(state)
    state.wrapped.train()
    state.criterion.train()
    backward = _backward(state)
    with closing(state.data.batches(epoch, state.step % state.data.steps_per_epoch)) as batches:
        while state.epoch == epoch:
            began = time.monotonic()
            batch, stopped = _next_batch(state, monitor, batches)
            if stopped or batch is None:
                save_run(state)
                return True
            waited = time.monotonic() - began
            values = _step(state, backward, batch)
            state.step += 1
            for timing in (monitor.total, monitor.recent):
                timing.add(state.config.batch.batch_size, time.monotonic() - began, waited, len(batch.faults))
            monitor.reporter.advance(state.step)
            if state.step % asked.log_every == 0 or state.step == state.total:
                row = _log_row(state, values, monitor.recent)
                monitor.recent = Timing()
                monitor.reporter.step(state.step, epoch, row)
                if monitor.log is not None:
                    monitor.log.step(state.step, row)
            if asked.checkpoint_every and state.step % asked.checkpoint_every == 0 and state.epoch == epoch:
                save_run(state)
    # An evaluation may take long, so stop before it if requested.
    if distributed.any_process(bool(monitor.stop), state.processes):
        save_run(state)
        return True
    return False


def _next_batch(state: TrainState, monitor: TrainingMonitor, batches: Iterator[Batch]) -> tuple[Batch | None, bool]:
    """Return the next batch, and whether any process was asked to stop.

    If a process cannot read its part, save the state and end all processes.
    """
    fault = batch = None
    try:
        batch = next(batches)
        if batch.faults:
            _count_faults(state, monitor, [f"{fault.where}: {fault.reason}" for fault in batch.faults])
    except HgldError as error:
        fault = error
    # One exchange on the CPU for both values: it waits for all processes, but not for the GPU.
    raised = distributed.most_of_all(2 * (fault is not None) + bool(monitor.stop), state.processes)
    if raised >= 2:
        save_run(state)
        raise fault or InputError(
            f"another process could not read its part of the batch of step {state.step + 1}; its own message says why."
        )
    return batch, bool(raised)


def _count_faults(state: TrainState, monitor: TrainingMonitor, faults: Sequence[str]) -> None:
    """List the replaced images of a batch in ``faults.csv``.

    Raises:
        InputError: this process replaced more images in this epoch than ``max_faults`` allows.
    """
    write_faults(state.folder, state.step + 1, state.epoch, state.processes.index, faults)
    monitor.replaced += len(faults)
    asked, flag = state.config.run.max_faults, flag_of("max_faults")
    images = state.data.steps_per_epoch * state.config.batch.batch_size // state.processes.count
    if monitor.replaced > max(_FEW_FAULTS, asked * images):
        raise InputError(
            f"{monitor.replaced:,} of {images:,} images of an epoch could not be read and were replaced, the last: "
            f"{faults[-1]}. The limit is {flag} {asked:g} of them; {state.folder / FAULTS} lists all. Repair the "
            f"dataset (hgld verify finds what is damaged), or continue with {flag} 1."
        )


def _backward(state: TrainState) -> Backward:
    """Return the object that computes the gradients of a run's steps."""
    device = state.processes.device
    return Backward(
        state.wrapped,
        state.criterion,
        state.processes,
        prepare=partial(prepare_images, model=state.model, device=device),
        micro_batch_size=state.config.batch.micro_batch_size,
        autocast=partial(autocast, device, state.config.optimizer.amp),
        scale=state.scaler.scale,  # a disabled scaler returns the loss unchanged
    )


def _step(state: TrainState, backward: Backward, batch: Batch) -> StepValues:
    """Do one step of the optimizers.

    If the gradient overflows in fp16, the step is skipped and the loss's scale is lowered.

    Raises:
        DivergenceError: loss or gradient is not finite; the weights are unchanged.
    """
    epoch, position = divmod(state.step, state.data.steps_per_epoch)
    seed = int(np.random.SeedSequence((state.config.run.seed, epoch, position)).generate_state(1, np.uint64)[0])
    config, scaler = state.config.optimizer, state.scaler
    lengths = {"steps_per_epoch": state.data.steps_per_epoch, "epochs": state.config.run.epochs}
    set_rates(state.optimizers, config, state.step, **lengths)
    for optimizer in state.optimizers:
        optimizer.zero_grad(set_to_none=True)
    values = backward(StepInput(batch.images, batch.labels, batch.indices, seed))
    moving = [p for group in groups_of(state.optimizers) for p in group["params"] if p.grad is not None]
    for optimizer in state.optimizers:
        scaler.unscale_(optimizer)
    norm = distributed.gradient_norm(moving)
    # one copy to the CPU, because each copy waits for the GPU
    loss, length = torch.stack([values.loss.double(), norm.double()]).tolist()
    may_fall = scaler.is_enabled() and math.isfinite(loss) and scaler.get_scale() > _LEAST_SCALE
    if math.isfinite(loss) and math.isfinite(length):
        if config.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(moving, config.clip_norm, norm)
        step_optimizers(state.optimizers, state.processes)
        if state.average is not None:
            state.average.update_parameters(state.model)
    elif not may_fall:
        terms = "".join(f", {name} {float(value):.4g}" for name, value in values.parts.items())
        keys = ", ".join(state.data.dataset.keys[int(i)] for i in batch.indices[:4])
        # State the checkpoint, because --init-from with the run's folder would use the best one.
        kept = newest_checkpoint(state.folder)
        hint = f" with --init-from {kept}" if kept else ""
        raise DivergenceError(
            f"epoch {state.epoch + 1}, step {state.step + 1}: the loss is {loss:.4g}{terms} and the norm of its "
            f"gradient {length:.4g}, in the batch that begins with {keys}. The step was skipped. Lower the learning "
            f"rates, set --clip-norm, or replace --amp fp16 by bf16; then start a new run{hint}."
        )
    scaler.update()
    return StepValues(values.loss, {**values.parts, "gradient_norm": norm})


def _log_row(state: TrainState, values: StepValues, timing: Timing) -> dict[str, float]:
    rates = {group["rate"]: group["lr"] for group in groups_of(state.optimizers)}
    told = {"loss": values.loss, **values.parts}
    # one copy to the CPU, because each copy waits for the GPU
    numbers = torch.stack([value.to(torch.float64) for value in told.values()]).tolist()
    row = {"epoch": state.step / state.data.steps_per_epoch, **dict(zip(told, numbers, strict=True))}
    row |= {f"lr_{part}": rate for part, rate in rates.items()}
    if state.processes.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(state.processes.device) / 1e6
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    speed = {"images_per_second": timing.images_per_second, "wait_share": timing.wait_share}
    return row | speed | {"memory_mb": peak}


def _evaluate(state: TrainState, monitor: TrainingMonitor) -> None:
    """Evaluate the model after the epochs that are done."""
    epoch = state.epoch - 1
    monitor.reporter.evaluating(epoch)
    reports = _reports(state, state.model if state.average is None else state.average.module, state.folder)
    if state.config.run.blend and state.best_of and state.epoch == state.config.run.epochs > 0:
        reports = _better_with_start(state, monitor, reports)
    values: dict[str, dict[str, float]] = {}
    if state.processes.is_main:
        choice = {"best_checkpoint": described_selection(*reversed(state.best_of)) if state.best_of else LAST}
        kept = {entry: replace(one, settings=one.settings | choice) for entry, one in reports.items()}
        keep_reports(state.folder, state.epoch, kept)
        for split, report in reports.items():
            values[split] = {name: float(value) for name, value in report.values.items() if math.isfinite(value)}
            if "unreadable" in report.settings:
                count, first = report.settings["unreadable"].values()
                monitor.reporter.note(f"{split}: unreadable images, which are excluded: {count}; the first: {first[0]}")
            assert monitor.log is not None
            monitor.log.evaluation(state.step, state.epoch, split, report.values)
    state.values = distributed.from_main(values, state.processes)
    if not state.step:
        state.start = state.values
    monitor.reporter.evaluated(epoch, state.values, state.best_of[1] if state.best_of else "")
    _choose_best(state, monitor)


def _reports(state: TrainState, model: Any, run: Path | None) -> dict[str, RetrievalReport]:
    """Evaluate a model on all entries of ``evaluate_on``; write the embeddings into the folder ``run``, if given."""
    places = state.data.place, state.processes
    folders = {"run": run, "rows": state.folder / ROWS}
    return evaluate_splits(model, state.config, *places, classifier=state.classifier, **folders)


def _better_with_start(
    state: TrainState, monitor: TrainingMonitor, reports: dict[str, RetrievalReport]
) -> dict[str, RetrievalReport]:
    """Evaluate weights between the initial and the last weights; keep these weights if they improve ``monitor``.

    Args:
        state: the run after its last step.
        monitor: observers of the run.
        reports: reports of the last weights.

    Returns:
        The reports of the weights that are kept.
    """
    entry, metric = state.best_of
    first = checkpoint_folder(state.folder, 0)
    if not distributed.from_main((first / STATE).is_file(), state.processes):
        monitor.reporter.note(f"{first} does not exist any more, so no weights between start and end are tried.")
        return reports
    start, share = read_checkpoint(first).tensors["model"], state.config.run.blend
    blended = copy.deepcopy(state.model)
    with torch.no_grad():
        for name, tensor in blended.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(start[name].to(tensor.device).lerp(tensor, share))
    between = _reports(state, blended, None)
    values = [float(of[entry].values.get(metric, math.nan)) if of else math.nan for of in (reports, between)]
    end, tried = distributed.from_main([v if math.isfinite(v) else None for v in values], state.processes)
    if end is None or tried is None:
        return reports
    better = tried < end if lower_is_better(metric) else tried > end
    kept = f"{share:g} of the way from start to end" if better else "the end"
    monitor.reporter.note(
        f"{entry}, {metric}: {metric_text(metric, end)} at the end, {metric_text(metric, tried)} {share:g} of the "
        f"way from start to end; {kept} is kept"
    )
    if not better:
        return reports
    state.blended = blended.state_dict()
    return _reports(state, blended, state.folder)


def _choose_best(state: TrainState, monitor: TrainingMonitor) -> None:
    """Choose the newest checkpoint if it is the best so far, or as good within ``monitor_tolerance``.

    If two checkpoints are about equally good, the later checkpoint is usually better on other classes
    (benchmarks/results/finetune.csv).
    """
    if not state.best_of:
        return
    entry, metric = state.best_of
    value = state.values[entry].get(metric)
    if value is None:
        monitor.reporter.note(
            f"{entry}: {metric} is undefined for every query; monitor cannot choose a checkpoint with it"
        )
        return
    sign = -1 if lower_is_better(metric) else 1
    top = value if not state.best else sign * max(sign * value, sign * state.best.get("top", state.best["value"]))
    start = state.start.get(entry, {}).get(metric, value)
    if value == top or (sign * (top - value) <= state.config.run.monitor_tolerance and sign * (value - start) >= 0):
        state.best = {"metric": metric, "value": value, "epoch": state.epoch, "step": state.step, "on": entry}
    state.best["top"] = top
