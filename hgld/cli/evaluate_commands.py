"""The evaluate subcommand: metrics of models, or of embeddings in files; several models make a leaderboard."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.models import (
    ModelOptions,
    SeenOptions,
    ViewOptions,
    open_embedder,
    refuse_view,
    say_selection,
    say_warnings,
)
from hgld.cli.options import ReadingOptions, verb
from hgld.cli.output import echo, print_json, progress_bars, say_next, text_table, write_result
from hgld.errors import HgldError, storage_errors
from hgld.evaluation.options import DEFAULT_METRICS, EvaluationOptions
from hgld.evaluation.protocols import protocol_names
from hgld.evaluation.trained_on import TRAINED_ON
from hgld.settings import options_of, setting

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset
    from hgld.evaluation.report import RetrievalReport
    from hgld.training.evaluation import RetrievalTask, SplitEmbedder
    from hgld.training.inference.embedder import Spent
    from hgld.training.models.networks import Network

_PIXELS = "raw pixels, 32 px"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of ``hgld evaluate``: the data to evaluate on and the files to write."""

    embeddings: Path | None = setting(None, "Embeddings: .npy or .safetensors.")
    labels: Path | None = setting(None, "Table of labels, one row per embedding: .parquet or .csv.")
    levels: tuple[str, ...] = setting(
        (), "Columns of --labels, or levels of --data, finest first.  [default: all levels of --data]"
    )
    gallery_embeddings: Path | None = setting(
        None, "Embeddings of the gallery: .npy or .safetensors.  [default: every item queries all others]"
    )
    gallery_labels: Path | None = setting(None, "Table of labels for --gallery-embeddings.", common=False)
    data: str | None = setting(None, "Dataset to evaluate models on: its directory or URL.")
    protocol: str | None = setting(
        None,
        "Evaluation protocol for --data, if no split is given.  [default: the dataset's own]",
        offered=protocol_names,
        common=False,
    )
    split: str | None = setting(None, "Split to evaluate leave-one-out: every image queries all others.")
    query_split: str | None = setting(
        None, "Split of the queries, if they search in another split (--gallery-split).", common=False
    )
    gallery_split: str | None = setting(None, "Split in which the queries of --query-split search.", common=False)
    distractors: Path | None = setting(
        None, "Embeddings of distractors: gallery items that match no query.", common=False
    )
    whitening: Path | None = setting(
        None, "Whitening to apply before the evaluation, written by hgld embed --fit-whitening.", common=False
    )
    out: Path | None = setting(
        None,
        "File for the report: .json (with a per-query table) or .md. For several models: .html, or a folder "
        "of reports for hgld report.",
        path="new",
    )

    @property
    def by_protocol(self) -> bool:
        """True if the dataset's protocol determines the queries and their gallery."""
        return self.data is not None and not (self.split or self.query_split or self.gallery_split)


@verb()
def evaluate(
    asked: EvaluateOptions,
    model: ModelOptions,
    options: EvaluationOptions,
    view: ViewOptions,
    reading: ReadingOptions,
    seen: SeenOptions,
    *,
    as_json: bool,
) -> int:
    """Evaluate models or embeddings, with a dataset's protocol or at every level of the labels.

    \b
    hgld evaluate --checkpoint RUN --data DIR                  with the dataset's own protocol
    hgld evaluate --model timm:NAME --data DIR --split test    every test image against all others
    hgld evaluate --embeddings E.npy --labels L.parquet --levels fine,coarse

    For a run, the report of a split is also written into the run's folder, unless options differ from the run's own
    settings. For several models the output is a leaderboard with confidence intervals, paired tests and a row for raw
    pixels. hgld report compares reports that --out wrote.
    """
    sources, out = model.sources(), asked.out
    if sources and asked.data is not None and asked.by_protocol and asked.protocol is None:
        from hgld.training.inference.model import default_split

        asked = replace(asked, split=default_split(asked.data))
    _refuse_contradictions(asked, options, view, is_model=bool(sources))
    if len(sources) > 1:
        smaller = {"truncate_dim": options.truncate_dim, "quantize": options.quantize}
        _refuse(smaller, "needs a single model; several models give a leaderboard")
        return _rank_models(sources, asked, view, options, seen, as_json)
    if out is not None and out.suffix not in (".json", ".md"):
        raise click.UsageError(f"--out {out}: expected a file that ends in .json or .md.")
    source, is_kept = sources[0] if sources else None, False
    with progress_bars() as progress:
        shown = replace(options, progress=progress)
        if source is None:
            report, measured = _measure_files(asked, shown), None
        elif (measured := _measure_model(source, asked, view, shown, seen)) is None:
            return 0
        else:
            report = measured[0]
    try:
        if out is not None and out.suffix == ".json":
            with storage_errors(f"write {out}", "Choose another --out."):
                out.parent.mkdir(parents=True, exist_ok=True)
                report.save_json(out)
        elif out is not None:
            write_result(out, report.to_markdown(), "--out")
        if measured is not None and isinstance(source, Path) and _is_runs_own_way(source, asked, view, options):
            is_kept = _keep_in_run(source, *measured)
    finally:  # print the report even if the file cannot be written
        if as_json:
            print_json(report.to_dict())
        else:
            echo(_smaller_table(report) + report.summary())
            say_selection(report.settings)
    kept = out if out is not None and out.suffix == ".json" else source if is_kept else None
    if asked.data is not None and isinstance(kept, Path) and not as_json:
        page = kept.with_suffix(".html") if kept is out else kept / "report.html"
        seen_too = ["--seen"] if seen.seen else []
        say_next("report", kept, "--data", asked.data, *seen_too, "--out", page, err=True)
    return 0


