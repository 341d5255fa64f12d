"""Checkpoints: folders of safetensors and JSON that are complete or do not exist.

``RUN/checkpoints/step-{n:08d}/`` holds ``model.safetensors``, ``criterion.safetensors``, ``optimizer.safetensors`` and
``state.json``, which contains a checksum of itself and of each file. ``ema.safetensors`` is added if evaluations use
averaged weights (a moving average, or an interpolation of initial and last weights). A checkpoint is written under
another name, synced and renamed. ``RUN/checkpoints/best.json`` states the best checkpoint. Nothing is ever unpickled.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hgld.errors import InputError, excerpt, quoted, storage_errors
from hgld.files import read_json, reading_tensors, write_atomic, write_folder
from hgld.user_cache import digest_of, file_digest

from .config import is_validation, read_record

SCHEMA_VERSION = 2
FOLDER = "checkpoints"
BEST = "best.json"
STATE = "state.json"
_NAME = re.compile(r"step-(\d{8,})\Z")
LAST = "the last of its run"
_AGAIN = "Free space and run the same command again."
_ASIDE = re.compile(r"\.step-\d{8,}\.part\Z")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run at the end of a step.

    Attributes:
        step: number of steps since the start of the run.
        tensors: tensors per file (``model``, ``criterion``, ``optimizer``, ``ema``) and name.
        state: all other state, JSON-ready.
    """

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def write_checkpoint(run: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically; it replaces a checkpoint of the same step.

    Raises:
        StorageError: the disk is full or not writable; earlier checkpoints are unchanged.
    """
    final = checkpoint_folder(run, checkpoint.step)

    def fill(folder: Path) -> None:
        for file, tensors in checkpoint.tensors.items():
            # Copy each tensor, because safetensors cannot write tensors that share memory or are not contiguous.
            whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
            save_file(whole, folder / f"{file}.safetensors")
        files = {file: file_digest(folder / f"{file}.safetensors") for file in checkpoint.tensors}
        record = {"step": checkpoint.step, "files": files, **checkpoint.state}
        (folder / STATE).write_text(state_text(record), encoding="utf-8")

    kept = newest_checkpoint(run)
    rest = f"The newest complete checkpoint is {kept}." if kept else "There is no earlier checkpoint."
    with storage_errors(f"write the checkpoint {final}", f"{rest} {_AGAIN}", SafetensorError):
        write_folder(final, fill)
    return final


def rewrite_state(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the ``state.json`` of a checkpoint whose tensors are unchanged.

    Raises:
        InputError: the earlier state cannot be read.
        StorageError: the disk is full or not writable; the earlier state is unchanged.
    """
    before = read_state(path)
    with storage_errors(f"write {path / STATE}", f"The earlier file is unchanged. {_AGAIN}"):
        write_atomic(path / STATE, state_text({"step": before["step"], "files": before["files"], **state}))


def state_text(record: Mapping[str, Any]) -> str:
    """Return the text of a ``state.json``: step, files and state with the schema version and a checksum."""
    whole = {"schema_version": SCHEMA_VERSION, **record}
    return json.dumps(whole | {"checksum": _checksum(whole)}, indent=2) + "\n"


def _checksum(record: Mapping[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "checksum"}
    return digest_of(json.dumps(content, sort_keys=True))


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return run / FOLDER / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int:
    """Return the number of steps done at a checkpoint, from its folder's name."""
    return int(path.name.removeprefix("step-"))


def mark_best(run: Path, checkpoint: Path, metric: str, value: float, chosen_on: str) -> None:
    """Record the best checkpoint, its value of the metric, and the entry of ``evaluate_on`` that was measured.

    Raises:
        StorageError: the disk is full or not writable.
    """
    record = {"checkpoint": checkpoint.name, "metric": metric, "value": value, "on": chosen_on}
    path = run / FOLDER / BEST
    with storage_errors(f"write {path}", f"The earlier file is unchanged. {_AGAIN}"):
        write_atomic(path, json.dumps(record, indent=2) + "\n")


def forget_best(run: Path) -> None:
    """Remove the record of the best checkpoint.

    Raises:
        StorageError: the folder is not writable.
    """
    path = run / FOLDER / BEST
    with storage_errors(f"remove {path}", "Make its folder writable."):
        path.unlink(missing_ok=True)


def prune_checkpoints(run: Path, keep: int, spared: Sequence[int] = ()) -> None:
    """Remove old checkpoints, and unfinished checkpoints of killed runs.

    Args:
        run: the run's folder.
        keep: number of newest checkpoints to keep in addition to the best checkpoint.
        spared: steps whose checkpoints are kept too.

    Raises:
        StorageError: a folder cannot be removed.
    """
    whole, best = _checkpoints(run), _best(run)
    for path in (run / FOLDER).iterdir():
        ours = _NAME.match(path.name) or _ASIDE.match(path.name)
        stays = {*whole[-keep:], best, *(checkpoint_folder(run, step) for step in spared)}
        if not ours or path in stays:
            continue
        hint = f"It is not among the {keep} checkpoints to keep. Remove it and run the same command again."
        with storage_errors(f"remove {path}", hint):
            shutil.rmtree(path)


def newest_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint of the latest step; None if there is no checkpoint."""
    found = _checkpoints(run)
    return found[-1] if found else None


def find_checkpoint(place: Path, which: str = "best") -> Path:
    """Return the folder of a checkpoint.

    Args:
        place: folder of a run or of a checkpoint; any path to it is allowed (``.``, a link).
        which: ``best`` (if the run has none yet, the last checkpoint) or ``last``.

    Raises:
        InputError: there is no checkpoint.
    """
    if (place / STATE).is_file():
        return place.resolve()
    best = _best(place) if which == "best" else None
    found = best or newest_checkpoint(place)
    if found is None:
        raise InputError(f"{place} holds no checkpoint; expected a run of hgld train, or its {FOLDER}/step-N.")
    return found


def selection_of(checkpoint: Path) -> str:
    """Describe how a checkpoint was chosen: by a metric on a split, or not at all."""
    run = checkpoint.parent.parent
    newest = newest_checkpoint(run)
    if _best(run) == checkpoint:
        mark = read_json(run / FOLDER / BEST, kind=dict)
        return described_selection(mark.get("metric"), mark.get("on"))
    return LAST if newest == checkpoint else "neither the best nor the last of its run"


def described_selection(metric: object, entry: object) -> str:
    """Describe a choice with a metric on an entry of ``evaluate_on``; the text states whether that is a test split."""
    return f"chosen by {metric} on {entry}{'' if is_validation(str(entry)) else ', a test split'}"


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        InputError: a file of the checkpoint is missing or damaged.
        SchemaError: this hgld does not read the checkpoint's schema version.
    """
    state = read_state(path)
    return Checkpoint(state["step"], {file: read_tensors(path, state, file) for file in state["files"]}, state)


def read_state(path: Path) -> dict[str, Any]:
    """Read the ``state.json`` of a checkpoint; its entry ``files`` holds the checksums of the tensor files.

    Raises:
        InputError: the file is missing or damaged.
        SchemaError: this hgld does not read the file's schema version.
    """
    state = read_record(path / STATE, SCHEMA_VERSION, hint="Train the run again.")
    if state.get("checksum") != _checksum(state) or path.name != f"step-{state['step']:08d}":
        raise InputError(
            f"{path / STATE}: its content does not match its checksum or its folder. Restore the file, or remove the "
            "checkpoint's folder to resume from the previous one."
        )
    return state


def read_tensors(path: Path, state: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint's file.

    Args:
        path: the checkpoint's folder.
        state: result of :func:`read_state`.
        name: name of the file: ``model``, ``criterion``, ``optimizer`` or ``ema``.

    Raises:
        InputError: the file cannot be read, or was changed after it was written.
    """
    file = path / f"{name}.safetensors"
    try:
        if file_digest(file) != state["files"].get(name):
            raise InputError(
                f"{file}: its SHA-256 is not the one in {STATE}. Restore the file, or remove the checkpoint's folder "
                "to resume from the previous one."
            )
        with reading_tensors(file):
            return load_file(file)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{file}: not a readable safetensors file ({excerpt(reason)}). Use another checkpoint."
        ) from error


def _best(run: Path) -> Path | None:
    path = run / FOLDER / BEST
    if not path.is_file():
        return None
    name = read_json(path, kind=dict).get("checkpoint")
    if not isinstance(name, str) or not _NAME.match(name):
        raise InputError(f"{path}: names the checkpoint {quoted(name)}; expected step-N. Remove the file to resume.")
    folder = run / FOLDER / name
    return folder if (folder / STATE).is_file() else None


def _checkpoints(run: Path) -> list[Path]:
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found) if (path / STATE).is_file()]
