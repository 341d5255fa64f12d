"""The evaluate subcommand: metrics of models, or of embeddings in files; several models make a leaderboard."""

import json
import os
from collections.abc import Callable, Mapping
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
    say_reduced,
    say_seen,
    say_selection,
)
from hgld.cli.options import ReadingOptions, verb
from hgld.cli.output import echo, print_json, progress_bars, say_next, text_table
from hgld.errors import HgldError, StorageError
from hgld.evaluation.options import DEFAULT_METRICS, EvaluationOptions
from hgld.evaluation.protocols import protocol_names
from hgld.evaluation.trained_on import TRAINED_ON
from hgld.files import write_atomic
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
    """Data to evaluate on and files to write."""

    embeddings: Path | None = setting(None, "Embeddings: .npy or .safetensors.")
    labels: Path | None = setting(None, "Labels, one row per embedding: .parquet or .csv.")
    levels: tuple[str, ...] = setting((), "Columns of the labels, finest first; levels of --data: default all.")
    gallery_embeddings: Path | None = setting(
        None, "Embeddings of the gallery. Default: every item queries the others."
    )
    gallery_labels: Path | None = setting(None, "Labels of the gallery.", common=False)
    data: str | None = setting(None, "Dataset to evaluate models on: directory, or its URL.")
    protocol: str | None = setting(
        None,
        "Protocol to evaluate --data by, if no splits are named.  [default: the dataset's own]",
        offered=protocol_names,
        common=False,
    )
    split: str | None = setting(None, "Split to evaluate leave-one-out: every image queries the others.")
    query_split: str | None = setting(None, "Split of the queries, if they search in another split.", common=False)
    gallery_split: str | None = setting(None, "Split that the queries search in.", common=False)
    distractors: Path | None = setting(None, "Embeddings of gallery items that match nothing.", common=False)
    whitening: Path | None = setting(None, "Whitening to apply first (embed --fit-whitening).", common=False)
    out: Path | None = setting(
        None,
        "File to keep the report in: .json (with its per-query table) or .md; for several models .json, .html, or a "
        "folder of reports for hgld report.",
        path="new",
    )

    @property
    def splits(self) -> dict[str, str | None]:
        """Splits by their options."""
        return {name: getattr(self, name) for name in ("split", "query_split", "gallery_split")}

    @property
    def by_protocol(self) -> bool:
        """True if a dataset's protocol says what queries what."""
        return self.data is not None and not any(self.splits.values())


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
    """Evaluate models or embeddings, by a dataset's protocol or at every level of the labels.

    \b
    hgld evaluate --checkpoint RUN --data DIR                  by the dataset's own protocol
    hgld evaluate --model timm:NAME --data DIR --split test    every test image against the others
    hgld evaluate --embeddings E.npy --labels L.parquet --levels fine,coarse

    A run keeps the report of a split in its folder, unless options change the run's own way of evaluating.
    Several models make a leaderboard with intervals and paired tests, raw pixels below; hgld report compares
    reports that --out kept.
    """
    sources = model.sources()
    asked = _with_split(asked) if sources else asked
    _refuse_contradictions(asked, options, view, is_model=bool(sources))
    if len(sources) > 1:
        _refuse(
            {"truncate-dim": options.truncate_dim, "quantize": options.quantize},
            "goes with one model; several make a leaderboard",
        )
        return _lead(sources, asked, view, options, seen, as_json)
    save, source = _saver(asked.out), sources[0] if sources else None
    measured: list[tuple[SplitEmbedder, RetrievalTask]] = []
    with progress_bars() as progress:
        shown = replace(options, progress=progress)
        report = _measure(source, asked, view, shown, seen, measured=measured)
    if report is None:
        return 0
    kept: list[Path] = []
    try:
        save(report)
        if isinstance(source, Path) and _is_as_the_run(source, asked, view, options):
            kept = _keep_in_run(source, *measured[0], report)
    finally:  # a report that cannot be written is printed all the same
        _show(report, as_json=as_json)
    out = asked.out
    if out is not None and out.suffix == ".json" and not as_json and asked.data:
        seen_too = ["--seen"] if seen.seen else []
        say_next("hgld", "report", out, "--data", asked.data, *seen_too, "--out", out.with_suffix(".html"), err=True)
    elif kept and not as_json:
        say_next("hgld", "report", *kept, "--data", asked.data, "--out", kept[0] / "report.html", err=True)
    return 0


