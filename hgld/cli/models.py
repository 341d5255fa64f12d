"""Options that choose a model and its preprocessing of images, and functions that open such models."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hgld.cli.output import echo
from hgld.evaluation.trained_on import trained_on_text
from hgld.settings import options_of, setting

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset
    from hgld.training.inference.embedder import Embedder
    from hgld.training.models.networks import Network


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options that choose a model: a run of hgld train, or a pretrained network."""

    checkpoint: tuple[Path, ...] = setting(
        (),
        "Run of hgld train, or one of its checkpoints/step-N. Repeatable in evaluate.",
        metavar="RUN",
        path="existing",
        repeated=True,
        common=True,
    )
    model: tuple[str, ...] = setting(
        (),
        "Pretrained network with its own preprocessing: timm:NAME, torchvision:NAME, open_clip:MODEL/PRETRAINED, "
        "open_clip:hf-hub:USER/NAME, onnx:FILE, pixels (raw pixels, 32 px), or a saved model's folder. Repeatable in "
        "evaluate.",
        metavar="NETWORK",
        repeated=True,
        commas=False,
        common=True,
    )
    weights: tuple[str, ...] = setting(
        (),
        "Weights of --model, one value per model; none: random weights.  [default: the library's pretrained weights]",
        metavar="FILE|TAG|none",
        repeated=True,
        commas=False,
    )
    pooling: Literal["avg", "gem", "max", "crow", "rmac", "token"] | None = setting(
        None, "Pooling of the features of --model.  [default: the network's own, or average pooling]"
    )

    def sources(self) -> "list[Path | Network]":
        """Return the models that the options name, checkpoints first.

        Raises:
            click.UsageError: a flag would have no effect, or the numbers of weights and networks differ.
        """
        for flag in ("weights", "pooling"):
            if getattr(self, flag) and not self.model:
                raise click.UsageError(f"--{flag} needs --model, which is not given.")
        if self.weights and len(self.weights) != len(self.model):
            raise click.UsageError("--weights: give one value per --model, in the same order, or omit it.")
        if not self.model:
            return list(self.checkpoint)
        from hgld.training.models.networks import source_of

        pairs = zip(self.model, self.weights or ["default"] * len(self.model), strict=True)
        return [*self.checkpoint, *(source_of(name, own, self.pooling or "") for name, own in pairs)]

    def source(self) -> "Path | Network":
        """Return the one model that the options name.

        Raises:
            click.UsageError: the options name no model, or several.
        """
        sources = self.sources()
        if len(sources) != 1:
            found = "both are" if sources else "neither is"
            raise click.UsageError(f"expected one model, as --checkpoint RUN or --model NETWORK; {found} given.")
        return sources[0]


@dataclass(frozen=True, kw_only=True)
class SeenOptions:
    """Option that allows evaluation on images that a run was trained on."""

    seen: bool = setting(
        False, "Allow evaluation on images that the run was trained on; every output states this.", common=False
    )

    def check(
        self, source: "Path | Network | None", queries: "Sequence[ShardDataset]", *, own_allowed: bool = True
    ) -> dict[str, Any]:
        """Raise an error if a run was trained on the queries, unless ``--seen`` is given.

        Args:
            source: the model; only runs are checked.
            queries: splits whose images are evaluated.
            own_allowed: whether to allow queries of the run's own dataset, even if the run was trained on them.

        Returns:
            settings for the report that state which images were in the training data.

        Raises:
            ConfigError: the run was trained on queries.
        """
        if not isinstance(source, Path):
            return {}
        from hgld.training.checkpoint import find_checkpoint
        from hgld.training.seen import check_seen

        run = find_checkpoint(source).parent.parent
        return check_seen(run, queries, allowed=self.seen, own_allowed=own_allowed)


