"""The verbs that measure: evaluate."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import Expansion, Names, Numbers, json_option
from hgld.cli.shown import print_json, progress_bars
from hgld.errors import StorageError

if TYPE_CHECKING:
    from hgld.report import Comparison, RetrievalReport

_THIS = "this"  # what a comparison calls the evaluation that was just made


def evaluate_command() -> click.Command:
    any_file = click.Path(path_type=Path, dir_okay=False)

    @click.command()
    @click.option("--embeddings", type=any_file, required=True, help="Embeddings: .npy, .safetensors or .parquet.")
    @click.option("--labels", type=any_file, required=True, help="Labels, one row an embedding: .parquet or .csv.")
    @click.option("--levels", type=Names(), required=True, help="Columns of the labels, finest level first.")
    @click.option("--gallery-embeddings", type=any_file, help="The gallery; without it every item queries the rest.")
    @click.option("--gallery-labels", type=any_file, help="The gallery's labels.")
    @click.option("--distractors", type=any_file, help="Embeddings of gallery items that match nothing.")
    @click.option("--metrics", type=Names(), help="R@1, AP/LEVEL, mAP@R, H-AP, NDCG, ASI, ... [default: these six]")
    @click.option("--alpha", type=float, default=1.0, show_default=True, help="Exponent of the relevance of a level.")
    @click.option(
        "--relevance",
        type=click.Choice(["population", "total", "weighted_ap", "exponential"]),
        default="population",
        show_default=True,
        help="What a shared level is worth in H-AP.",
    )
    @click.option(
        "--count-query/--no-count-query",
        default=True,
        show_default=True,
        help="Count the query in its own class, as published H-AP does; it is never ranked.",
    )
    @click.option("--weights", type=Numbers(), help="Of the levels in wAP and weighted_ap, coarsest first; else equal.")
    @click.option(
        "--normalize/--no-normalize", default=True, show_default=True, help="Cosine similarities, or dot products."
    )
    @click.option("--whitening", type=any_file, help="A whitening to apply first (hgld.postprocess.Whitening).")
    @click.option("--query-expansion", type=Expansion(), help="Alpha query expansion; the papers take 2,10.")
    @click.option("--device", help="cpu, cuda, ...; default: the CPU.")
    @click.option("--chunk-size", type=click.IntRange(min=1), help="Queries at a time; default: by the free memory.")
    @click.option("--out", type=any_file, help="Keep the report: .json (with its per-query table), .md, .html or .tex.")
    @click.option(
        "--against",
        type=any_file,
        multiple=True,
        help="A report kept by --out X.json, to compare with; several times: all with the first.",
    )
    @json_option
    def evaluate(
        embeddings: Path,
        labels: Path,
        metrics: tuple[str, ...] | None,
        out: Path | None,
        against: tuple[Path, ...],
        as_json: bool,
        **given: Any,
    ) -> None:
        """Evaluate embeddings at every level of their labels.

        --against says with confidence intervals and a paired test whether a difference to earlier reports is real.
        """
        from hgld.evaluate_files import evaluate_files
        from hgld.evaluator import DEFAULT_METRICS

        save, earlier = _saver(out), _load_reports(against)
        with progress_bars() as progress:
            report = evaluate_files(embeddings, labels, metrics=metrics or DEFAULT_METRICS, progress=progress, **given)
        save(report)
        comparison = _compare(earlier, report)
        if as_json:
            print_json(report.to_dict() | ({} if comparison is None else {"comparison": comparison.to_dict()}))
        else:
            click.echo(report.to_markdown() + ("" if comparison is None else f"\n{comparison.to_markdown()}"))

    return evaluate


def _load_reports(files: tuple[Path, ...]) -> "dict[str, RetrievalReport]":
    """Kept reports by the names of their files; bad ones are refused before any work."""
    if not files:
        return {}
    from hgld.report import RetrievalReport

    names = [file.stem for file in files]
    if _THIS in names or len(set(names)) != len(names):
        raise click.UsageError(
            f"--against: the reports are named {', '.join(names)}; expected different names, none of them {_THIS!r}."
        )
    return {name: RetrievalReport.load_json(file) for name, file in zip(names, files, strict=True)}


def _compare(earlier: "dict[str, RetrievalReport]", report: "RetrievalReport") -> "Comparison | None":
    from hgld.report import compare

    return compare({**earlier, _THIS: report}) if earlier else None


def _saver(out: Path | None) -> "Callable[[RetrievalReport], None]":
    """How a report is kept, by the suffix of its file; a wrong one is refused before any work."""
    writers: dict[str, Callable[[RetrievalReport, Path], object]] = {
        ".json": lambda report, path: report.save_json(path),
        ".md": lambda report, path: path.write_text(report.to_markdown(), encoding="utf-8"),
        ".html": lambda report, path: path.write_text(report.to_html(), encoding="utf-8"),
        ".tex": lambda report, path: path.write_text(report.to_latex_row(path.stem) + "\n", encoding="utf-8"),
    }
    if out is None:
        return lambda report: None
    write = writers.get(out.suffix)
    if write is None:
        raise click.UsageError(f"--out {out}: expected a file that ends in {', '.join(writers)}.")

    def save(report: "RetrievalReport") -> None:
        try:
            write(report, out)
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror or error}. Choose another --out.") from error

    return save
