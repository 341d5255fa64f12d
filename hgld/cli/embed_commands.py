"""The subcommands that use a trained model: embed, export."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from hgld.cli.models import ModelOptions, ViewOptions, open_embedder, say_selection, say_warnings
from hgld.cli.options import ReadingOptions, verb
from hgld.cli.output import echo, print_json, progress_bars, say_next
from hgld.files import read_json
from hgld.settings import setting

_FULL = 0.5  # exponent of full whitening


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Options of ``hgld embed``: the embeddings to compute and the files to write."""

    data: str = setting(..., "Dataset directory, or its URL.")
    split: str | None = setting(None, "Split of the dataset.  [default: all items]")
    out: Path = setting(..., ".npy file to write.", path="new")
    parts: int | None = setting(
        None,
        "Number of parts to split the work into. Each finished part is kept next to FILE.npy, so that the same "
        "command resumes after a stop.",
        least=1,
        most=9999,
    )
    fit_whitening: Path | None = setting(
        None,
        "File (.safetensors) for a PCA whitening learned from these embeddings, for evaluate --whitening.",
        path="new",
    )
    whitening_power: float = setting(
        _FULL,
        "Exponent of the whitening. 0.5: full whitening; 0.25: the square-root whitening of the listwise AP paper.",
        least=0,
        most=1,
    )


@verb()
def embed(
    asked: EmbedOptions, model: ModelOptions, view: ViewOptions, reading: ReadingOptions, *, as_json: bool
) -> None:
    """Embed the images of a dataset with a trained model or any network, as unit vectors in the dataset's order.

    FILE.labels.parquet next to FILE.npy has key, split and labels, one row per embedding in the same order. Unreadable
    images have no embedding; FILE.faults.csv lists them. Under torchrun the processes share the work.
    """
    from hgld.data.dataset import open_dataset
    from hgld.evaluation.postprocess import Whitening
    from hgld.evaluation.row_table import Sharing
    from hgld.training.inference.embedding import check_suffix, faults_file, labels_file, write_embeddings
    from hgld.training.inference.kept import embed_in_parts

    out, fit_whitening = asked.out, asked.fit_whitening
    check_suffix(out)
    if asked.whitening_power != _FULL and fit_whitening is None:
        raise click.UsageError("--whitening-power needs --fit-whitening, which is not given.")
    if asked.parts is not None and fit_whitening is not None:
        raise click.UsageError("--fit-whitening cannot be combined with --parts.")
    source = model.source()
    dataset = open_dataset(asked.data, asked.split)
    with progress_bars() as progress, open_embedder(source, view, asked.data, out.with_suffix(".rows")) as embedder:
        if asked.parts is not None:
            joined = embed_in_parts(out, asked.parts, embedder, dataset, progress, partial(echo, err=as_json))
            if joined is None:
                return
            count, dim, unreadable = joined
        else:
            embedded, processes = embedder.embed_readable(dataset, progress), embedder.processes
            if processes.is_main:
                write_embeddings(out, embedded.vectors, embedded.dataset, embedded.faults, made=embedded.file)
            fitted, fitted_on = None, f"{dataset.manifest.name}, {asked.split or 'all splits'}"
            if fit_whitening is not None:
                how = {"power": asked.whitening_power, "share": Sharing(processes, embedder.folder)}
                fitted = Whitening.fit(embedded.vectors, fitted_on=fitted_on, **how)
            if not processes.is_main:
                return
            (count, dim), unreadable = embedded.vectors.shape, len(embedded.faults)
            if fit_whitening is not None and fitted is not None:
                fitted.save(fit_whitening)
                echo(f"{fit_whitening}: a whitening learned on {fitted_on}", err=as_json)
    say_warnings(embedder.view_facts([dataset]))
    labels, faults = labels_file(out), str(faults_file(out))
    if unreadable:
        echo(f"unreadable images, which are excluded: {unreadable}; {faults} lists them", err=True)
    made: dict[str, Any] = {} if embedder.gem_p is None else {"gem_p": embedder.gem_p}
    if embedder.checkpoint:
        made |= {"checkpoint": embedder.checkpoint, "selection": embedder.selection}
    if as_json:
        files = {"embeddings": str(out), "labels": str(labels), "faults": faults if unreadable else None}
        sizes = {"items": count, "unreadable": unreadable, "dimensions": dim}
        print_json({**files, **sizes, "levels": list(dataset.levels), **made})
        return
    pooled = "" if embedder.gem_p is None else f", GeM's p {embedder.gem_p:g}"
    echo(f"{out}: {count} embeddings of {dim} dimensions{pooled}; keys and labels: {labels}")
    say_selection(made)
    of_pair = {"query": (out, "GALLERY.npy"), "gallery": ("QUERY.npy", out)}
    if dataset.split in of_pair:
        query, gallery = of_pair[dataset.split]
        say_next("evaluate", "--embeddings", query, "--gallery-embeddings", gallery, "--data", asked.data)
    elif dataset.split is None and dataset.manifest.protocol:
        say_next("evaluate", "--embeddings", out, "--data", asked.data)
    else:
        levels = ",".join(dataset.levels)
        say_next("evaluate", "--embeddings", out, "--labels", labels, "--levels", levels)


# -- export -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of ``hgld export``: the trained model to export, and the file to write."""

    checkpoint: Path = setting(
        ..., "Folder of a run of hgld train, or one of its checkpoints/step-N.", metavar="RUN", path="existing"
    )
    which: Literal["best", "last"] = setting("best", "Checkpoint of the run.", flag="checkpoint-choice")
    out: Path = setting(..., "ONNX file to write.", path="new")


@verb()
def export(asked: ExportOptions, *, as_json: bool) -> None:
    """Write a trained model as one ONNX file that runs without hgld: RGB values in, unit vectors out.

    FILE.json next to FILE states the image size and the preprocessing. The command runs the exported model and compares
    its vectors with the vectors of the original model.
    """
    from hgld.training.inference.export import export_model

    out = asked.out
    record = export_model(asked.checkpoint, out, asked.which)
    told = read_json(record)
    if as_json:
        facts = {name: told[name] for name in ("checkpoint", "selection")}
        print_json({"model": str(out), "description": str(record)} | facts)
    else:
        echo(f"{out}: image size and preprocessing: {record}")
        say_selection(told)