def _with_split(asked: EvaluateOptions) -> EvaluateOptions:
    """Return the options with the split that a dataset without a protocol is evaluated on, if none is named."""
    if asked.data is None or not asked.by_protocol or asked.protocol is not None:
        return asked
    from hgld.training.inference.model import default_split

    return replace(asked, split=default_split(asked.data))


def _refuse_contradictions(
    asked: EvaluateOptions, options: EvaluationOptions, view: ViewOptions, *, is_model: bool
) -> None:
    """Refuse options that contradict each other, before any work."""
    files = {name: getattr(asked, name) for name in ("embeddings", "labels", "gallery_embeddings", "gallery_labels")}
    if not is_model:
        refuse_view(view)
    if is_model:
        _refuse(files, "cannot be combined with --checkpoint or --model; give one of the two")
    if asked.by_protocol:
        smaller = {"truncate-dim": options.truncate_dim, "quantize": options.quantize}
        _refuse(smaller, "goes with splits or files")
        _refuse({"levels": asked.levels}, "goes with splits or files: a protocol takes all levels")
        if not is_model:
            _refuse({"gallery_labels": asked.gallery_labels}, "has nothing to add: the dataset has its labels")
            if asked.embeddings is None and asked.gallery_embeddings is None:
                raise click.UsageError(
                    "--data needs --checkpoint RUN, --model NETWORK or --embeddings of that dataset."
                )
        return
    if asked.protocol is not None:
        raise click.UsageError("--protocol goes with --data DIR and without splits: it says itself what queries what.")
    if not is_model:
        _refuse({"data": asked.data, **asked.splits}, "goes with --checkpoint or --model; neither is given")
        missing = [name for name in ("embeddings", "labels", "levels") if not getattr(asked, name)]
        if missing:
            raise click.UsageError(f"missing --{', --'.join(missing)}; or give --checkpoint or --model, and --data.")
        return
    pair = (asked.query_split, asked.gallery_split)
    if asked.data is None or bool(asked.split) == any(pair) or any(pair) != all(pair):
        raise click.UsageError(
            "a model needs --data DIR, alone or with --split S, or with --query-split Q and --gallery-split G."
        )


def _refuse(options: Mapping[str, Any], why: str) -> None:
    for name, value in options.items():
        if value not in (None, ()):
            raise click.UsageError(f"--{name.replace('_', '-')} {why}.")


def _measure(
    source: "Path | Network | None",
    asked: EvaluateOptions,
    view: ViewOptions,
    options: EvaluationOptions,
    seen: SeenOptions,
    spent: "Spent | None" = None,
    measured: "list[tuple[SplitEmbedder, RetrievalTask]] | None" = None,
) -> "RetrievalReport | None":
    """Return the report of a model, or of files if there is none; None on other processes than the main one.

    ``measured`` gets the embedder of the splits and the task of a model, for a report that the run keeps.
    """
    metrics = None if options.metrics is DEFAULT_METRICS else tuple(options.metrics)
    more: dict[str, Any] = {"distractors": asked.distractors, "whitening": asked.whitening}
    if asked.by_protocol:
        more["metrics"] = metrics
    assert asked.data is not None or source is None
    if source is None:
        from hgld.evaluation.evaluate_files import evaluate_dataset_files, evaluate_files

        if asked.data is not None:
            sides = [file for file in (asked.embeddings, asked.gallery_embeddings) if file is not None]
            return evaluate_dataset_files(
                sides, asked.data, asked.protocol or "", labels=asked.labels, options=options, **more
            )
        assert asked.embeddings is not None
        assert asked.labels is not None
        gallery = {name: getattr(asked, name) for name in ("gallery_embeddings", "gallery_labels")}
        return evaluate_files(asked.embeddings, asked.labels, levels=asked.levels, options=options, **gallery, **more)
    from hgld.training.evaluation import (
        RetrievalTask,
        SplitEmbedder,
        evaluate_by_protocol,
        evaluate_task,
    )

    assert asked.data is not None
    trained_on = seen.check(source, _queries(asked.data, asked)) if isinstance(source, Path) else {}
    with open_embedder(source, view, asked.data) as opened:
        embedder = replace(opened, spent=spent)
        splits = SplitEmbedder(embedder, options.progress, asked.levels or None)
        task = RetrievalTask(asked.data, asked.split or asked.query_split or "", asked.gallery_split or "")
        if asked.by_protocol:
            report = evaluate_by_protocol(splits, asked.data, asked.protocol or "", options=options, **more)
        else:
            report = evaluate_task(splits, task, options=options, **more)
        if spent is not None:
            spent.dimensions = embedder.model.dim
        is_main = embedder.processes.is_main
    if not is_main:
        return None
    if "unreadable" in report.settings:
        count, named = report.settings["unreadable"].values()
        echo(f"images that could not be read and are left out: {count}; the first: {named[0]}", err=True)
    report = replace(report, settings=report.settings | trained_on)
    say_reduced(report.settings)
    say_seen(report.settings)
    if measured is not None:
        measured.append((splits, task))
    return report


