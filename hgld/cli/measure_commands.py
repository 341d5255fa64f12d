"""The verbs that measure and show results: evaluate, report."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.embed_commands import (
    open_embedder,
    refuse_view_options,
    say_reduced,
    say_selection,
    source_options,
    take_sources,
    take_view_options,
    view_options,
)
from hgld.cli.options import (
    FOLDER,
    Expansion,
    Names,
    NewFile,
    Numbers,
    OnceOption,
    WholeNumbers,
    complete_metrics,
    complete_protocols,
    json_option,
    reading_options,
)
from hgld.cli.output import echo, print_json, progress_bars, say_next
from hgld.errors import HgldError, StorageError
from hgld.files import write_atomic

if TYPE_CHECKING:
    from hgld.evaluation.options import EvaluationOptions
    from hgld.evaluation.report import Comparison, RetrievalReport
    from hgld.published import PublishedValue
    from hgld.report_page.leaderboard import Leaderboard
    from hgld.training.inference.embedder import Embedder, Spent
    from hgld.training.models.networks import Network


_OF_FILES = ("embeddings", "labels", "levels")  # needed by every evaluation of files
_SMALLER = ("prefixes", "codes")
_OPTIONS = (*_SMALLER, "alpha", "relevance", "count_query", "weights", "normalize", "chunk_size", "device")
_THIS = "this"  # name of the new evaluation in a comparison


def evaluate_command() -> click.Command:
    any_file = click.Path(path_type=Path, dir_okay=False)

    @click.command()
    @click.option("--embeddings", cls=OnceOption, type=any_file, help="Embeddings: .npy, .safetensors or .parquet.")
    @click.option("--labels", cls=OnceOption, type=any_file, help="Labels, one row an embedding: .parquet or .csv.")
    @click.option("--levels", type=Names(), help="Columns of the labels, finest first; of --data: default all.")
    @click.option(
        "--gallery-embeddings",
        cls=OnceOption,
        type=any_file,
        help="The gallery; without it every item queries the rest.",
    )
    @click.option("--gallery-labels", cls=OnceOption, type=any_file, help="The gallery's labels.")
    @source_options(several=True)
    @click.option("--data", help="What models are evaluated on: dataset directory, or its URL.")
    @click.option(
        "--protocol",
        shell_complete=complete_protocols,
        help="Protocol to evaluate --data by, where no splits are named. [default: the dataset's own]",
    )
    @click.option("--split", help="Split of it, in which every image queries the rest.")
    @click.option("--query-split", help="Split of the queries, where they search in another one.")
    @click.option("--gallery-split", help="Split that they search in.")
    @view_options
    @click.option("--distractors", type=any_file, help="Embeddings of gallery items that match nothing.")
    @click.option(
        "--metrics",
        type=Names(),
        shell_complete=complete_metrics,
        help="R@1, AP/LEVEL, mAP@R, H-AP, NDCG, ASI, ... [default: these six]",
    )
    @click.option("--alpha", type=float, default=1.0, show_default=True, help="Exponent of the relevance of a level.")
    @click.option(
        "--relevance",
        type=click.Choice(["population", "total", "weighted_ap", "exponential"]),
        default="population",
        show_default=True,
        help="Gain of a shared level in H-AP.",
    )
    @click.option(
        "--count-query/--no-count-query",
        default=True,
        show_default=True,
        help="Count the query in its own class, as published H-AP does; it is never ranked.",
    )
    @click.option(
        "--level-weights",
        "weights",
        type=Numbers(),
        help="Of the levels in wAP and weighted_ap, coarsest first; else equal.",
    )
    @click.option(
        "--normalize/--no-normalize", default=True, show_default=True, help="Cosine similarities, or dot products."
    )
    @click.option(
        "--whitening", type=any_file, help="A whitening to apply first (hgld.evaluation.postprocess.Whitening)."
    )
    @click.option("--query-expansion", type=Expansion(), help="Alpha query expansion; the papers take 2,10.")
    @click.option(
        "--prefix",
        "prefixes",
        type=WholeNumbers(),
        default=(),
        help="Sizes of prefixes of the embedding to measure as well, ascending: 32,64,128.",
    )
    @click.option(
        "--codes",
        type=Names(),
        default=(),
        metavar="int8,binary",
        help="Codes to measure as well, with the difference that they make in every metric.",
    )
    @click.option("--device", help="cpu, cuda, ...; default: the CPU; with a model a GPU if there is one.")
    @click.option("--chunk-size", type=click.IntRange(min=1), help="Queries at a time; default: by the free memory.")
    @click.option(
        "--out",
        type=NewFile(),
        help="Keep the report: .json (with its per-query table), .md, .html or .tex; of several models their "
        "leaderboard: .html, .md or .json.",
    )
    @click.option(
        "--against",
        type=any_file,
        multiple=True,
        help="A report kept by --out X.json, to compare with; several times: all with the first.",
    )
    @click.option(
        "--submission",
        type=NewFile(),
        help="Write what every query retrieves as the benchmark takes submissions (protocol gldv2).",
    )
    @reading_options()
    @json_option
    def evaluate(
        metrics: tuple[str, ...] | None,
        out: Path | None,
        against: tuple[Path, ...],
        as_json: bool,
        **given: Any,
    ) -> int:
        """Evaluate models, or embeddings of files, by a dataset's protocol or at every level of the labels.

        hgld evaluate --checkpoint RUN --data DIR measures a model by the dataset's own protocol, and with --split test
        every test image against the others; --model timm:NAME any network. Several models at once make a leaderboard:
        a table a level with intervals, paired tests, dimensions, images a second and raw pixels below. hgld evaluate
        --embeddings E.npy --data DIR takes embeddings that hgld embed wrote of the dataset, and --embeddings E.npy
        --labels L.parquet --levels fine,coarse any others. --against says with confidence intervals and a paired test
        whether a difference to earlier reports is real.
        """
        chosen: dict[str, Any] = {name: given.pop(name) for name in _OPTIONS}
        sources, given_data = take_sources(given), given["data"]
        alone = {"against": against or None, "submission": given.get("submission")}
        if given["data"] is not None and not any(given[name] for name in ("split", "query_split")):
            _refuse(
                {name: chosen[field] or None for name, field in zip(("prefix", "codes"), _SMALLER, strict=True)},
                "goes with splits or files",
            )
        measure = _measure(given, metrics, models=bool(sources))
        if len(sources) > 1:
            alone |= {"prefix": chosen["prefixes"] or None, "codes": chosen["codes"] or None}
            _refuse(alone, "goes with one model; several make a leaderboard")
            return _lead(sources, measure, chosen, out, as_json)
        save, earlier = _saver(out), _load_reports(against)
        from hgld.evaluation.options import EvaluationOptions

        with progress_bars() as progress:
            report = measure(*sources, options=EvaluationOptions(**chosen, progress=progress))
        if report is None:
            return 0
        try:
            comparison = _compare(earlier, report)
        except HgldError:
            save(report, None)  # it cannot be compared, but it can be kept
            raise
        try:
            save(report, comparison)
        finally:  # what cannot be kept is shown all the same
            _show(report, comparison, as_json)
        if out is not None and out.suffix == ".json" and not as_json and given_data:
            say_next("hgld", "report", out, "--data", given_data, "--out", out.with_suffix(".html"), err=True)
        return 0

    return evaluate


def _show(report: "RetrievalReport", comparison: "Comparison | None", as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict() | ({} if comparison is None else {"comparison": comparison.to_dict()}))
    else:
        echo(
            _smaller_tables(report)
            + report.to_markdown()
            + ("" if comparison is None else f"\n{comparison.to_markdown()}")
        )
        say_selection(str(report.settings.get("checkpoint", "")), str(report.settings.get("selection", "")))


def _smaller_tables(report: "RetrievalReport") -> str:
    """Return tables of the values of prefixes and codes, with their differences to the whole vector's."""
    from hgld.evaluation.report import markdown_table

    rows, whole = [], report.values
    for name, said in (("prefixes", "first {}"), ("codes", "{}")):
        for of, values in report.settings.get(name, {}).items():
            known = {metric: value for metric, value in values.items() if value is not None}
            cells = [f"{known[m]:.4f} ({known[m] - whole[m]:+.4f})" if m in known else "-" for m in values]
            rows.append([said.format(of), *cells])
    if not rows:
        return ""
    metrics = list(next(iter(next(report.settings[n] for n in _SMALLER if n in report.settings).values())))
    return markdown_table(["embedding", *metrics], rows) + "\n"


