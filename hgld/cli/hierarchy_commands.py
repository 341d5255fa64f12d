"""The subcommands for hierarchies: build-hierarchy, compare, review, show."""

import shutil
import sys
import textwrap
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from hgld.cli.options import verb
from hgld.cli.output import (
    PageOptions,
    announce_page,
    echo,
    print_json,
    print_rich,
    progress_bars,
    say_next,
    write_result,
)
from hgld.errors import ConfigError
from hgld.pipelines.hierarchy.config import SPLIT_NAME, BuildConfig, ClusterConfig, LevelsConfig, stage_configs
from hgld.settings import options_of, setting
from hgld.taxonomy import AUTO, FORMAT_LINES, PARENTS_RULES
from hgld.terminal import is_terminal, printable

if TYPE_CHECKING:
    import numpy as np

    from hgld.hierarchy import Hierarchy

_WIDTH = 80  # characters per line of a drawing if the output is not a terminal
_LINES = 200
_MOST_PICTURED = 200  # maximum number of classes with an image on the page of a tree, the largest first
_WIDEST = 400  # maximum characters per line of a table, large enough that no row is wrapped


# -- build-hierarchy --------------------------------------------------------------------------------------------------


def _table(text: str, default_split: str = "") -> tuple[str, Path]:
    """Parse ``SPLIT=CSV``; return the split and the path of the CSV file."""
    split, equals, path = text.partition("=")
    if not equals:
        split, path = default_split, text
    if not SPLIT_NAME.fullmatch(split):
        raise ValueError("SPLIT=CSV, for instance train=train_label_to_category.csv")
    if not Path(path).is_file():
        raise ValueError(f"a table; {path!r} is not a file")
    return split, Path(path)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of ``hgld build-hierarchy``: the source of the names, and the folder of the build."""

    sample: bool = setting(False, "Build from the landmarks that hgld ships, offline.")
    landmarks: tuple[tuple[str, Path], ...] = setting(
        (),
        "CSV of a GLDv2 split (landmark_id, category), whose categories hgld scrapes. Repeatable.",
        metavar="SPLIT=CSV",
        parse=_table,
        repeated=True,
    )
    names: tuple[tuple[str, Path], ...] = setting(
        (),
        "CSV of landmarks that are already scraped: landmark_id, category, supercategory.",
        metavar="[train=]CSV",
        parse=partial(_table, default_split="train"),
        repeated=True,
    )
    classes: Path | None = setting(
        None,
        "Class names: a file with one per line, or a table with the columns name and, optionally, id, count, "
        "description, image and language.",
        metavar="FILE",
        path="file",
    )
    out: Path = setting(..., "Folder of the build.", path="folder")
    groups: tuple[int, ...] = setting(
        (),
        "Number of groups per level above the names, finest level first. 0: hgld chooses the number.",
        metavar="K[,K2,...]",
        least=0,
    )
    as_published: bool = setting(
        False,
        "Build as H-GLDv2 was published: Commons' pages, OpenAI's CLIP, k-means, 78 groups; other flags override it.",
    )


@verb(*stage_configs().values(), without=("groups", "coarser"))
def build_hierarchy(asked: BuildOptions, configs: dict[type, Any], *, as_json: bool) -> None:
    """Build a hierarchy: group names, and build the levels above the groups.

    Give exactly one of --sample, --landmarks, --names and --classes. Landmarks get GLDv2's hierarchical labels; other
    classes get the levels of --groups. After a stop the same command resumes.
    """
    sources = [name for name in ("sample", "landmarks", "names", "classes") if getattr(asked, name)]
    if len(sources) != 1:
        raise click.UsageError(
            "give exactly one of --sample, --landmarks SPLIT=CSV, --names [SPLIT=]CSV or --classes FILE."
        )
    tables = asked.landmarks or asked.names or ((("classes", asked.classes),) if asked.classes else ())
    groups, *coarser = asked.groups or (0,)
    configs[ClusterConfig] = replace(configs[ClusterConfig], groups=groups)
    configs[LevelsConfig] = replace(configs[LevelsConfig], coarser=tuple(coarser))
    if asked.as_published and asked.classes:
        raise click.UsageError("--as-published is about landmarks; omit it with --classes.")
    choices = _choose_as_published(configs) if asked.as_published else ()
    stages = {name: configs[config] for name, config in stage_configs().items()}
    config = BuildConfig(sources[0], tables, choices, **stages)  # pyright: ignore[reportArgumentType]  # one of four names

    from hgld.pipelines.hierarchy import build as building

    with progress_bars() as progress:
        build = building.build_hierarchy(asked.out, config, progress, announce=partial(echo, err=True))
    if as_json:
        print_json({**building.build_summary(build), "as_published": choices})
    else:
        echo("\n".join([building.build_table(build), *(f"as published: {choice}" for choice in choices)]))
        if not config.review.decisions:
            say_next("review", asked.out)
        else:
            release = ("manifest", "--source", "TABLE") if asked.classes else ("gldv2", "--source", "RELEASE")
            say_next("build-shards", *release, "--labels", asked.out, "--out", "SHARDS")


def _choose_as_published(configs: dict[type, Any]) -> tuple[str, ...]:
    """Set the paper's choices in the configs, except for flags that were given; return one sentence per choice."""
    from hgld.published.statements import statements_of

    source_of, said = click.get_current_context().get_parameter_source, []
    for one in (one for one in statements_of("suprank", ["build:h-gldv2"]) if "build:" in one.subject):
        for kind in (kind for kind in configs if one.key in options_of(kind)):
            option = options_of(kind)[one.key]
            if source_of(one.key) is ParameterSource.COMMANDLINE:
                one = replace(one, ours=f"what --{option.flag} says", because="the flag was given")
            else:
                configs[kind] = replace(configs[kind], **{one.key: option.parse(one.ours or one.says)})
        said.append(one.text)
    return tuple(said)