def _refuse_contradictions(
    asked: EvaluateOptions, options: EvaluationOptions, view: ViewOptions, *, is_model: bool
) -> None:
    """Raise an error if options contradict each other, before any work."""
    files = {name: getattr(asked, name) for name in ("embeddings", "labels", "gallery_embeddings", "gallery_labels")}
    splits = {name: getattr(asked, name) for name in ("split", "query_split", "gallery_split")}
    by_protocol = asked.by_protocol
    if is_model:
        _refuse(files, "cannot be combined with --checkpoint or --model; give either embeddings or a model")
    if by_protocol:
        fixed = {"levels": asked.levels, "gallery_labels": asked.gallery_labels}
        fixed |= {"truncate_dim": options.truncate_dim, "quantize": options.quantize}
        _refuse(fixed, "needs splits or files; a protocol determines the levels, labels and embeddings itself")
    else:
        _refuse(
            {"protocol": asked.protocol},
            "needs --data DIR and excludes split options, because a protocol determines the splits",
        )
    if is_model:
        given = tuple(map(bool, splits.values()))
        if asked.data is None or given not in ((False, False, False), (True, False, False), (False, True, True)):
            raise click.UsageError(
                "a model needs --data DIR, alone or with --split S, or with --query-split Q and --gallery-split G."
            )
        return
    refuse_view(view)
    if not by_protocol:
        _refuse({"data": asked.data, **splits}, "needs --checkpoint or --model; neither is given")
        missing = [name for name in ("embeddings", "labels", "levels") if not getattr(asked, name)]
        if missing:
            raise click.UsageError(
                f"missing --{', --'.join(missing)}. Or give a model (--checkpoint or --model) and --data."
            )
    elif asked.embeddings is None and asked.gallery_embeddings is None:
        raise click.UsageError("--data needs --checkpoint RUN, --model NETWORK or --embeddings of that dataset.")