def _measure(
    given: dict[str, Any], metrics: tuple[str, ...] | None, *, models: bool
) -> "Callable[..., RetrievalReport | None]":
    """Return the measurement that the flags ask for, of a model that it is given or of files.

    Contradictions are refused before any work.
    """
    files = {name: given.pop(name) for name in ("embeddings", "labels", "gallery_embeddings", "gallery_labels")}
    splits = {name: given.pop(name) for name in ("split", "query_split", "gallery_split")}
    place, protocol = given.pop("data"), given.pop("protocol")
    if place is not None and not any(splits.values()):
        _refuse({"levels": given.pop("levels")}, "goes with splits or files: a protocol takes all levels")
        return _measure_protocol(place, protocol or "", files, {"metrics": metrics, **given}, models=models)
    _refuse({"submission": given.pop("submission")}, "goes with --data DIR and without splits, by the protocol gldv2")
    if protocol is not None:
        raise click.UsageError("--protocol goes with --data DIR and without splits: it says itself what queries what.")
    if not models:
        _refuse({"data": place, **splits}, "goes with --checkpoint or --model; neither is given")
        refuse_view_options(given)
        missing = [name for name, value in {**files, **given}.items() if name in _OF_FILES and value is None]
        if missing:
            raise click.UsageError(f"missing --{', --'.join(missing)}; or give --checkpoint or --model, and --data.")
        return partial(_measure_files, metrics=metrics, **files, **given)
    _refuse(files, "cannot be combined with --checkpoint or --model; give one of the two")
    alone, pair = splits["split"], (splits["query_split"], splits["gallery_split"])
    if place is None or bool(alone) == any(pair) or any(pair) != all(pair):
        raise click.UsageError(
            "a model needs --data DIR, alone or with --split S, or with --query-split Q and --gallery-split G."
        )
    query, gallery = alone or pair[0], pair[1] or ""
    view = take_view_options(given)
    return partial(_measure_model, place, view, partial(_on_splits, place, query, gallery, metrics=metrics, **given))