# -- compare ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of ``hgld compare``: the two hierarchies."""

    a: Path = setting(
        ...,
        "Hierarchy to compare: a table of labels, hierarchy.parquet, or the folder of a build.",
        argument=True,
        path="existing",
    )
    b: Path = setting(..., "Reference hierarchy, in one of the same formats.", argument=True, path="existing")


@verb()
def compare(asked: CompareOptions, *, as_json: bool) -> None:
    """Compare the hierarchy A with the reference B.

    A and B are each a CSV or parquet table of labels, a hierarchy.parquet, or the folder of a build. The output shows
    the compared columns, how much the groups agree at each level and over all levels, and the largest confusions.
    """
    from hgld.pipelines.hierarchy.compare import compare as compare_files
    from hgld.pipelines.hierarchy.compare import summary

    comparison = compare_files(asked.a, asked.b)
    if as_json:
        print_json(comparison.to_dict())
    else:
        print_rich(*(part for one in summary(comparison) for part in (one, "")), width=_WIDEST)


# -- review -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReviewOptions:
    """Options of ``hgld review``: the build to review, and its annotator."""

    build: Path = setting(..., "Folder of the build.", argument=True, metavar="BUILD_DIR", path="folder")
    annotator: str = setting("", "Your name in the decisions.  [default: your user name on this machine]")
    decisions: Path | None = setting(
        None,
        "File for your decisions, created if missing.  [default: BUILD_DIR/decisions.yaml]",
    )
    compare_with: tuple[Path, ...] = setting(
        (), "Decisions of another annotator to compare with yours.", path="file", repeated=True
    )
    adjudicate: bool = setting(
        False, "Resolve conflicts between the files of --compare-with; your decisions go to a separate file."
    )
    images: Path | None = setting(
        None,
        "Folder of the landmarks' images; for a build with --classes, the folder that holds the list.",
    )
    order: Literal["items", "names"] = setting(
        "items",
        "Order of the questions, by the number of items or names that an action corrects.",
    )
    propose: str = setting(
        "",
        "URL of an OpenAI-compatible server (.../v1); its language model votes for groups before the page opens.",
        metavar="URL",
    )
    propose_model: str = setting("", "Name of the language model on the server of --propose.", metavar="NAME")
    propose_requests: int = setting(
        100, "Maximum number of requests to the language model; 0: only count them.", least=0
    )
    propose_only: bool = setting(False, "Write the proposals of the language model and exit.")


