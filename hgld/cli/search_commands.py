"""The verbs that ask a dataset what an image shows: calibrate, search."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hgld.cli.embed_commands import (
    open_embedder,
    say_selection,
    source_options,
    take_source,
    take_view_options,
    view_options,
)
from hgld.cli.options import EXISTING_FILE, NewFile, json_option, reading_options
from hgld.cli.output import echo, print_json, progress_bars, say_next

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset
    from hgld.prediction import Calibration
    from hgld.training.inference.answers import Asking
    from hgld.training.inference.embedder import Embedder
    from hgld.training.inference.search import NamedAnswer, QueryMatches


class _Within(click.ParamType):
    """``LEVEL=CLASS``."""

    name = metavar = "LEVEL=CLASS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        level, equals, name = str(value).partition("=")
        if not (level and equals and name):
            self.fail(f"{value!r}: expected a level and the name of a class of it, LEVEL=CLASS.", param, ctx)
        return level, name


_ASKING = (
    click.option(
        "--min-confidence",
        type=click.FloatRange(min=0),
        help="Least confidence of an answer; it is given at the finest level that has it. [default: 0.8]",
    ),
    click.option("--level", help="Finest level to answer at. [default: the finest of all]"),
    click.option(
        "--within",
        type=_Within(),
        multiple=True,
        help="Search within a class alone, of which the images are known to be; several times, for several levels.",
    ),
    click.option(
        "--calibration",
        type=EXISTING_FILE,
        help="By hgld calibrate, of the same model. [default: the run's own calibration.json]",
    ),
)


def _answer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of answers; :func:`_take_asking` reads them."""
    for option in reversed(_ASKING):
        function = option(function)
    return function


def _take_asking(
    given: dict[str, Any], source: Any, which: str, dataset: "ShardDataset"
) -> "Callable[[Embedder], Asking]":
    """Take these flags out of a verb's values; names are checked before any work.

    Returns:
        a function that says, once the model is open, how to answer.
    """
    from hgld.prediction.predict import MIN_CONFIDENCE
    from hgld.training.checkpoint import find_checkpoint
    from hgld.training.inference.answers import Asking, calibration_of, named_classes

    min_confidence, level, file = given.pop("min_confidence"), given.pop("level"), given.pop("calibration")
    pairs = given.pop("within")
    within = dict(pairs)
    if len(within) < len(pairs):
        raise click.UsageError("--within names one level twice; an image is of one class a level. Name each once.")
    within = named_classes(dataset, within)
    if level is not None and level not in dataset.levels:
        raise click.UsageError(f"--level {level}: the dataset's levels are {', '.join(dataset.levels)}.")
    run = find_checkpoint(source, which).parent.parent if isinstance(source, Path) else None

    def asking(embedder: "Embedder") -> "Asking":
        calibration, why_not = calibration_of(embedder, run, file, dataset)
        if calibration is None and (min_confidence is not None or level is not None):
            raise click.UsageError(
                f"--min-confidence and --level are of answers, which take a calibration of this model. {why_not}"
                if why_not
                else "--min-confidence and --level are of answers, which take a calibration of this model: make one "
                "with hgld calibrate (of --model, name it as --calibration)."
            )
        if why_not and embedder.processes.is_main:
            echo(why_not, err=True)
        return Asking(calibration, MIN_CONFIDENCE if min_confidence is None else min_confidence, level, within)

    return asking


def _answer_text(answer: "NamedAnswer | None") -> str:
    """Return an answer as a line for people; empty where there is none to give."""
    if answer is None:
        return ""
    if answer.level is None:
        return "no answer: no class is sure enough\n\n"
    from hgld.evaluation.report import markdown

    path = " › ".join(reversed(answer.path.values()))
    return f"**{markdown(path)}** ({markdown(answer.level)}, confidence {answer.confidence:.2f})\n\n"