def _gem_exponent(text: str) -> "float | Literal['auto']":
    if text == "auto":
        return text
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError("auto or a number above 0")
    return number


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """Options for the preprocessing of images. The default of each option is the run's own value."""

    which: Literal["best", "last"] = setting("best", "Checkpoint of the run.", flag="checkpoint-choice")
    resize_mode: Literal["crop", "squash", "longest", "original"] | None = setting(
        None,
        "How to resize images. crop: the central square; squash: the whole image as a square; longest: the whole "
        "image, its longest side scaled to --size; original: the whole image at its own size.",
    )
    size: int | None = setting(
        None, "Side of the model's square input, or longest side of the image.", unit="pixels", least=1, common=True
    )
    resize: int | None = setting(
        None,
        "Length of the image's short side before the central square is cut out.  [default: in proportion to --size]",
        unit="pixels",
        least=1,
    )
    max_pixels: int | None = setting(
        None,
        "Maximum number of pixels of an image with --resize-mode original; larger images are downscaled.",
        unit="pixels",
        least=1,
    )
    scales: tuple[float, ...] | None = setting(
        None,
        "Scales at which to embed each image, for instance 1,0.7071,0.5; the embeddings are pooled.",
        metavar="X,Y,Z",
    )
    scale_p: float | None = setting(
        None,
        "Exponent of the generalised mean over --scales: 1 is the average; the listwise AP paper uses 3.",
        least=1,
    )
    gem_p: float | Literal["auto"] | None = setting(
        None,
        "Exponent of GeM pooling. auto: the value from 1 to 10 with which augmented views of the same training image "
        "of --data retrieve each other best.",
        metavar="auto|FLOAT",
        parse=_gem_exponent,
    )
    batch_size: int | None = setting(None, "Number of images per batch and process.", least=1)
    workers: int | None = setting(None, "Number of threads per process that read and decode images.", least=1)
    amp: Literal["off", "bf16", "fp16"] | None = setting(
        None, "Number format of the model's mixed-precision arithmetic; off: float32."
    )
    device: str | None = setting(None, "Device: cpu, cuda, ...  [default: a GPU if there is one]", common=True)


def refuse_view(view: ViewOptions) -> None:
    """Raise an error for view options without a model, which would have no effect; --device is always allowed."""
    for name, option in options_of(ViewOptions).items():
        if name != "device" and getattr(view, name) != option.default:
            raise click.UsageError(f"--{option.flag} needs --checkpoint or --model; neither is given.")


def open_embedder(
    source: "Path | Network", view: ViewOptions, data: str, rows: Path | None = None
) -> "AbstractContextManager[Embedder]":
    """Open a model for a dataset.

    Args:
        source: folder of a run or of one of its checkpoints, or a network.
        view: options of the model.
        data: dataset directory or its URL.
        rows: temporary folder for the embeddings of several processes; None: a new one in TMPDIR.

    Raises:
        click.UsageError: ``--checkpoint-choice`` is given with a network, which has no checkpoints.
    """
    from hgld.training.inference.embedder import trained_embedder

    if data and (note := _folder_note(data)):
        echo(note, err=True)
    if view.which != "best" and not isinstance(source, Path):
        raise click.UsageError("--checkpoint-choice chooses a checkpoint of a run; --model has none.")
    options: dict[str, Any] = vars(view) | {"device": view.device or ""}
    return trained_embedder(source, data=data, rows=rows, **options)


def _folder_note(data: str) -> str:
    """Return a text with the levels and classes of a plain folder of images; empty for a dataset."""
    from hgld.data.dataset import open_dataset
    from hgld.data.image_folder import LooseImages
    from hgld.distributed import is_main_process

    if not Path(data).is_dir() or (Path(data) / "dataset.json").exists() or not is_main_process():
        return ""
    storage = open_dataset(data).storage
    return storage.note if isinstance(storage, LooseImages) else ""


def say_warnings(facts: Mapping[str, Any]) -> None:
    """Print a warning if images were reduced, and a warning if the run was trained on queries.

    Args:
        facts: settings of a report, or the result of ``Embedder.view_facts`` or :meth:`SeenOptions.check`.
    """
    if reduced := facts.get("reduced"):
        echo(
            f"images of more than {facts['max_pixels']:,} pixels, which were reduced (--max-pixels): {reduced}",
            err=True,
        )
    if text := trained_on_text(facts):
        echo(text, err=True)


def say_selection(facts: Mapping[str, Any]) -> None:
    """Print which checkpoint of a run is used, and how it was chosen; print nothing for a network."""
    if facts.get("checkpoint"):
        echo(f"checkpoint {facts['checkpoint']}: {facts['selection']}")
