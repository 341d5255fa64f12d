"""The subcommands that use the nearest images of a dataset: search, serve, calibrate, audit."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
from hgld.cli.output import (
    PageOptions,
    announce_page,
    echo,
    print_json,
    progress_bars,
    say_next,
    text_table,
    write_result,
)
from hgld.evaluation.trained_on import trained_on_text
from hgld.label_audit import AuditOptions
from hgld.settings import setting

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset
    from hgld.label_audit.audit import Audit, Audited
    from hgld.pipelines.stage import Progress
    from hgld.prediction.predict import Answer
    from hgld.training.inference.embedder import Embedder
    from hgld.training.inference.search import QueryMatches
    from hgld.training.models.networks import Network


# -- search -----------------------------------------------------------------------------------------------------------


def _within(text: str) -> tuple[str, str]:
    level, equals, name = text.partition("=")
    if not (level and equals and name):
        raise ValueError("a level and one of its class names, LEVEL=CLASS")
    return level, name


@dataclass(frozen=True, kw_only=True)
class GalleryOptions:
    """Gallery to search, and predictions from it."""

    data: str = setting(..., "Dataset directory, or its URL.")
    split: str | None = setting(
        None,
        "Split to search.  [default: the gallery of the dataset's protocol, else all items]",
    )
    k: int = setting(10, "Number of images to find per query.", least=1)
    embeddings: Path | None = setting(
        None, "Embeddings of the gallery from hgld embed.  [default: compute them]", path="file"
    )
    min_confidence: float | None = setting(
        None,
        "Confidence threshold: hgld predicts the finest class whose confidence reaches it.  [default: 0.8]",
        least=0,
    )
    level: str | None = setting(
        None, "Finest level at which to predict a class.  [default: the finest level of the dataset]", common=False
    )
    calibration: Path | None = setting(
        None,
        "Calibration file that hgld calibrate wrote for the same model.  [default: the run's calibration.json]",
        path="file",
    )

    def open_dataset(self) -> "ShardDataset":
        """Return the images to search.

        Raises:
            click.UsageError: the dataset does not have the level of ``level``.
        """
        from hgld.data.dataset import open_dataset
        from hgld.evaluation.protocols.benchmark import open_searched

        is_given = self.split is not None or self.embeddings is not None
        dataset = open_dataset(self.data, self.split) if is_given else open_searched(self.data)
        if self.level is not None and self.level not in dataset.levels:
            raise click.UsageError(
                f"--level {self.level} is unknown; the dataset's levels are {', '.join(dataset.levels)}."
            )
        return dataset


@dataclass(frozen=True, kw_only=True)
class SearchOptions(GalleryOptions):
    """Options of ``hgld search``: the queries, and the gallery to search."""

    images: tuple[Path, ...] = setting((), "Image to search with.", argument=True, metavar="IMAGE...", path="file")
    text: tuple[str, ...] = setting(
        (), "Text to search with; needs a CLIP model as --model.", repeated=True, commas=False
    )
    index: Literal["exact", "ivf", "hnsw"] = setting(
        "exact",
        "Search method. exact: compare with every image. ivf, hnsw: use a faiss index, kept in your cache; ivf "
        "searches only the nearest clusters of images, hnsw follows a graph of neighbours.",
        common=False,
    )
    within: tuple[tuple[str, str], ...] = setting(
        (),
        "Known class of the query images; hgld searches only the images of that class. Repeat for several levels.",
        metavar="LEVEL=CLASS",
        parse=_within,
        repeated=True,
        common=False,
    )
    html: Path | None = setting(
        None, "HTML page to write, as one file: the images of the queries and of their matches.", path="new"
    )


@verb()
def search(
    asked: SearchOptions, model: ModelOptions, view: ViewOptions, reading: ReadingOptions, *, as_json: bool
) -> None:
    """Find the images of a dataset that are nearest to each IMAGE, and predict its class.

    The prediction is the finest class whose probability is at least --min-confidence, shown with its parent classes. To
    predict, first calibrate the run with hgld calibrate.
    The first search embeds the dataset; your cache keeps the embeddings for later searches.
    """
    from hgld.training.inference.search import kept_embeddings
    from hgld.training.inference.search import search as search_images
    from hgld.training.inference.search_index import kept_index

    data, embeddings = asked.data, asked.embeddings
    if not asked.images and not asked.text:
        raise click.UsageError("missing a query: give an IMAGE or a --text.")
    source = model.source()
    dataset = asked.open_dataset()
    if len(dict(asked.within)) < len(asked.within):
        raise click.UsageError(
            "--within names a level twice, but an image has one class per level. Give each level once."
        )
    with progress_bars() as progress, open_embedder(source, view, data) as embedder:
        answer = search_images(
            embedder,
            asked.images,
            dataset,
            k=asked.k,
            gallery=None if embeddings is None else kept_embeddings(embeddings, dataset, embedder),
            index=None if asked.index == "exact" else kept_index(asked.index, dataset, embedder, embeddings),
            texts=asked.text,
            progress=progress,
            within=dict(asked.within),
            **_prediction_options(asked, source, dataset, embedder),
        )
        if not embedder.processes.is_main:
            return
    if answer.left_out:
        echo(f"{data}: unreadable images, which are not searched: {answer.left_out}", err=True)
    made = {"checkpoint": embedder.checkpoint, "selection": embedder.selection} if embedder.checkpoint else {}
    if asked.html is not None:
        write_result(asked.html, _matches_page(answer.found, asked.images, dataset, dict(asked.within)), "--html")
    if as_json:
        print_json({"queries": [one.to_dict() for one in answer.found], "left_out": answer.left_out} | made)
        return
    echo("\n".join(_matches_text(one, dataset.levels) for one in answer.found), nl=False)
    say_selection(made)
    has_val = bool(dataset.manifest.splits.get("val", {"items": 0})["items"])
    if has_val and isinstance(source, Path) and not any(one.answer for one in answer.found):
        say_next("calibrate", "--checkpoint", source, "--data", data, err=True)


def _prediction_options(
    asked: GalleryOptions, source: "Path | Network", dataset: "ShardDataset", embedder: "Embedder"
) -> dict[str, Any]:
    """Return the prediction options, with the model's calibration if there is one."""
    from hgld.prediction.predict import MIN_CONFIDENCE
    from hgld.training.checkpoint import find_checkpoint
    from hgld.training.inference.search import calibration_of

    run = find_checkpoint(source).parent.parent if isinstance(source, Path) else None
    calibration, why_not = calibration_of(embedder, run, asked.calibration, dataset)
    if calibration is None and (asked.min_confidence is not None or asked.level is not None):
        hint = why_not or "run hgld calibrate (for --model, pass its file as --calibration)."
        raise click.UsageError(
            f"--min-confidence and --level affect only predictions, which need a calibration of the model: {hint}"
        )
    if why_not and embedder.processes.is_main:
        echo(why_not, err=True)
    confidence = MIN_CONFIDENCE if asked.min_confidence is None else asked.min_confidence
    return {"calibration": calibration, "min_confidence": confidence, "level": asked.level}


