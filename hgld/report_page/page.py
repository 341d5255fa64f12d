"""The report page: one HTML file with everything in it, and its plots as files of their own."""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from hgld import __version__
from hgld.errors import ConfigError, StorageError
from hgld.report_page.curves import draw_training
from hgld.report_page.figures import GRADES, SERIES, Figures
from hgld.report_page.gallery import MOST_PICTURE_BYTES, Thumbnails
from hgld.report_page.glossary import glossary
from hgld.report_page.published import PublishedResults
from hgld.report_page.runs import Evaluation, Run, read_runs
from hgld.report_page.split_section import SplitSection, split_section

if TYPE_CHECKING:
    from hgld.dataset import ShardDataset

MOST_BYTES = 10_000_000
_FOOTER_BYTES = 20_000  # what it says of the pictures is known when they are made
_TEMPLATES = Path(__file__).with_name("templates")

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class PageFacts:
    """What was written.

    Attributes:
        out: the page.
        bytes: its size.
        runs: names of the runs.
        splits: of which there are evaluations.
        pictures: thumbnails made.
        pictures_left_out: places without their picture, for want of room.
        unreadable: pictures that could not be read, with the reason.
        plots: files in the folder of plots.
        notes: what of ``data`` and of the published rows does not fit the runs, as the page says it too.
    """

    out: str
    bytes: int
    runs: tuple[str, ...]
    splits: tuple[str, ...]
    pictures: int
    pictures_left_out: int
    unreadable: tuple[str, ...]
    plots: tuple[str, ...]
    notes: tuple[str, ...]


def write_report_page(
    places: Sequence[str | Path],
    out: str | Path,
    *,
    data: str | Path | None = None,
    plots: str | Path | None = None,
    published: str | Path | None = None,
    baseline: str | None = None,
    title: str = "Retrieval report",
    progress: Progress | None = None,
) -> PageFacts:
    """Write the report page of some runs.

    Args:
        places: run folders, or kept evaluations (:func:`hgld.report_page.runs.read_runs`).
        out: the HTML file; written aside and renamed.
        data: the dataset directory or URL, for pictures and class names.
        plots: a folder to keep the figures in as PNG and SVG.
        published: a CSV of further published rows.
        baseline: name of the run that the others are compared with; the first if None.
        title: of the page.
        progress: called with a task, the number of queries or splits done and their total.

    Raises:
        InputError: files that cannot be read or do not belong together.
        ConfigError: an unknown baseline, or a page that would be too large.
        StorageError: the disk refuses.
    """
    _check_place(Path(out))
    runs = read_runs(places)
    names = [run.name for run in runs]
    if baseline is not None and baseline not in names:
        raise ConfigError(f"baseline {baseline!r} is not among the runs ({', '.join(names)}).")
    dataset, results = _open(data), PublishedResults(published)
    figures = Figures(None if plots is None else Path(plots))
    splits = sorted({split for run in runs for split in run.evaluations})
    try:
        sections, notes = [], []
        for i, split in enumerate(splits):
            here = {run.name: run.evaluations[split] for run in runs if split in run.evaluations}
            section, said = _section(split, here, results, baseline, dataset, figures, progress)
            sections.append(section)
            notes += said
            if progress is not None:
                progress("draw", i + 1, len(splits))
        metrics = list(dict.fromkeys(m for run in runs for e in run.evaluations.values() for m in e.report.values))
        training = draw_training(figures, runs, _headline(metrics))
        parts = (title, runs, sections, training, glossary(metrics))
        room = MOST_BYTES - len(_encoded(_render(*parts, Thumbnails(None)))) - _FOOTER_BYTES
        thumbnails = Thumbnails(dataset, min(room, MOST_PICTURE_BYTES))
        size = _write(Path(out), _encoded(_render(*parts, thumbnails)))
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write {error.filename or out}: {error.strerror or error}.") from error
    return PageFacts(
        str(out),
        size,
        tuple(names),
        tuple(splits),
        len(thumbnails),
        thumbnails.left_out,
        tuple(thumbnails.unreadable),
        tuple(figures.files),
        tuple(notes),
    )


def _check_place(out: Path) -> None:
    """Refuse a place where the page could not be written, before the work of drawing it."""
    folder = out.parent
    if not folder.is_dir():
        raise StorageError(f"cannot write {out}: there is no folder {folder}. Make it, or choose another --out.")
    if out.is_dir():
        raise StorageError(f"cannot write {out}: it is a folder. Name a file in it: --out {out / 'report.html'}.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {out}: the folder {folder} is not writable. Choose another --out.")


def _section(
    split: str,
    evaluations: Mapping[str, Evaluation],
    results: PublishedResults,
    baseline: str | None,
    dataset: "ShardDataset | None",
    figures: Figures,
    progress: Progress | None,
) -> tuple[SplitSection, list[str]]:
    """The section of a split, with pictures, names and published rows of its own dataset alone; what does not fit."""
    stated = next((e.dataset for e in evaluations.values() if e.dataset), "")
    notes = []
    if dataset is not None and not stated:
        stated = dataset.manifest.name
        notes.append(f"{split}: the report does not say its dataset; it is taken for {stated}, which --data names.")
    elif dataset is not None and stated != dataset.manifest.name:
        notes.append(
            f"{split}: no pictures and no names of classes from --data, which is {dataset.manifest.name}; this is an "
            f"evaluation of {stated}."
        )
        dataset = None
    section = split_section(split, evaluations, results.of(stated), baseline, dataset, figures, progress)
    unused = results.unused(stated, {(method, source) for method, source, _ in section.scores.published})
    notes += [f"{split}: {unused}"] if unused else []
    return replace(section, missing=(*section.missing, *notes)), notes


def _open(data: str | Path | None) -> "ShardDataset | None":
    if data is None:
        return None
    from hgld.dataset import open_dataset

    return open_dataset(data)


def _headline(metrics: Sequence[str]) -> list[str]:
    """The metrics whose course over the epochs is drawn."""
    kinds = ("H-AP", "R@1/", "mAP@R/", "AP/")
    return [metric for kind in kinds for metric in metrics if metric == kind or metric.startswith(kind)][:6]


def _render(
    title: str,
    runs: Sequence[Run],
    sections: Sequence[SplitSection],
    training: Sequence[Any],
    terms: Sequence[tuple[str, str]],
    thumbnails: Thumbnails,
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        runs=runs,
        sections=sections,
        training=training,
        terms=terms,
        thumbnails=thumbnails,
        settings={run.name: _settings(run) for run in runs},
        style=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        script_hash=f"sha256-{digest}",
        series=SERIES,
        grades=GRADES,
    )


def _settings(run: Run) -> Mapping[str, Mapping[str, str]]:
    return {
        split: {
            key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for key, value in evaluation.report.settings.items()
        }
        for split, evaluation in run.evaluations.items()
    }


def _encoded(html: str) -> bytes:
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a name cannot be written


def _write(out: Path, data: bytes) -> int:
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"the page would have {len(data) / 1e6:.1f} MB; a report is kept below {MOST_BYTES / 1e6:.0f} MB. Name "
            "fewer runs."
        )
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_bytes(data)
        part.replace(out)
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}. Choose another --out.") from error
    finally:
        part.unlink(missing_ok=True)
    return len(data)