def _is_as_the_run(source: Path, asked: EvaluateOptions, view: ViewOptions, options: EvaluationOptions) -> bool:
    """Tell whether a run's chosen checkpoint is evaluated on one split as the run evaluates its own splits."""
    plain = replace(options, progress=None, device=None, chunk_size=None) == EvaluationOptions()
    changed = (asked.distractors, asked.whitening, asked.levels or None, asked.gallery_split)
    speed = ("device", "batch_size", "workers", "amp")
    shown = all(getattr(view, name) == o.default for name, o in options_of(ViewOptions).items() if name not in speed)
    is_run = (source / "config.json").is_file() and (source / "checkpoints").is_dir()
    return is_run and plain and shown and not asked.by_protocol and not any(option is not None for option in changed)


def _keep_in_run(run: Path, splits: "SplitEmbedder", task: "RetrievalTask", report: "RetrievalReport") -> list[Path]:
    """Keep a report and the embeddings of its split in the run's folder; return the run if they were kept.

    Images that the run was trained on make no report of the run. A folder that cannot be written is a warning, since
    the report is printed all the same.
    """
    if TRAINED_ON in report.settings:
        return []
    from hgld.training.evaluation import keep_evaluation
    from hgld.training.runs import load_config

    if not os.access(run, os.W_OK):
        echo(f"{run}: this folder cannot be written, so that the report is not kept in it; --out keeps it.", err=True)
        return []
    return [run] if keep_evaluation(run, load_config(run / "config.json"), splits, task, report) else []


def _queries(data: str, asked: EvaluateOptions) -> "list[ShardDataset]":
    """Return the splits whose items query."""
    from hgld.data.dataset import open_dataset
    from hgld.evaluation.protocols import protocol_of
    from hgld.evaluation.protocols.benchmark import open_benchmark

    if not asked.by_protocol:
        return [open_dataset(data, asked.split or asked.query_split)]
    name, _ = open_benchmark(data, asked.protocol or "")
    return [open_dataset(data, split) for split in protocol_of(name).queries]


def _show(report: "RetrievalReport", *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
        return
    echo(_smaller_table(report) + report.summary())
    say_selection(str(report.settings.get("checkpoint", "")), str(report.settings.get("selection", "")))


def _smaller_table(report: "RetrievalReport") -> str:
    """Return a table of the values of truncated and quantized embeddings, with their differences to the whole."""
    from hgld.evaluation.report import markdown_table

    rows, metrics, whole = [], [], report.values
    for name, said in (("truncate_dim", "first {}"), ("quantize", "{}")):
        for of, values in report.settings.get(name, {}).items():
            metrics = list(values)
            cells = [
                "-" if value is None else f"{value:.4f} ({value - whole[metric]:+.4f})"
                for metric, value in values.items()
            ]
            rows.append([said.format(of), *cells])
    return markdown_table(["embedding", *metrics], rows) + "\n" if rows else ""


# -- reports that are kept ---------------------------------------------------------------------------------------------


def _saver(out: Path | None) -> "Callable[[RetrievalReport], None]":
    """Return the function that keeps a report; a wrong suffix is refused at once."""
    writers: dict[str, Callable[..., object]] = {
        ".json": lambda path, report: report.save_json(path),
        ".md": lambda path, report: write_atomic(path, report.to_markdown()),
    }
    return _writer(out, writers, "--out {out}: expected a file that ends in {suffixes}.")


def _writer(out: Path | None, writers: Mapping[str, Callable[..., object]], refusal: str) -> Callable[..., None]:
    """Return the function that writes a result to ``out`` by its suffix."""
    if out is None:
        return lambda *results: None
    write = writers.get(out.suffix)
    if write is None:
        raise click.UsageError(refusal.format(out=out, suffixes=", ".join(writers)))

    def save(*results: object) -> None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write(out, *results)
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror or error}. Choose another --out.") from error

    return save