def calibrate_command() -> click.Command:
    @click.command()
    @source_options()
    @click.option("--data", required=True, help="Dataset directory, or its URL.")
    @click.option(
        "--split",
        default="val",
        show_default=True,
        help="Its images ask; best of classes that the model was not trained on.",
    )
    @click.option(
        "--gallery-split",
        help="Split that will be searched. [default: what hgld search searches in, mostly all images]",
    )
    @click.option(
        "--test-split",
        help="Split that the calibration is measured on, and not fitted. [default: test, if there is one]",
    )
    @click.option("--k", type=click.IntRange(1, 1000), help="Neighbours that vote. [default: 20]")
    @click.option(
        "--unknown",
        type=click.FloatRange(0, 1, max_open=True),
        help="Share of images to come whose class the dataset lacks. [default: 0.2]",
    )
    @click.option("--out", type=NewFile(), help="File to write. [default: calibration.json of the run]")
    @view_options
    @click.option("--device", help="cpu, cuda, ...; default: a GPU when there is one.")
    @reading_options()
    @json_option
    def calibrate(
        data: str,
        out: Path | None,
        device: str | None,
        k: int | None,
        unknown: float | None,
        as_json: bool,
        **given: Any,
    ) -> None:
        """Learn how sure a model's answers are, so that hgld search says what an image shows.

        The images of a split that training did not see ask the images that will be searched, and again without their
        own classes, as strange images would. What their neighbours vote for becomes a probability, level by level, and
        calibration.json in the run's folder keeps it. Expected calibration errors are printed, those of the split
        itself by cross-validation over its classes.
        """
        from hgld.prediction.calibration import CALIBRATION, NEIGHBORS, UNKNOWN
        from hgld.training.checkpoint import find_checkpoint
        from hgld.training.inference.answers import calibrate_answers

        which = given["which"]
        source, options = take_source(given), take_view_options(given)
        elsewhere = () if out is None else ("--calibration", out)
        if out is None:
            if not isinstance(source, Path):
                raise click.UsageError("a network has no folder of its own: name the file to write, --out FILE.json.")
            out = find_checkpoint(source, which).parent.parent / CALIBRATION
        chosen = {"neighbors": k or NEIGHBORS, "unknown": UNKNOWN if unknown is None else unknown}
        with progress_bars() as progress, open_embedder(source, device, options, data) as embedder:
            made = calibrate_answers(embedder, data, **chosen, **given, progress=progress)
            if made is None:
                return
        made.save(out)
        if as_json:
            print_json({"calibration": str(out), **made.to_dict()})
        else:
            echo(_risk_table(made) + f"\n{out}")
            say_selection(embedder.checkpoint, embedder.selection)
            if isinstance(source, Path):
                say_next("hgld", "search", "PHOTO.jpg", "--checkpoint", source, "--data", data, *elsewhere)

    return calibrate


def _risk_table(made: "Calibration") -> str:
    from hgld.evaluation.report import markdown_table

    rows = [
        [name, risk.level, f"{risk.queries:,}", *(f"{v:.3f}" for v in (risk.accuracy, risk.confidence, risk.ece))]
        for name, risks in made.risks.items()
        for risk in risks
    ]
    return markdown_table(["split", "level", "cases", "right", "confidence", "calibration error"], rows)


# -- search ----------------------------------------------------------------------------------------------------------