def _measure_protocol(
    place: str, protocol: str, files: dict[str, Any], given: dict[str, Any], *, models: bool
) -> "Callable[..., RetrievalReport | None]":
    """Return the measurement by a dataset's protocol, of a model or of embeddings of the dataset."""
    if models:
        _refuse(files, "cannot be combined with --checkpoint or --model; give one of the two")
        view = take_view_options(given)
        return partial(_measure_model, place, view, partial(_by_protocol, place, protocol, **given))
    refuse_view_options(given)
    _refuse({"gallery_labels": files.pop("gallery_labels")}, "has nothing to add: the dataset has its labels")
    sides = [file for file in (files.pop("embeddings"), files.pop("gallery_embeddings")) if file is not None]
    if not sides:
        raise click.UsageError("--data needs --checkpoint RUN, --model NETWORK or --embeddings of that dataset.")
    return partial(_protocol_of_files, sides, place, protocol, **files, **given)


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} {why}.")


def _measure_files(
    embeddings: Path, labels: Path, options: "EvaluationOptions", metrics: tuple[str, ...] | None, **given: Any
) -> "RetrievalReport":
    from hgld.evaluation.evaluate_files import evaluate_files

    return evaluate_files(embeddings, labels, options=_asking(options, metrics), **given)


def _asking(options: "EvaluationOptions", metrics: tuple[str, ...] | None) -> "EvaluationOptions":
    return options if metrics is None else replace(options, metrics=metrics)


def _protocol_of_files(
    embeddings: list[Path],
    place: str,
    protocol: str,
    options: "EvaluationOptions",
    query_expansion: tuple[float, int] | None,
    **given: Any,
) -> "RetrievalReport":
    from hgld.evaluation.evaluate_files import evaluate_dataset_files

    options = replace(options, query_expansion=query_expansion)
    return evaluate_dataset_files(embeddings, place, protocol, options=options, **given)


def _measure_model(
    place: str,
    view: dict[str, Any],
    evaluate: "Callable[..., RetrievalReport | None]",
    source: "Path | Network",
    options: "EvaluationOptions",
    spent: "Spent | None" = None,
    dimensions: list[int] | None = None,
    pixels: bool = False,
) -> "RetrievalReport | None":
    """Return the report of a model; None on all processes of torchrun but the main one.

    ``spent`` and ``dimensions`` take what embedding took, and the embedding's dimensions; ``pixels``: the model is raw
    pixels beside others, whose flags are not for it.
    """
    device = None if options.device is None else str(options.device)
    here = {name: value for name, value in view.items() if not pixels or name in ("batch_size", "workers")}
    with open_embedder(source, device, here, place) as embedder:
        report = evaluate(replace(embedder, spent=spent), options=options)
        if dimensions is not None:
            dimensions.append(embedder.model.dim)
        is_main = embedder.processes.is_main
    return _unreadable_said(report) if is_main and report is not None else None