def _answer_text(answer: "Answer | None") -> str:
    """Return a prediction as text; if no class is confident enough, return the best guess."""
    if answer is None:
        return ""
    path = " › ".join(reversed([str(name) for name in (answer.path if answer.level else answer.guess).values()]))
    if answer.level is not None:
        return f"{path} ({answer.level}, confidence {answer.confidence:.2f})\n\n"
    if not answer.guess:
        return "no prediction: the nearest images have no classes\n\n"
    sure = ", ".join(f"{level} {answer.confidences[level]:.2f}" for level in reversed(tuple(answer.guess)))
    return f"not sure; best guess: {path} (confidence: {sure})\n\n"


def _matches_page(
    found: "Sequence[QueryMatches]", images: Sequence[Path], dataset: "ShardDataset", within: Mapping[str, str]
) -> str:
    from hgld.data.dataset import dataset_of_images
    from hgld.html_page import PAGES, Thumbnails, data_uri, render_page
    from hgld.report_page.figures import grade_index

    asked = [data_uri(image) for image in map(dataset_of_images(images).image, range(len(images)))] if images else []
    return render_page(
        PAGES / "search.html",
        ["search.js"],
        title=f"Search in {dataset.manifest.name}",
        dataset=dataset.manifest.name,
        levels=dataset.levels,
        queries=list(zip_longest(found, asked)),
        thumbnails=Thumbnails(dataset),
        grade_index=grade_index,
        quote=shlex.quote,
        within=within,
    )


def _matches_text(found: "QueryMatches", levels: tuple[str, ...]) -> str:
    rows = [
        [str(match.rank), f"{match.score:.4f}", *(match.classes[level] or "unknown" for level in levels), match.source]
        for match in found.matches
    ]
    return f"{found.image}\n\n{_answer_text(found.answer)}{text_table(['rank', 'score', *levels, 'image'], rows)}"


# -- serve ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServeOptions(GalleryOptions):
    """Options of ``hgld serve``: the run, and the gallery to search."""

    run: Path = setting(..., "Run of hgld train, or one of its checkpoints/step-N.", argument=True, path="existing")


