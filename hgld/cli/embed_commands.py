"""The verbs that use a trained model: embed, export; and the options by which a model is opened."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hgld.cli.options import EXISTING_FILE, NewFile, Numbers, json_option, reading_options
from hgld.cli.output import echo, print_json, progress_bars, say_next
from hgld.files import read_json

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset
    from hgld.evaluation.options import Progress
    from hgld.training.inference.embedder import Embedder
    from hgld.training.models.networks import Network


CHECKPOINT = click.Path(path_type=Path, file_okay=False, exists=True)
_LEAST_ONE = click.IntRange(min=1)
_TRIED = 8  # images of a dry run


class _GemP(click.ParamType):
    """``auto`` or a number above 0."""

    name = metavar = "auto|FLOAT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = value if value == "auto" else float(value)
        except ValueError:
            number = 0.0
        if number != "auto" and not 0 < number < float("inf"):
            self.fail(f"{value!r}: expected auto or a number above 0.", param, ctx)
        return number


_OPTIONS = {
    "which": click.option(
        "--which", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Checkpoint of the run."
    ),
    "geometry": click.option(
        "--geometry",
        type=click.Choice(["crop", "squash", "longest", "original"]),
        help="How an image is seen. crop: the central square; the whole image otherwise, squash: as a square; longest: "
        "with its longest side at --size; original: at its own size. [default: as in the run's evaluations]",
    ),
    "size": click.option(
        "--size",
        type=_LEAST_ONE,
        help="Side of the square that the model sees, or the longest side, pixels. [default: as in the run's "
        "evaluations, or as the network's library tests it]",
    ),
    "resize": click.option(
        "--resize",
        type=_LEAST_ONE,
        help="Short side before the central square is cut out, pixels. [default: in proportion to --size]",
    ),
    "max_pixels": click.option(
        "--max-pixels",
        type=_LEAST_ONE,
        help="Largest image of --geometry original, pixels; larger ones are made smaller. [default: as in the run's "
        "evaluations]",
    ),
    "scales": click.option(
        "--scales",
        type=Numbers(),
        help="Factors of the image's size whose embeddings are pooled, for instance 1,0.7071,0.5. [default: as in the "
        "run's evaluations]",
    ),
    "scale_p": click.option(
        "--scale-p",
        type=click.FloatRange(min=1),
        help="Exponent of the generalised mean over --scales: 1 averages; listwise AP's paper takes 3. [default: as in "
        "the run's evaluations]",
    ),
    "gem_p": click.option(
        "--gem-p",
        type=_GemP(),
        help="Exponent of GeM pooling; auto: the best of 1 to 10 at --size, by views of training images of --data. "
        "[default: as trained]",
    ),
    "batch_size": click.option(
        "--batch-size", type=_LEAST_ONE, help="Images at a time, a process. [default: as in training, 256 at most]"
    ),
    "workers": click.option(
        "--workers", type=_LEAST_ONE, help="Threads that read and decode, a process. [default: as in training]"
    ),
    "amp": click.option(
        "--amp",
        type=click.Choice(["off", "bf16", "fp16"]),
        help="Precision of the model's arithmetic. [default: as in training]",
    ),
}


def view_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags for how a model reads images, which :func:`open_embedder` takes."""
    for option in reversed(_OPTIONS.values()):
        function = option(function)
    return function


def take_view_options(given: dict[str, Any]) -> dict[str, Any]:
    """Take the values of these flags out of a verb's."""
    return {name: given.pop(name) for name in _OPTIONS}


def refuse_view_options(given: dict[str, Any]) -> None:
    """Refuse flags that have nothing to act on, because no model is given."""
    for name in _OPTIONS:
        given.pop(name)
        if _is_given(name):
            flag = name.replace("_", "-")
            raise click.UsageError(f"--{flag} goes with --checkpoint or --model; neither is given.")


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


# -- the models: of runs, and networks as they come -------------------------------------------------------------------

_SOURCES = ("checkpoint", "model", "network_weights", "pooling")