# -- several models ---------------------------------------------------------------------------------------------------


def _lead(
    sources: "list[Path | Network]",
    asked: EvaluateOptions,
    view: ViewOptions,
    options: EvaluationOptions,
    seen: SeenOptions,
    as_json: bool,
) -> int:
    """Evaluate models one after another, and show and keep their leaderboard; one that fails does not cost the others.

    Returns:
        the exit code: that of bad input if a model failed that was named.
    """
    from hgld.cli import EXIT_BAD_INPUT
    from hgld.cli.report_commands import print_scores
    from hgld.distributed import is_main_process
    from hgld.report_page.scores import best_first
    from hgld.training.inference.embedder import Spent

    def write_page(page: Path, _: object, ordered: "Mapping[str, RetrievalReport]") -> None:
        from hgld.report_page.page import make_report

        with TemporaryDirectory() as folder:
            make_report(_write_reports(Path(folder), ordered), page, title="Leaderboard", seen=seen.seen)

    writers: dict[str, Callable[..., object]] = {
        ".json": lambda path, facts, _: write_atomic(
            path, json.dumps(facts, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        ),
        ".html": write_page,
        "": lambda folder, _, ordered: _write_reports(folder, ordered),
    }
    save = _writer(
        asked.out,
        writers,
        "--out {out}: the leaderboard of several models is written as .json or .html, or as a folder of reports.",
    )
    reports: dict[str, RetrievalReport] = {}
    models, failed, code = [], {}, 0
    for name, source in _named(sources).items():
        spent = Spent()
        # The options of a view are for the models that are named, not for the raw pixels beside them.
        own = ViewOptions(batch_size=view.batch_size, workers=view.workers, device=view.device)
        try:
            with progress_bars() as progress:
                shown = own if name == _PIXELS else view
                report = _measure(source, asked, shown, replace(options, progress=progress), seen, spent)
        except HgldError as error:
            failed[name] = " ".join(str(error).split())
            code = EXIT_BAD_INPUT if source in sources else code
            if is_main_process():
                echo(f"{name}: not evaluated: {failed[name]}", err=True)
            continue
        if report is not None:
            speed = round(spent.images / max(spent.seconds, 1e-9), 2)
            cost = {"dimensions": spent.dimensions, "images_per_second": speed}
            reports[name] = replace(report, settings=report.settings | cost)
            models.append({"model": name, **cost, "settings": report.settings})
    if not is_main_process():
        return code
    table = best_first(reports) if reports else None
    facts = {"models": models, "scores": table.rows if table else [], "failed": failed}
    ordered = dict.fromkeys(row["run"] for row in facts["scores"])
    try:
        save(facts, {name: reports[name] for name in ordered})
    finally:  # what cannot be kept is shown all the same
        if as_json:
            print_json(facts)
        elif table:
            print_scores({asked.split or asked.query_split or "model": table}, ())
            speeds = [[m["model"], str(m["dimensions"]), f"{m['images_per_second']:,.1f}"] for m in models]
            echo(text_table(["model", "dimensions", "images/s: read, decoded and embedded"], speeds))
    return code


def _write_reports(folder: Path, reports: "Mapping[str, RetrievalReport]") -> list[Path]:
    """Write a report per model into a folder, as ``hgld report`` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name.replace('/', '-')}.json" for name in reports]
    for file, report in zip(files, reports.values(), strict=True):
        report.save_json(file)
    return files


def _named(sources: "list[Path | Network]") -> "dict[str, Path | Network]":
    """Return models by their names, with raw pixels before them; what tells namesakes apart is added.

    Raises:
        click.UsageError: the same model twice.
    """
    from hgld.training.models.networks import Network

    named: dict[str, Path | Network] = {}
    plain = [source.name if isinstance(source, Network) else source.resolve().name for source in sources]
    named[_PIXELS] = Network("pixels")  # first, so that they find the files' cache as cold as it is
    for name, source in zip(plain, sources, strict=True):
        if source == named[_PIXELS]:
            continue
        told = name
        if plain.count(name) > 1:
            told = f"{name}, {source.weights}" if isinstance(source, Network) else str(source)
        if told in named:
            raise click.UsageError(f"the model {told!r} is named twice; name it once.")
        named[told] = source
    return named