def _by_protocol(
    place: str,
    protocol: str,
    embedder: "Embedder",
    options: "EvaluationOptions",
    query_expansion: tuple[float, int] | None,
    **given: Any,
) -> "RetrievalReport":
    from hgld.training.evaluation import SplitEmbedder, evaluate_by_protocol

    options = replace(options, query_expansion=query_expansion)
    splits = SplitEmbedder(embedder, options.progress)
    return evaluate_by_protocol(splits, place, protocol, options=options, **given)


def _on_splits(
    place: str,
    query: str,
    gallery: str,
    embedder: "Embedder",
    options: "EvaluationOptions",
    metrics: tuple[str, ...] | None,
    **given: Any,
) -> "RetrievalReport | None":
    from hgld.training.evaluation import RetrievalTask, evaluate_trained

    return evaluate_trained(embedder, RetrievalTask(place, query, gallery), options=_asking(options, metrics), **given)


def _unreadable_said(report: "RetrievalReport") -> "RetrievalReport":
    if "unreadable" in report.settings:
        count, named = report.settings["unreadable"].values()
        echo(f"images that could not be read and are left out: {count}; the first: {named[0]}", err=True)
    say_reduced({} if report is None else report.settings)
    return report


def _load_reports(files: tuple[Path, ...]) -> "dict[str, RetrievalReport]":
    """Load kept reports, by the names of their files; bad ones are refused before any work."""
    if not files:
        return {}
    from hgld.evaluation.report import RetrievalReport

    names = [file.stem for file in files]
    if _THIS in names or len(set(names)) != len(names):
        raise click.UsageError(
            f"--against: the reports are named {', '.join(names)}; expected different names, none of them {_THIS!r}."
        )
    return {name: RetrievalReport.load_json(file) for name, file in zip(names, files, strict=True)}


def _compare(earlier: "dict[str, RetrievalReport]", report: "RetrievalReport") -> "Comparison | None":
    from hgld.evaluation.report import compare

    return compare({**earlier, _THIS: report}) if earlier else None


def _saver(out: Path | None) -> "Callable[[RetrievalReport, Comparison | None], None]":
    """Return the function that keeps a report, by the suffix of its file; a wrong one is refused before any work."""
    writers: dict[str, Callable[[RetrievalReport, Comparison | None, Path], object]] = {
        ".json": lambda report, _, path: report.save_json(path),
        ".md": lambda report, _, path: write_atomic(path, report.to_markdown()),
        ".html": lambda report, _, path: write_atomic(path, report.to_html()),
        ".tex": lambda report, comparison, path: write_atomic(path, _latex(report, comparison, path)),
    }
    if out is None:
        return lambda report, comparison: None
    write = writers.get(out.suffix)
    if write is None:
        raise click.UsageError(f"--out {out}: expected a file that ends in {', '.join(writers)}.")

    def save(report: "RetrievalReport", comparison: "Comparison | None") -> None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write(report, comparison, out)
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror or error}. Choose another --out.") from error

    return save


def _latex(report: "RetrievalReport", comparison: "Comparison | None", path: Path) -> str:
    """Return a row of the report; with a comparison one of every report, with significant differences marked."""
    return report.to_latex_row(path.stem) + "\n" if comparison is None else comparison.to_latex()


# -- several models ---------------------------------------------------------------------------------------------------

_PIXELS = "raw pixels, 32 px"