def source_options(*, several: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb the flags that name its model, or several; :func:`take_sources` reads them."""
    again = "; several times, with others" if several else ""
    options = (
        click.option(
            "--checkpoint",
            type=CHECKPOINT,
            multiple=several,
            help=f"A run of hgld train, or one of its checkpoints/step-N{again}.",
        ),
        click.option(
            "--model",
            multiple=several,
            metavar="NETWORK",
            help="Or a network as it comes, with its own preparation of images: timm:NAME, torchvision:NAME, "
            f"open_clip:MODEL/PRETRAINED, onnx:FILE, or pixels (raw ones, 32 px){again}.",
        ),
        click.option(
            "--weights",
            "network_weights",
            multiple=several,
            metavar="FILE|TAG|none",
            help="Weights of --model"
            + ("; one for each of them in their order, or for none of them" if several else "")
            + ". none: drawn at random; default: its library's own.",
        ),
        click.option(
            "--pooling",
            type=click.Choice(["avg", "gem", "max", "token"]),
            help="Pooling of --model. [default: its own vector, else the average]",
        ),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def take_sources(given: dict[str, Any]) -> "list[Path | Network]":
    """Take the models that these flags name out of a verb's values; checkpoints come first.

    Raises:
        click.UsageError: flags that have nothing to act on, or not as many weights as networks.
    """
    taken = {name: given.pop(name) for name in _SOURCES}
    checkpoints, names, weights = (
        tuple(value) if isinstance(value, tuple) else () if value is None else (value,)
        for value in (taken[name] for name in _SOURCES[:3])
    )
    for flag, value in (("weights", weights), ("pooling", taken["pooling"])):
        if value and not names:
            raise click.UsageError(f"--{flag} goes with --model, which is not given.")
    if names and not checkpoints and _is_given("which"):
        raise click.UsageError("--which chooses a checkpoint of a run; --model has none.")
    if weights and len(weights) != len(names):
        raise click.UsageError(
            f"--weights comes {len(weights)} times and --model {len(names)} times; give one for each, in their order "
            "(default: the library's own), or none at all."
        )
    if not names:
        return list(checkpoints)
    from hgld.training.models.networks import Network

    pairs = zip(names, weights or ["default"] * len(names), strict=True)
    return [*checkpoints, *(Network(name, own, taken["pooling"] or "") for name, own in pairs)]


def take_source(given: dict[str, Any]) -> "Path | Network":
    """Take the one model that these flags name.

    Raises:
        click.UsageError: there is none, or there are two.
    """
    sources = take_sources(given)
    if len(sources) != 1:
        found = "both are" if sources else "neither is"
        raise click.UsageError(f"--checkpoint RUN or --model NETWORK says what embeds; {found} given.")
    return sources[0]


def say_reduced(facts: Mapping[str, object]) -> None:
    """Say how many images were too large for the view (facts of a report or of ``Embedder.view_facts``), if any."""
    if reduced := facts.get("reduced"):
        echo(f"images of more than {facts['max_pixels']:,} pixels, made smaller (--max-pixels): {reduced}", err=True)


def say_selection(checkpoint: str, selection: str) -> None:
    """Say which checkpoint of a run is used, and how it was chosen; nothing of other models."""
    if checkpoint:
        echo(f"checkpoint {checkpoint}: {selection}")


def open_embedder(
    source: "Path | Network", device: str | None, options: dict[str, Any], data: str
) -> "AbstractContextManager[Embedder]":
    """Open a model with the options of :func:`take_view_options`, for a dataset."""
    from hgld.training.inference.embedder import trained_embedder

    return trained_embedder(source, device=device or "", data=data, **options)


# -- embed, export --------------------------------------------------------------------------------------------

_checkpoint_option = click.option(
    "--checkpoint", type=CHECKPOINT, required=True, help="A run of hgld train, or one of its checkpoints/step-N."
)
_data_option = click.option("--data", required=True, help="Dataset directory, or its URL.")
_split_option = click.option("--split", help="Split of it; default: all its items.")
_device_option = click.option("--device", help="cpu, cuda, ...; default: a GPU when there is one.")


def embed_command() -> click.Command:
    @click.command()
    @source_options()
    @_data_option
    @_split_option
    @click.option(
        "--out",
        type=NewFile(),
        required=True,
        help="File to write: .npy, .safetensors or .parquet.",
    )
    @click.option(
        "--parts",
        type=click.IntRange(1, 9999),
        help="Embed in so many parts, each kept beside FILE.npy when it is done, and join them at the end: the same "
        "command goes on after a stop.",
    )
    @click.option(
        "--fit-whitening",
        type=NewFile(),
        help="Learn a PCA whitening on these embeddings and keep it in this .safetensors file, for evaluate "
        "--whitening and export --whitening.",
    )
    @click.option(
        "--whitening-power",
        type=click.FloatRange(0, 1),
        help="Exponent of the variances: 0.5 whitens fully, 0.25 is the listwise AP paper's square root. "
        "[default: 0.5]",
    )
    @click.option("--dry-run", is_flag=True, help="Say what would be read and written, then stop.")
    @view_options
    @_device_option
    @reading_options()
    @json_option
    def embed(
        data: str,
        split: str | None,
        out: Path,
        parts: int | None,
        fit_whitening: Path | None,
        whitening_power: float | None,
        dry_run: bool,
        device: str | None,
        as_json: bool,
        **given: Any,
    ) -> None:
        """Embed the images of a dataset with a trained model or any network: unit vectors, in the order of its index.

        Beside FILE.npy lies FILE.labels.parquet: key, split and labels, one row an embedding in the same order; hgld
        evaluate --embeddings FILE.npy --labels FILE.labels.parquet reads both. Images that cannot be read are left out
        and named in FILE.faults.csv. Under torchrun the processes share the work.
        """
        from hgld.data.dataset import open_dataset
        from hgld.training.inference.embedding import faults_file, labels_file, write_embeddings, writer_of

        writer_of(out)  # a wrong suffix is refused before any work
        _refuse_embedding(parts, fit_whitening, whitening_power)
        source, options = take_source(given), take_view_options(given)
        dataset = open_dataset(data, split)
        with progress_bars() as progress, open_embedder(source, device, options, data) as embedder:
            if dry_run:
                _say_plan(out, embedder, dataset, as_json=as_json)
                return
            if parts is not None:
                _embed_parts(out, parts, embedder, dataset, data, progress, as_json=as_json)
                return
            embedded = embedder.embed_readable(dataset, progress)
            if not embedder.processes.is_main:
                return
            write_embeddings(out, embedded.vectors, embedded.dataset, embedded.faults)
        if fit_whitening is not None:
            from hgld.evaluation.postprocess import Whitening

            power = 0.5 if whitening_power is None else whitening_power
            fitted_on = f"{dataset.manifest.name}, {split or 'all splits'}"
            Whitening.fit(embedded.vectors, fitted_on=fitted_on, power=power, complete=True).save(fit_whitening)
            echo(f"{fit_whitening}: a whitening learned on {fitted_on}", err=as_json)
        say_reduced(embedder.view_facts([dataset]))
        count, dim = embedded.vectors.shape
        unreadable, named = len(embedded.faults), str(faults_file(out))
        if unreadable:
            echo(f"images that could not be read and are left out: {unreadable}; {named} names them", err=True)
        if as_json:
            files = {"embeddings": str(out), "labels": str(labels_file(out)), "faults": named if unreadable else None}
            sizes = {"items": count, "unreadable": unreadable, "dimensions": dim}
            made = {} if embedder.gem_p is None else {"gem_p": embedder.gem_p}
            made |= {"checkpoint": embedder.checkpoint, "selection": embedder.selection} if embedder.checkpoint else {}
            print_json({**files, **sizes, "levels": list(dataset.levels), **made})
        else:
            pooled = "" if embedder.gem_p is None else f", GeM's p {embedder.gem_p:g}"
            echo(f"{out}: {count} embeddings of {dim} dimensions{pooled}; keys and labels: {labels_file(out)}")
            say_selection(embedder.checkpoint, embedder.selection)
            _say_next(out, data, dataset)

    return embed


def _refuse_embedding(parts: int | None, fit_whitening: Path | None, whitening_power: float | None) -> None:
    if whitening_power is not None and fit_whitening is None:
        raise click.UsageError("--whitening-power goes with --fit-whitening, which is not given.")
    if parts is not None and fit_whitening is not None:
        raise click.UsageError("--fit-whitening goes without --parts.")


def _say_next(out: Path, data: str, dataset: "ShardDataset") -> None:
    """Print how these embeddings are evaluated, where queries search another split with those of both."""
    from hgld.training.inference.embedding import labels_file

    if dataset.split == "query":
        say_next("hgld", "embed", "--checkpoint", "RUN", "--data", data, "--split", "gallery", "--out", "GALLERY.npy")
    elif dataset.split == "gallery":
        say_next("hgld", "evaluate", "--embeddings", "QUERY.npy", "--gallery-embeddings", out, "--data", data)
    elif dataset.split is None and dataset.manifest.protocol:
        say_next("hgld", "evaluate", "--embeddings", out, "--data", data)
    else:
        labels = ("--labels", labels_file(out), "--levels", ",".join(dataset.levels))
        say_next("hgld", "evaluate", "--embeddings", out, *labels)


def _say_plan(out: Path, embedder: "Embedder", dataset: "ShardDataset", *, as_json: bool) -> None:
    """Say how many bytes would be read and written; the first images, one of which can be read, tell the dimensions."""
    import shutil

    from hgld.files import existing_parent

    dim = embedder.embed_readable(dataset.select(range(min(len(dataset), _TRIED)))).vectors.shape[1]
    if not embedder.processes.is_main:
        return
    plan = {
        "images": len(dataset),
        "read_bytes": int(dataset.places[3].sum()),
        "dimensions": dim,
        "write_bytes": 4 * dim * len(dataset),
        "free_bytes": shutil.disk_usage(existing_parent(out)).free,
    }
    if as_json:
        print_json({"out": str(out)} | plan)
        return
    echo(
        f"{out}: {plan['images']:,} images, {plan['read_bytes'] / 1e6:,.1f} MB to read; {dim} dimensions, "
        f"{plan['write_bytes'] / 1e6:,.1f} MB to write (float32); {plan['free_bytes'] / 1e9:,.1f} GB free. Nothing was "
        "written."
    )


def _embed_parts(
    out: Path,
    count: int,
    embedder: "Embedder",
    dataset: "ShardDataset",
    data: str,
    progress: "Progress",
    *,
    as_json: bool,
) -> None:
    from hgld.training.inference.embedding import labels_file
    from hgld.training.inference.embedding_parts import embed_in_parts

    def say(text: str) -> None:
        echo(text, err=as_json)

    joined = embed_in_parts(out, count, embedder, dataset, progress, say)
    if joined is None:
        return
    items, dim = joined.shape
    if as_json:
        files = {"embeddings": str(out), "labels": str(labels_file(out))}
        print_json({**files, "items": items, "unreadable": joined.unreadable, "dimensions": dim})
    else:
        echo(f"{out}: {items} embeddings of {dim} dimensions; keys and labels: {labels_file(out)}")
        _say_next(out, data, dataset)


def export_command() -> click.Command:
    @click.command()
    @_checkpoint_option
    @click.option(
        "--which", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Checkpoint of the run."
    )
    @click.option(
        "--out",
        type=NewFile(),
        required=True,
        help="ONNX file to write.",
    )
    @click.option(
        "--whitening",
        type=EXISTING_FILE,
        help="Whiten the vectors (a file of embed --fit-whitening), and give the scores of the run's classifier as "
        "well, into which the whitening is folded.",
    )
    @json_option
    def export(
        checkpoint: Path, which: Literal["best", "last"], out: Path, whitening: Path | None, as_json: bool
    ) -> None:
        """Write a trained model as one ONNX file that runs without hgld: RGB values in, unit vectors out.

        Beside FILE lies FILE.json: the size of the images and how they are to be prepared. What is written is run and
        held against the model first.
        """
        from hgld.training.inference.export import export_model

        record = export_model(checkpoint, out, which, whitening)
        told = read_json(record)
        if as_json:
            facts = {name: told[name] for name in ("checkpoint", "selection")}
            print_json({"model": str(out), "description": str(record)} | facts)
        else:
            echo(f"{out}: how to prepare images: {record}")
            say_selection(told["checkpoint"], told["selection"])

    return export