def search_command() -> click.Command:
    @click.command()
    @click.argument("images", metavar="IMAGE...", nargs=-1, type=EXISTING_FILE)
    @click.option("--text", "texts", multiple=True, help="Find what a text describes, with a CLIP model as --model.")
    @source_options()
    @click.option("--data", required=True, help="Dataset directory, or its URL.")
    @click.option(
        "--split",
        help="Split of it; default: what its protocol searches in, and all its items where it names none or with "
        "--embeddings.",
    )
    @click.option("--k", type=click.IntRange(min=1), default=10, show_default=True, help="Images to find for each.")
    @click.option(
        "--embeddings", type=EXISTING_FILE, help="Of that split, by hgld embed; default: they are computed first."
    )
    @click.option(
        "--index",
        "kind",
        type=click.Choice(["exact", "ivf", "hnsw"]),
        default="exact",
        show_default=True,
        help="Compare with every image, or ask an index that is kept beside the embeddings or the shards (faiss).",
    )
    @click.option(
        "--trust-index", is_flag=True, help="Open a kept index that you did not make, in place of making it anew."
    )
    @click.option(
        "--prefix",
        type=click.IntRange(min=1),
        help="Compare all images by the first numbers of their embeddings, the best by all numbers.",
    )
    @click.option(
        "--shortlist", type=click.IntRange(min=1), help="How many of them. [default: 200; goes with --prefix]"
    )
    @click.option(
        "--page",
        type=NewFile(),
        help="Write what was found as an HTML page as well, with the pictures in it.",
    )
    @_answer_options
    @view_options
    @click.option("--device", help="cpu, cuda, ...; default: a GPU when there is one.")
    @reading_options()
    @json_option
    def search(
        images: tuple[Path, ...],
        texts: tuple[str, ...],
        data: str,
        split: str | None,
        k: int,
        embeddings: Path | None,
        kind: Literal["exact", "ivf", "hnsw"],
        trust_index: bool,
        prefix: int | None,
        shortlist: int | None,
        page: Path | None,
        device: str | None,
        as_json: bool,
        **given: Any,
    ) -> None:
        """Find the images of a dataset that are nearest to each IMAGE, with their classes, and say what it shows.

        What it shows is the finest class whose probability is at least --min-confidence, with the path above it;
        this takes a calibration (hgld calibrate), once a run.

        To ask often, embed the dataset once with hgld embed, with the same checkpoint and options, and give its file as
        --embeddings; or keep an index, which finds nearly always the same images, faster. --index ivf cuts the images
        into cells, of which it looks into the nearest; hnsw follows a graph of neighbours. An index is made where there
        is none, or none of this checkpoint, dataset and options.
        """
        from hgld.data.dataset import open_dataset
        from hgld.evaluation.protocols.benchmark import open_searched
        from hgld.training.inference.search import kept_embeddings, write_search_page
        from hgld.training.inference.search import search as search_images
        from hgld.training.inference.search_index import kept_index

        if not images and not texts:
            raise click.UsageError("name an IMAGE, or a --text.")
        if shortlist is not None and prefix is None:
            raise click.UsageError("--shortlist goes with --prefix, which is not given.")
        which = given["which"]
        source, options = take_source(given), take_view_options(given)
        whole = split is not None or embeddings is not None
        dataset = open_dataset(data, split) if whole else open_searched(data)
        asking_of = _take_asking(given, source, which, dataset)
        with progress_bars() as progress, open_embedder(source, device, options, data) as embedder:
            asking = asking_of(embedder)
            gallery = None if embeddings is None else kept_embeddings(embeddings, dataset, embedder)
            index = None if kind == "exact" else kept_index(kind, dataset, embedder, embeddings, trusted=trust_index)
            if index is not None and (reason := index.outdated()) and embedder.processes.is_main:
                echo(f"{index.folder}: {reason}, and is made anew", err=True)
            places: dict[str, Any] = {"gallery": gallery, "index": index, "prefix": prefix, "progress": progress}
            places |= {} if shortlist is None else {"shortlist": shortlist}
            answer = search_images(embedder, images, dataset, k=k, asking=asking, texts=texts, **places)
            if not embedder.processes.is_main:
                return
        if answer.left_out:
            echo(f"{data}: images that could not be read and are not searched in: {answer.left_out}", err=True)
        try:
            if page is not None:
                write_search_page(page, answer.found, dataset)
        finally:  # what cannot be written is shown all the same
            if as_json:
                made = {"checkpoint": embedder.checkpoint, "selection": embedder.selection}
                found = [one.to_dict() for one in answer.found]
                print_json({"queries": found, "left_out": answer.left_out} | (made if embedder.checkpoint else {}))
            else:
                echo("\n".join(_text(one, dataset.levels) for one in answer.found), nl=False)
                say_selection(embedder.checkpoint, embedder.selection)
        if isinstance(source, Path) and not as_json:
            is_answered = any(one.answer is not None for one in answer.found)
            _say_next(
                source, data, dataset, is_answered=is_answered, is_kept=embeddings is not None or index is not None
            )

    return search


def _say_next(source: Path, data: str, dataset: "ShardDataset", *, is_answered: bool, is_kept: bool) -> None:
    """Print what makes the next search say more, or start sooner: a calibration, then embeddings that are kept."""
    asked = ("--checkpoint", source, "--data", data)
    if not is_answered and dataset.manifest.splits.get("val", {"items": 0})["items"]:
        say_next("hgld", "calibrate", *asked, err=True)
    elif not is_kept:
        split = () if dataset.split is None else ("--split", dataset.split)
        say_next("hgld", "embed", *asked, *split, "--out", "GALLERY.npy", err=True)


def _text(found: "QueryMatches", levels: tuple[str, ...]) -> str:
    from hgld.evaluation.report import markdown, markdown_table

    rows = [
        [str(match.rank), f"{match.score:.4f}", match.key, *(match.classes[level] or "unknown" for level in levels)]
        for match in found.matches
    ]
    return f"{markdown(found.image)}\n\n{_answer_text(found.answer)}" + markdown_table(
        ["rank", "score", "key", *levels], rows
    )