@verb()
def review(asked: ReviewOptions, page: PageOptions, *, as_json: bool) -> None:
    """Finish the groups of BUILD_DIR on a local web page.

    The page first asks the questions that correct most names. After each decision it estimates the groups of all other
    names again. Decisions are appended to your file at once; build again with --decisions FILE to apply them. Only this
    machine can open the page; Ctrl-C ends it.

    With --propose a language model votes for the group of every name. The votes change estimates, but decide nothing.
    Your decisions show how reliable they are. The variable HGLD_PROPOSE_KEY holds the API key.
    """
    if bool(asked.propose) != bool(asked.propose_model) or (asked.propose_only and not asked.propose):
        raise click.UsageError("--propose URL and --propose-model NAME need each other, and --propose-only needs both.")
    build, others = asked.build, asked.compare_with
    if asked.propose:
        from hgld.pipelines.hierarchy.review.propose import proposals_text, propose

        requests, say = asked.propose_requests, partial(echo, err=True)
        with progress_bars() as progress:
            found = propose(build, asked.propose, asked.propose_model, requests=requests, say=say, progress=progress)
        if as_json and asked.propose_only:
            print_json(asdict(found) | {"file": str(found.file), "groups": found.groups and str(found.groups)})
        else:
            echo(proposals_text(found), err=True)
        if asked.propose_only:
            return
        others = (*(other for other in others if other.resolve() != found.file.resolve()), found.file)
    from hgld.pipelines.hierarchy.groups.given import has_given_levels
    from hgld.pipelines.hierarchy.review.journal import Journal
    from hgld.pipelines.hierarchy.review.learner import Learner
    from hgld.pipelines.hierarchy.review.queue import Queue
    from hgld.pipelines.hierarchy.review.server import serve
    from hgld.pipelines.hierarchy.review.state import Review
    from hgld.pipelines.hierarchy.review.tables import BuildTables, Thumbnails

    journal = Journal(
        asked.decisions or build / "decisions.yaml",
        asked.annotator or _user(),
        "adjudicator" if asked.adjudicate else "annotator",
    )
    tables = BuildTables(build)
    learner = None if has_given_levels(build) else Learner.of(build / "stages")
    queue = None if learner is None else Queue(learner.rows, by=asked.order)
    shown = Review(tables, journal, others, Thumbnails(asked.images, tables.images()), learner, queue)
    file, facts = journal.path, {"decisions": str(journal.path)}
    lines = [
        f"decisions  {file}",
        "Ctrl-C ends the page; your decisions are saved.",
        f"next       build again with the same command and --decisions {file}",
    ]
    serve(
        shown,
        page.port,
        lambda address: announce_page(address, lines, facts, page, as_json=as_json),
    )


def _user() -> str:
    """Return the user's name on this machine."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # without a user name, Python 3.13 and later raise OSError
        raise ConfigError(
            "You have no user name on this machine, as in some containers. Give a name with --annotator NAME."
        ) from error


# -- show -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Options of ``hgld show``: the hierarchy or taxonomy to draw."""

    path: Path = setting(..., "Folder of a build, dataset directory or taxonomy.", argument=True, path="existing")
    format: str = setting(
        AUTO,
        "Format of the taxonomy; auto: detect it from the content.",
        choices=(AUTO, *FORMAT_LINES),
        metavar="NAME",
    )
    levels: tuple[str, ...] = setting((), "Names of the levels, finest first; for a table, names of its columns.")
    parents: str = setting(
        PARENTS_RULES[0],
        "Rule for classes with several parents: refuse them, keep the first parent, or keep the one farthest from "
        "the top.",
        choices=PARENTS_RULES,
    )
    cut: str = setting(
        "",
        "Classes of a tree of uneven depth that form the levels: root:2,1 (steps below the top), leaves:1,2 (steps "
        "above leaves) or ranks:species,family.  [default: all ranks or depths]",
        metavar="RULE",
    )
    depth: int | None = setting(None, "Number of levels to draw, starting with the coarsest.  [default: all]", least=1)
    most: int = setting(8, "Maximum number of classes to draw below each class; 0: all.", least=0)
    doubtful: int | None = setting(
        None,
        "Print, instead of the tree, the N names of a build that are most likely in a wrong group; 0: all.",
        least=0,
        metavar="N",
    )
    changes: Path | None = setting(None, "CSV file to write: every class that the rules changed.", path="new")
    html: Path | None = setting(None, "HTML page to write, as one file: the tree, with zoom and search.", path="new")


@verb()
def show(asked: ShowOptions, *, as_json: bool) -> None:
    """Draw a hierarchy as a tree, the largest classes first, with the number of finest classes in each.

    PATH is a build's folder, a dataset directory (the numbers then count images), or a taxonomy in any format that hgld
    reads: an edge list, WordNet, Open Images, iNaturalist, Darwin Core, a folder tree, ...
    """
    if asked.doubtful is not None:
        _show_doubtful(asked.path, asked.doubtful, as_json=as_json)
        return
    from hgld.tables import as_plain_text
    from hgld.taxonomy.formats import read_levels
    from hgld.tree_drawing import tree_data, tree_text

    path, rules = asked.path, {name: getattr(asked, name) for name in ("parents", "cut", "levels")}
    _refuse_unfinished(path)
    found = read_levels(path, asked.format, **rules)
    if asked.changes is not None:
        as_plain_text(found.changes).write_csv(asked.changes)
    labels = _image_labels(path, found.hierarchy)
    counts = None if labels is None else found.hierarchy.counts(labels)
    drawn: dict[str, Any] = {"depth": asked.depth, "most": asked.most or None, "counts": counts}
    counted = f"the classes of the level {found.hierarchy.levels[0]!r}" if counts is None else "images"
    read = f"{found.taxonomy.format}: {len(found.taxonomy):,} classes"
    notes = [f"{read}; levels by {found.cut}; numbers count {counted}."]
    if found.counts:
        notes.append("; ".join(f"{what}: {number:,}" for what, number in found.counts.items()) + ".")
    if asked.html is not None:
        write_result(asked.html, _tree_page(path, found.hierarchy, labels, notes), "--html")
    if as_json:
        facts = {
            "place": str(path),
            "format": found.taxonomy.format,
            "cut": found.cut,
            "parents": found.parents,
            "levels": dict(zip(found.hierarchy.levels, found.hierarchy.num_classes, strict=True)),
            "counted": "finest classes" if counts is None else "images",
            "counts": found.counts,
        }
        print_json(facts | {"tree": tree_data(found.hierarchy, **drawn)})
        return
    terminal = is_terminal(sys.stdout)
    width = shutil.get_terminal_size((_WIDTH, 24)).columns if terminal else _WIDTH
    echo(tree_text(found.hierarchy, lines=_LINES if asked.most else None, width=width, **drawn))
    echo("\n" + "\n".join(textwrap.fill(line, width) for line in notes))
    if asked.html is not None:
        echo(f"the page: {asked.html}")