@verb()
def serve(asked: ServeOptions, page: PageOptions, view: ViewOptions, reading: ReadingOptions, *, as_json: bool) -> None:
    """Search a dataset with photos that you drop on a local page.

    For each photo the page shows the predicted classes with their confidence, and the nearest images. A click on a
    class searches only its images. Photos stay on this machine, and only this machine can open the page. Ctrl-C ends
    it. To predict classes, first calibrate the run with hgld calibrate.
    """
    from hgld.training.inference.kept import embed_once
    from hgld.training.inference.search import kept_embeddings
    from hgld.training.inference.serve import Searcher
    from hgld.training.inference.serve import serve as serve_page

    dataset = asked.open_dataset()
    with open_embedder(asked.run, view, asked.data) as embedder:
        options = {"k": asked.k, **_prediction_options(asked, asked.run, dataset, embedder)}
        if asked.embeddings is not None:
            gallery = kept_embeddings(asked.embeddings, dataset, embedder)
        else:
            with progress_bars() as progress:
                embedded = embed_once(embedder, dataset, progress)
            gallery = embedded.vectors, embedded.positions(len(dataset))
        if len(gallery[1]) < len(dataset):
            echo(f"{asked.data}: unreadable images, which are not searched: {len(dataset) - len(gallery[1])}", err=True)
        facts = {"checkpoint": embedder.checkpoint, "selection": embedder.selection}
        lines = [f"checkpoint {embedder.checkpoint}: {embedder.selection}", "Ctrl-C ends the page."]
        serve_page(
            Searcher(embedder, dataset, gallery, options),
            page.port,
            lambda address: announce_page(address, lines, facts, page, as_json=as_json),
        )


# -- calibrate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Options of ``hgld calibrate``: the images with which predictions are calibrated."""

    data: str = setting(..., "Dataset directory, or its URL.")
    split: str = setting("val", "Split with the query images, preferably of classes that the model was not trained on.")
    gallery_split: str | None = setting(
        None, "Split in which hgld search will search.  [default: the default of hgld search, usually all images]"
    )
    test_split: str | None = setting(
        None, "Split on which to test the calibration, which is fitted on --split.  [default: test, if there is one]"
    )
    k: int = setting(20, "Number of nearest images that vote for a class.", least=1, most=1000)
    unknown: float = setting(
        0.2, "Expected share of query images whose class is not in the dataset, below 1.", least=0, most=1
    )
    out: Path | None = setting(None, "Calibration file to write.  [default: calibration.json of the run]", path="new")


@verb()
def calibrate(
    asked: CalibrateOptions,
    model: ModelOptions,
    view: ViewOptions,
    reading: ReadingOptions,
    seen: SeenOptions,
    *,
    as_json: bool,
) -> None:
    """Calibrate the confidence of a model's predictions, so that hgld search predicts classes.

    Images that were not in the training data query the gallery twice. The first time their own classes are in it; the
    second time they are not, as for out-of-gallery images. hgld fits the probability per level to the votes of the
    nearest images. It keeps the fit in calibration.json of the run and prints expected calibration errors. For the
    split to which it fits, the errors come from cross-validation over its classes.
    """
    from hgld.data.dataset import open_dataset
    from hgld.evaluation.protocols.benchmark import filled_splits
    from hgld.evaluation.report import markdown_table
    from hgld.prediction.calibration import CALIBRATION
    from hgld.training.checkpoint import find_checkpoint
    from hgld.training.inference.search import calibrate_answers

    source = model.source()
    out, elsewhere = asked.out, () if asked.out is None else ("--calibration", asked.out)
    if out is None:
        if not isinstance(source, Path):
            raise click.UsageError("a network has no run folder for the result. Give a file to write: --out FILE.json.")
        out = find_checkpoint(source, view.which).parent.parent / CALIBRATION
    filled = filled_splits(open_dataset(asked.data))
    queries = [open_dataset(asked.data, one) for one in {asked.split, asked.test_split or "test"} if one in filled]
    trained_on = seen.check(source, queries, own_allowed=False)
    chosen = {name: getattr(asked, name) for name in ("split", "gallery_split", "test_split", "unknown")}
    with progress_bars() as progress, open_embedder(source, view, asked.data) as embedder:
        made = calibrate_answers(embedder, asked.data, **chosen, neighbors=asked.k, progress=progress)
        if made is None:
            return
    made = replace(made, facts={**made.facts, **trained_on})
    made.save(out)
    if as_json:
        print_json({"calibration": str(out), **made.to_dict()})
    else:
        say_warnings(trained_on)
        rows = [
            [name, risk.level, f"{risk.queries:,}", *(f"{v:.3f}" for v in (risk.accuracy, risk.confidence, risk.ece))]
            for name, risks in made.risks.items()
            for risk in risks
        ]
        echo(markdown_table(["split", "level", "cases", "right", "confidence", "calibration error"], rows) + f"\n{out}")
        say_selection({"checkpoint": embedder.checkpoint, "selection": embedder.selection})
        if isinstance(source, Path):
            say_next("search", "PHOTO.jpg", "--checkpoint", source, "--data", asked.data, *elsewhere)