def _refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise an error for the first of these options that is given."""
    for name, value in options.items():
        if value not in (None, ()):
            raise click.UsageError(f"--{name.replace('_', '-')} {why}.")


def _further_options(asked: EvaluateOptions, options: EvaluationOptions) -> dict[str, Any]:
    """Return the options that apply to evaluations of both files and models."""
    return {"options": options, "distractors": asked.distractors, "whitening": asked.whitening}


def _measure_files(asked: EvaluateOptions, options: EvaluationOptions) -> "RetrievalReport":
    """Evaluate embeddings in files, and return the report."""
    from hgld.evaluation.evaluate_files import evaluate_dataset_files, evaluate_files

    more = _further_options(asked, options)
    if asked.data is not None:
        # If --metrics is not given, the protocol chooses the metrics.
        more["metrics"] = None if options.metrics is DEFAULT_METRICS else tuple(options.metrics)
        sides = [file for file in (asked.embeddings, asked.gallery_embeddings) if file is not None]
        return evaluate_dataset_files(sides, asked.data, asked.protocol or "", labels=asked.labels, **more)
    assert asked.embeddings is not None
    assert asked.labels is not None
    gallery = {name: getattr(asked, name) for name in ("gallery_embeddings", "gallery_labels")}
    return evaluate_files(asked.embeddings, asked.labels, levels=asked.levels, **gallery, **more)


def _measure_model(
    source: "Path | Network",
    asked: EvaluateOptions,
    view: ViewOptions,
    options: EvaluationOptions,
    seen: SeenOptions,
    spent: "Spent | None" = None,
) -> "tuple[RetrievalReport, SplitEmbedder, RetrievalTask] | None":
    """Evaluate a model; return report, embedded splits and task, or None on all processes but the main one."""
    from hgld.training.evaluation import RetrievalTask, SplitEmbedder, evaluate_task

    assert asked.data is not None
    trained_on = seen.check(source, _query_splits(asked.data, asked)) if isinstance(source, Path) else {}
    query = asked.split or asked.query_split or f"protocol={asked.protocol or ''}"
    task = RetrievalTask(asked.data, query, asked.gallery_split or "")
    with open_embedder(source, view, asked.data) as opened:
        embedder = replace(opened, spent=spent)
        splits = SplitEmbedder(embedder, options.progress, asked.levels or None)
        report = evaluate_task(splits, task, **_further_options(asked, options))
        if spent is not None:
            spent.dimensions = embedder.model.dim
            spent.parameters = sum(one.numel() for one in embedder.model.parameters())
        is_main = embedder.processes.is_main
    if not is_main:
        return None
    if "unreadable" in report.settings:
        count, named = report.settings["unreadable"].values()
        echo(f"unreadable images, which are excluded: {count}; the first: {named[0]}", err=True)
    report = replace(report, settings=report.settings | trained_on)
    say_warnings(report.settings)
    return report, splits, task


def _query_splits(data: str, asked: EvaluateOptions) -> "list[ShardDataset]":
    """Return the splits whose items are queries."""
    from hgld.data.dataset import open_dataset
    from hgld.evaluation.protocols import protocol_of
    from hgld.evaluation.protocols.benchmark import open_benchmark

    if not asked.by_protocol:
        return [open_dataset(data, asked.split or asked.query_split)]
    name, _ = open_benchmark(data, asked.protocol or "")
    return [open_dataset(data, split) for split in protocol_of(name).queries]


def _is_runs_own_way(source: Path, asked: EvaluateOptions, view: ViewOptions, options: EvaluationOptions) -> bool:
    """Tell whether a run is evaluated on one split with the same options as during training."""
    is_plain = replace(options, progress=None, device=None, chunk_size=None) == EvaluationOptions()
    changed = (asked.distractors, asked.whitening, asked.levels or None, asked.gallery_split)
    speed = ("device", "batch_size", "workers", "amp")
    shown = all(getattr(view, name) == o.default for name, o in options_of(ViewOptions).items() if name not in speed)
    is_run = (source / "config.json").is_file() and (source / "checkpoints").is_dir()
    return is_run and is_plain and shown and not asked.by_protocol and not any(option is not None for option in changed)


def _keep_in_run(run: Path, report: "RetrievalReport", splits: "SplitEmbedder", task: "RetrievalTask") -> bool:
    """Write a report and the embeddings of its split into the run's folder; return whether they were written.

    A report on training images of the run is not written. If the folder is not writable, a warning is printed.
    """
    if TRAINED_ON in report.settings:
        return False
    from hgld.training.evaluation import keep_evaluation
    from hgld.training.runs import load_config

    if not os.access(run, os.W_OK):
        echo(f"{run}: this folder is not writable, so the report is not kept in it. Use --out to keep it.", err=True)
        return False
    return keep_evaluation(run, load_config(run / "config.json"), splits, task, report)


def _smaller_table(report: "RetrievalReport") -> str:
    """Return a table of the metrics of truncated and quantized embeddings, and their differences from full vectors."""
    from hgld.evaluation.report import markdown_table

    rows, metrics, full = [], [], report.values
    for name, label in (("truncate_dim", "first {}"), ("quantize", "{}")):
        for size, values in report.settings.get(name, {}).items():
            metrics = list(values)
            cells = [
                "-" if value is None else f"{value:.4f} ({value - full[metric]:+.4f})"
                for metric, value in values.items()
            ]
            rows.append([label.format(size), *cells])
    return markdown_table(["embedding", *metrics], rows) + "\n" if rows else ""


# -- several models ---------------------------------------------------------------------------------------------------


def _rank_models(
    sources: "list[Path | Network]",
    asked: EvaluateOptions,
    view: ViewOptions,
    options: EvaluationOptions,
    seen: SeenOptions,
    as_json: bool,
) -> int:
    """Evaluate models one after another, and print and write their leaderboard; a model that fails is skipped.

    Returns:
        the exit code: 2 (bad input) if a model of the user failed.
    """
    from hgld.cli import EXIT_BAD_INPUT
    from hgld.cli.report_commands import print_scores
    from hgld.distributed import is_main_process
    from hgld.report_page.scores import best_first
    from hgld.training.inference.embedder import Spent

    if asked.out is not None and asked.out.suffix not in (".html", ""):
        raise click.UsageError(
            f"--out {asked.out}: the leaderboard of several models can be a .html file or a folder of reports; "
            "--json prints it."
        )
    reports: dict[str, RetrievalReport] = {}
    models, failed, code = [], {}, 0
    # The view options apply to the user's models, not to the row of raw pixels.
    view_of_pixels = ViewOptions(batch_size=view.batch_size, workers=view.workers, device=view.device)
    for name, source in _name_models(sources).items():
        spent = Spent()
        try:
            with progress_bars() as progress:
                shown = view_of_pixels if name == _PIXELS else view
                measured = _measure_model(source, asked, shown, replace(options, progress=progress), seen, spent)
        except HgldError as error:
            failed[name] = " ".join(str(error).split())
            code = EXIT_BAD_INPUT if source in sources else code
            if is_main_process():
                echo(f"{name}: not evaluated: {failed[name]}", err=True)
            continue
        if measured is not None:
            report = measured[0]
            speed = round(spent.images / max(spent.seconds, 1e-9), 2)
            cost = {"dimensions": spent.dimensions, "parameters": spent.parameters, "images_per_second": speed}
            reports[name] = replace(report, settings=report.settings | cost)
            models.append({"model": name, **cost, "settings": report.settings})
    if not is_main_process():
        return code
    table = best_first(reports) if reports else None
    facts = {"models": models, "scores": table.rows if table else [], "failed": failed}
    ordered = {name: reports[name] for name in dict.fromkeys(row["run"] for row in facts["scores"])}
    try:
        if asked.out is not None:
            _write_leaderboard(asked.out, ordered, is_seen=seen.seen)
    finally:  # print the leaderboard even if the file cannot be written
        if as_json:
            print_json(facts)
        elif table:
            print_scores({asked.split or asked.query_split or "model": table}, ())
            costs = ("dimensions", "parameters", "images_per_second")
            rows = [[model["model"], *(f"{model[cost]:,}" for cost in costs)] for model in models]
            echo(text_table(["model", "dimensions", "parameters", "images/s (reading, decoding, embedding)"], rows))
    return code


def _write_leaderboard(out: Path, reports: "Mapping[str, RetrievalReport]", *, is_seen: bool) -> None:
    """Write the leaderboard as a page, or as a folder with one report per model."""
    with storage_errors(f"write {out}", "Choose another --out."), TemporaryDirectory() as temporary:
        folder = Path(temporary) if out.suffix else out
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{name.replace('/', '-')}.json" for name in reports]
        for file, report in zip(files, reports.values(), strict=True):
            report.save_json(file)
        if out.suffix:
            from hgld.report_page.page import make_report

            out.parent.mkdir(parents=True, exist_ok=True)
            make_report(files, out, title="Leaderboard", seen=is_seen)


def _name_models(sources: "list[Path | Network]") -> "dict[str, Path | Network]":
    """Return the models under distinct names, after the baseline of raw pixels, which is always added.

    Raises:
        click.UsageError: a model is given twice.
    """
    from hgld.training.models.networks import Network

    names = [source.name if isinstance(source, Network) else source.resolve().name for source in sources]
    # Raw pixels come first: the first model is slower, because the disk cache does not hold the images yet.
    named: dict[str, Path | Network] = {_PIXELS: Network("pixels")}
    for name, source in zip(names, sources, strict=True):
        if source == named[_PIXELS]:
            continue
        if names.count(name) > 1:
            name = f"{name}, {source.weights}" if isinstance(source, Network) else str(source)
        if name in named:
            raise click.UsageError(f"the model {name!r} is given twice; give it once.")
        named[name] = source
    return named