def _show_doubtful(build: Path, most: int, *, as_json: bool) -> None:
    """Print the expected number of wrong names of a build, and its most doubtful names."""
    from hgld.pipelines.hierarchy.review.review import doubtful_names

    still_wrong, names = doubtful_names(build)
    shown = names.head(most or len(names))
    if as_json:
        print_json({"still_wrong": still_wrong, "names": shown.to_dicts()})
        return
    if still_wrong:
        mean, low, high = still_wrong["names"]
        among = f"; {shown['wrong'].sum():.0f} of them among these {len(shown):,}"
        unread = " Nearly every group was kept, perhaps unread, so nothing better is known." * still_wrong["unread"]
        echo(f"About {mean:,.0f} names are in a wrong group (80% interval {low:,.0f} to {high:,.0f}){among}.{unread}")
        told = {f"have a wrong {level}": numbers for level, numbers in still_wrong.get("levels", {}).items()}
        if told:
            told["are wrong at any level"] = still_wrong["tree"]
        for what, (mean, low, high) in told.items():
            echo(f"About {mean:,.0f} names {what} ({low:,.0f} to {high:,.0f}).")
        echo("")
    for name, label, wrong in shown.iter_rows():
        echo(f"{wrong:4.0%}  {printable(name)}  in  {printable(label)}")


def _refuse_unfinished(path: Path) -> None:
    """Raise an error for an unfinished build or dataset; its folders would be read as a tree of classes."""
    is_unfinished = any((path / mark).exists() for mark in (".hgld-build", "dataset.json", "stages"))
    if is_unfinished and not (path / "hierarchy.parquet").is_file():
        raise ConfigError(
            f"{path} has no hierarchy.parquet yet. To finish it, repeat the command that created this folder."
        )


def _tree_page(path: Path, tree: "Hierarchy", labels: "np.ndarray | None", notes: list[str]) -> str:
    """Return the page of a tree; with the labels of a dataset's images, the page also shows images."""
    import numpy as np

    from hgld.html_page import PAGES, Thumbnails, render_page
    from hgld.tree_drawing import icicle

    first, keys, dataset, unit = np.empty(0, np.int64), [], None, "classes"
    if labels is None:
        labels = tree.expand(range(tree.num_classes[0]))
    else:
        from hgld.data.dataset import open_dataset

        dataset, unit = open_dataset(path), "images"
        classes, first, sizes = np.unique(labels[:, 0], return_index=True, return_counts=True)
        first = first[np.argsort(-sizes * (classes >= 0), kind="stable")][:_MOST_PICTURED]
        keys = dataset.keys.gather(first).to_list()
    return render_page(
        PAGES / "tree.html",
        ["icicle.js"],
        title=f"Hierarchy of {printable(path.resolve().name)}",
        tree=icicle(tree.levels, lambda c, label: tree.names[c][label], labels, unit, shown=first),
        thumbnails=Thumbnails(dataset),
        keys=keys,
        names=[tree.names[0][label] if label >= 0 else "unknown" for label in labels[first, 0].tolist()],
        text=tree.to_tree_text(),
        notes=notes,
    )


def _image_labels(path: Path, hierarchy: "Hierarchy") -> "np.ndarray | None":
    """Return the (N, L) labels of the images of a dataset directory; None for other paths."""
    from hgld.data.format import INDEX, MANIFEST
    from hgld.data.index import read_index

    if not (path / INDEX).is_file() or not (path / MANIFEST).is_file():
        return None
    index, levels = read_index(path / INDEX, leave_out=("sha256",))
    return index.select(levels).to_numpy() if levels == hierarchy.levels else None