# -- audit ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AuditedOptions:
    """Options of ``hgld audit``: the labels to audit, and the files to write."""

    embeddings: Path | None = setting(None, "Embeddings: .npy or .safetensors.")
    labels: Path | None = setting(
        None, "Table of labels, one row per embedding: .parquet or .csv.  [default: X.labels.parquet next to X.npy]"
    )
    levels: tuple[str, ...] = setting((), "Columns of --labels, finest first.  [default: all but key and split]")
    data: str | None = setting(
        None, "Dataset to embed with the model, or dataset with the labels and images of --embeddings."
    )
    out: Path = setting(
        ..., "Folder for audit.html, audit.json, labels.parquet, exclude.csv and decisions.yaml.", path="folder"
    )


@verb()
def audit(
    asked: AuditedOptions,
    options: AuditOptions,
    model: ModelOptions,
    view: ViewOptions,
    reading: ReadingOptions,
    seen: SeenOptions,
    *,
    as_json: bool,
) -> None:
    """Find wrong labels, duplicate or misplaced classes, and copies across splits.

    The command writes into OUT: a page on which you accept or reject findings; exclude.csv for hgld build-shards
    --exclude; decisions.yaml for hgld build-hierarchy --decisions; labels.parquet with an error probability per label;
    and audit.json. It changes nothing else.
    """
    from hgld.data.dataset import open_dataset
    from hgld.label_audit.audit import Audited
    from hgld.label_audit.page import write_audit
    from hgld.pipelines.check.audit_decisions import HEADER, decision_texts

    sources, data, trained_on = model.sources(), asked.data, {}
    with progress_bars() as progress:
        if sources:
            if asked.embeddings is not None or asked.labels is not None or asked.levels or data is None:
                raise click.UsageError("with a model, give --data, and omit --embeddings, --labels and --levels.")
            trained_on = seen.check(model.source(), [open_dataset(data)])
            audited = _embedded(model.source(), data, view, progress)
            if audited is None:
                return
        else:
            refuse_view(view)
            if asked.embeddings is None:
                raise click.UsageError("give --embeddings with --labels or --data, or give a model and --data.")
            if asked.levels and data is not None:
                raise click.UsageError(
                    "--levels needs --labels and cannot be combined with --data: the dataset has its own levels."
                )
            dataset = None if data is None else open_dataset(data)
            audited = Audited.of_files(asked.embeddings, asked.labels, asked.levels or None, dataset)
        found = audited.audit(replace(options, progress=progress))
        named = {"dataset": audited.dataset.manifest.name} if audited.dataset is not None else {}
        named |= {"embeddings": asked.embeddings.name} if asked.embeddings is not None else {}
        named |= {"model": sources[0].name} if sources else {}
        named |= {"seen": text} if (text := trained_on_text(trained_on)) else {}
        texts = decision_texts(found.classes, found.levels)
        files = write_audit(asked.out, found, texts, HEADER, audited.dataset, named)
    if as_json:
        print_json(found.to_dict() | {"files": files} | trained_on)
    else:
        say_warnings(trained_on)
        echo(_audit_text(found, files))


def _embedded(source: "Path | Network", data: str, view: ViewOptions, progress: "Progress") -> "Audited | None":
    """Return the readable items of a dataset with their embeddings; None on all processes but the main one."""
    from hgld.data.dataset import open_dataset
    from hgld.label_audit.audit import Audited
    from hgld.training.inference.kept import embed_once

    dataset = open_dataset(data)
    with open_embedder(source, view, data) as embedder:
        embedded = embed_once(embedder, dataset, progress)
        if not embedder.processes.is_main:
            return None
    say_warnings(embedder.view_facts([dataset]))
    if faults := embedded.faults:
        first = f"{faults[0].where}: {faults[0].reason}"
        echo(f"unreadable images, which are excluded: {len(faults)}; the first: {first}", err=True)
    return Audited.of_dataset(embedded.vectors, embedded.dataset)


def _audit_text(found: "Audit", files: dict[str, str]) -> str:
    lines = [
        f"{found.judged:,} of {len(found.keys):,} images judged; wrong labels, estimated:",
        *(f"  {level}: {rate:.2%}" for level, rate in found.rates.iter_rows()),
        f"images with a probably wrong label: {len(found.images):,}",
        f"duplicate or misplaced classes: {len(found.classes):,}",
        f"copies across splits: {len(found.copies):,}",
        *found.notes,
        f"the page: {files['page']}",
    ]
    return "\n".join(lines)