def _lead(
    sources: "list[Path | Network]",
    measure: "Callable[..., RetrievalReport | None]",
    chosen: dict[str, Any],
    out: Path | None,
    as_json: bool,
) -> int:
    """Evaluate models one after another, and show and keep their leaderboard; one that fails does not cost the others.

    Returns:
        the exit code: that of bad input if a model failed that was named.
    """
    from hgld.cli import EXIT_BAD_INPUT
    from hgld.distributed import is_main_process
    from hgld.evaluation.options import EvaluationOptions
    from hgld.report_page.leaderboard import Entry, leaderboard
    from hgld.training.inference.embedder import Spent

    save, named = _board_saver(out), _named(sources)
    entries, failed = [], {}
    for name, source in named.items():
        spent, dimensions = Spent(), []
        try:
            with progress_bars() as progress:
                asked = EvaluationOptions(**chosen, progress=progress)
                pixels = name == _PIXELS
                report = measure(source, options=asked, spent=spent, dimensions=dimensions, pixels=pixels)
        except HgldError as error:
            failed[name] = " ".join(str(error).split())
            if is_main_process():
                echo(f"{name}: not evaluated: {failed[name]}", err=True)
            continue
        if report is not None:
            entries.append(Entry(name, report, dimensions[0], spent.images / max(spent.seconds, 1e-9)))
    code = EXIT_BAD_INPUT if any(named[name] in sources for name in failed) else 0
    if not is_main_process():
        return code
    board = leaderboard(entries, failed)
    try:
        save(board)
    finally:  # what cannot be kept is shown all the same
        if as_json:
            print_json(board.to_dict())
        else:
            echo(board.to_markdown())
    return code


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


def _board_saver(out: Path | None) -> "Callable[[Leaderboard], None]":
    """Return the function that keeps a leaderboard, by the suffix of its file; a wrong one is refused at once."""
    writers: dict[str, Callable[[Leaderboard], str]] = {
        ".html": lambda board: board.to_html(),
        ".md": lambda board: board.to_markdown(),
        ".json": lambda board: json.dumps(board.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n",
    }
    if out is None:
        return lambda board: None
    text_of = writers.get(out.suffix)
    if text_of is None:
        raise click.UsageError(f"--out {out}: the leaderboard of several models is written as {', '.join(writers)}.")

    def save(board: "Leaderboard") -> None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(out, text_of(board))
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror or error}. Choose another --out.") from error

    return save


# -- report -----------------------------------------------------------------------------------------------------------


def _published_of(recipe: str) -> "Sequence[PublishedValue]":
    """Return the published values of a recipe; none of a name that is no recipe of this installation."""
    from hgld.training.recipes import RECIPES

    return RECIPES[recipe].values if recipe in RECIPES else ()


def report_command() -> click.Command:
    @click.command()
    @click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path, exists=True))
    @click.option("--out", type=NewFile(), help="The page: one HTML file.")
    @click.option(
        "--paper",
        "papers",
        multiple=True,
        metavar="TABLE",
        help='Print this table of a paper, for instance "SupRank Table V", with the runs in it. Repeatable.',
    )
    @click.option("--data", metavar="DIR|URL", help="Dataset: images of the galleries, names of the classes.")
    @click.option("--plots", type=FOLDER, help="Keep every figure in this folder too, as PNG and SVG.")
    @click.option("--baseline", help="Name of the run that the others are compared with. [default: the first]")
    @click.option("--title", default="Retrieval report", show_default=True, help="Of the page.")
    @reading_options()
    @json_option
    def report(runs: tuple[Path, ...], out: Path | None, papers: tuple[str, ...], as_json: bool, **given: Any) -> None:
        """Show results as one HTML page that needs no network, or in a paper's table.

        RUN is a folder of `hgld train`, or a report that `hgld evaluate --out X.json` kept; its curves, maps and
        galleries need the embeddings: in RUN/embeddings, or beside X.json. The first RUN is what the others are
        compared with.
        """
        from hgld.cli.published_commands import print_tables
        from hgld.report_page.page import paper_tables, write_report_page
        from hgld.report_page.runs import read_runs

        if out is None and not papers:
            raise click.UsageError("name the page to write (--out), or a paper's table to print (--paper).")
        if out is None:
            tables = paper_tables(read_runs(runs), papers, _published_of)
            if as_json:
                print_json({"papers": [asdict(table) for table in tables]})
            else:
                print_tables(tables)
            return
        with progress_bars() as progress:
            facts = write_report_page(runs, out, papers=papers, published_of=_published_of, progress=progress, **given)
        for note in facts.notes:
            echo(note, err=True)
        if as_json:
            print_json(asdict(facts))
            return
        print_tables(facts.papers)
        echo(f"{facts.out}: {facts.bytes / 1e6:.1f} MB, runs: {len(facts.runs)}, pictures: {facts.pictures}")
        for reason in facts.unreadable[:3]:
            echo(f"not shown: {reason}", err=True)
        if given["data"] is not None:
            trained = next((run for run in runs if run.is_dir()), "RUN")
            say_next("hgld", "search", "PHOTO.jpg", "--checkpoint", trained, "--data", given["data"])

    return report
