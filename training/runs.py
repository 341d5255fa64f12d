"""Training from Python: :func:`train`, with the options of ``hgld train``."""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgld.terminal import say

from .checkpoint import find_checkpoint
from .config import CONFIG, TrainConfig, read_config, with_fields
from .finetune import FINETUNE
from .log import RunSummary
from .loop import train as train_config
from .plan import PlanLine, plan_lines
from .progress import ProgressReporter, progress_reporter
from .recipes import load_recipe

if TYPE_CHECKING:
    from .inference.model import Model


@dataclass(frozen=True)
class TrainingRun:
    """A run that was trained to its end or stopped.

    Attributes:
        folder: folder of the run.
        config: all options of the run.
        summary: results of the run.
    """

    folder: Path
    config: TrainConfig
    summary: RunSummary

    @property
    def finished(self) -> bool:
        """True if the run reached its end; otherwise the same call of :func:`train` resumes it."""
        return self.summary.finished

    @property
    def values(self) -> dict[str, dict[str, float]]:
        """The last evaluation's metrics by split and name."""
        return {split: dict(metrics) for split, metrics in self.summary.values.items()}

    @property
    def best(self) -> dict[str, Any]:
        """The best checkpoint: ``metric``, ``value``, ``on`` (a split), ``epoch`` (0: the start), ``step``."""
        return dict(self.summary.best)

    @property
    def plan(self) -> list[PlanLine]:
        """The plan: values derived from network, data and machine, with reasons."""
        return plan_lines(self.config)

    @property
    def checkpoint(self) -> Path:
        """Folder of the best checkpoint, or of the last checkpoint if no best checkpoint was chosen."""
        return find_checkpoint(self.folder)

    def load_model(self) -> "Model":
        """Load the best model: ``hgld.load_model(run.folder)``."""
        from .inference.model import load_model

        return load_model(self.folder)


def load_config(name: str | Path) -> TrainConfig:
    """Return the config of a recipe or of a file (``.json``, ``.yaml``).

    If the file has no ``recipe``, omitted fields come from the recipe finetune.

    Raises:
        ConfigError: there is no such recipe, or the file's options are invalid.
        InputError: the file cannot be read.
    """
    if str(name).endswith((".json", ".yaml", ".yml")):
        return read_config(Path(name), lambda recipe: load_recipe(recipe or FINETUNE))
    return load_recipe(str(name))


def train(
    data: str | Path,
    out: str | Path,
    *,
    recipe: str = FINETUNE,
    config: str | Path | TrainConfig | None = None,
    init_from: str | Path | None = None,
    progress: bool | ProgressReporter = True,
    **fields: Any,
) -> TrainingRun:
    """Train a model on a dataset, or resume a run that was stopped: ``hgld train``.

    Without a recipe, hgld fine-tunes a pretrained network, and derives omitted options from network, data and machine:
    ``hgld.train("shards", "run", backbone="timm:tf_efficientnet_lite0", size=160)``.

    Args:
        data: dataset directory, or its URL.
        out: folder of the run.
        recipe: name of the recipe.
        config: file of a config (JSON or YAML), or a config, in place of a recipe.
        init_from: run or checkpoint whose model's weights a new run starts from.
        progress: True: show progress on stderr; False: show nothing; or a reporter that shows it.
        **fields: options by the names of their flags: ``backbone``, ``pretrained``, ``size``, ``loss``, ``lr``,
            ``epochs``, ``batch_size``, ...

    Raises:
        ConfigError: an option is unknown (the message suggests the nearest), or options contradict each other, the
            dataset, the network or the run in ``out``; one message lists all errors.
        InputError: the dataset, a config or a checkpoint cannot be read.
        MissingResourceError: pretrained weights are not available.
        DivergenceError: the loss or its gradient is not finite.
        StorageError: a file of the run cannot be written, or another training is running in ``out``.
    """
    base = config if isinstance(config, TrainConfig) else load_config(recipe if config is None else config)
    asked, folder = with_fields(base, fields), Path(out)
    begun = None if init_from is None else Path(init_from)
    shown: AbstractContextManager[ProgressReporter | None] = nullcontext()
    if isinstance(progress, ProgressReporter):
        shown = nullcontext(progress)
    elif progress:
        shown = progress_reporter(sys.stderr, say, say)
    with shown as reporter:
        summary = train_config(asked, str(data), folder, init_from=begun, progress=reporter)
    return TrainingRun(folder, read_config(folder / CONFIG), summary)
