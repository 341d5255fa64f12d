"""The subcommand that repeats the tables and figures of papers: reproduce."""

import shlex
import subprocess
import sys
from contextlib import chdir, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from hgld.cli.options import verb
from hgld.cli.output import echo, print_json, text_table
from hgld.errors import ConfigError
from hgld.settings import setting

if TYPE_CHECKING:
    from hgld.published.experiments import Experiment

_CHECKOUT = Path(__file__).resolve().parents[2]
_COLUMNS = ("table", "shows", "data", "state")
_TOY = "tiny synthetic data and a small network: these values say nothing about the paper"


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Options of ``hgld reproduce``: the table or figure of a paper, and where to run its commands."""

    table: str | None = setting(None, 'Table or figure, such as "SupRank Table V".', argument=True, metavar="[TABLE]")
    list: bool = setting(False, "List all tables and figures with the datasets that they need, and exit.")
    data: Path | None = setting(
        None, "Folder with the datasets, in which to run the commands. Default: only print them.", path="folder"
    )
    toy: bool = setting(
        False, "Run the commands on tiny synthetic datasets, with a small network; needs a clone of hgld's repository."
    )


@verb()
def reproduce(asked: ReproduceOptions, *, as_json: bool) -> None:
    """Print or run the commands that repeat a table or figure of a paper.

    \b
    hgld reproduce "SupRank Table V"
    hgld reproduce "SupRank Table V" --toy
    hgld reproduce "SupRank Table V" --data FOLDER

    Without --toy and --data the command prints the values in the paper, the datasets and the commands. A stopped run
    resumes with the same command.
    """
    from hgld.published.experiments import all_experiments, find_experiments

    if asked.toy and asked.data:
        raise ConfigError(
            "--toy makes its own datasets, and would write them among the datasets in --data; omit one of them."
        )
    found = find_experiments(asked.table) if asked.table else [e for e in all_experiments() if e.paper != "data"]
    if asked.list or as_json or not asked.table:
        rows = [
            [
                one.title,
                one.shows,
                ", ".join(f"{name}{' (here)' * _is_here(asked.data, name)}" for name in one.data.split()),
                one.why or "can run",
            ]
            for one in found
        ]
        if as_json:
            print_json(
                {
                    "tables": [dict(zip(_COLUMNS, row, strict=True)) for row in rows],
                    "commands": [c for one in found for c, _ in _commands(one, asked.data)],
                }
            )
        else:
            echo(text_table(_COLUMNS, rows), nl=False)
        return
    for one in found:
        if one.why:
            echo(f"{one.title}: cannot be repeated; {one.why}.")
        elif asked.data or asked.toy:
            with nullcontext(asked.data) if asked.data else TemporaryDirectory() as folder:
                _run(one, Path(folder), is_toy=asked.toy)
        else:
            _print_plan(one)


def _is_here(folder: Path | None, name: str) -> bool:
    return folder is not None and (folder / name / "dataset.json").is_file()


def _commands(one: "Experiment", folder: Path | None) -> list[tuple[str, str]]:
    """Return the commands of an experiment, each with the name of its recipe or of the dataset that it builds.

    Args:
        one: the experiment.
        folder: folder of the datasets; datasets in it need not be built.
    """
    from hgld.published.experiments import all_experiments
    from hgld.training.recipes import RECIPES

    told = [
        (build.commands, build.table)
        for build in all_experiments()
        if build.table in one.data.split() and not _is_here(folder, build.table)
    ]
    recipes = [recipe for recipe in RECIPES.values() if {*recipe.values} & {*one.values}]
    for line in one.commands.splitlines():
        told += [(line.format(recipe=r.name, data=r.dataset), r.name) for r in recipes if "{" in line] or [(line, "")]
    return told


def _print_plan(one: "Experiment") -> None:
    """Print the paper's values, the datasets, the duration of each run in hours, and the commands."""
    from hgld.cli.report_commands import print_tables
    from hgld.published import lay_out
    from hgld.published.statements import all_statements
    from hgld.training.recipes import RECIPES

    print_tables([lay_out(one.title, one.values)] if one.values else [])
    commands = _commands(one, None)
    lines = [
        f"{one.title}: {one.shows}.",
        *(f"dataset {n}: hgld datasets {n} says how to obtain it" for n in one.data.split()),
    ]
    lines += sorted({f"hours of a run: {RECIPES[name].setting.hours}" for _, name in commands if name in RECIPES})
    own = [s for s in all_statements() if s.paper == one.paper and "table:" in s.subject]
    lines += [s.text for s in own if s.applies_to([f"table:{one.table}"])]
    echo("\n".join([*lines, *(command for command, _ in commands)]))


def _run(one: "Experiment", folder: Path, *, is_toy: bool) -> None:
    """Run the commands of an experiment in a folder; with ``is_toy``, they get the flags of a small network."""
    from hgld.cli import cli

    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        for command, name in _commands(one, Path()):
            words = []
            for word in shlex.split(command)[1:]:
                words += sorted(map(str, Path().glob(word))) if "*" in word else [word]
            if is_toy and words[0] == "build-shards":
                _make_release(name, words[words.index("--source") + 1])
            words = _small(words) if is_toy else words
            echo(f"$ {shlex.join(['hgld', *words])}", err=True)
            if code := cli.main(words, prog_name="hgld", standalone_mode=False):
                raise click.exceptions.Exit(code)
        _show_sweeps(one, is_toy=is_toy)
    if is_toy:
        echo(f"{one.title}, toy: {_TOY}.")


def _show_sweeps(one: "Experiment", *, is_toy: bool) -> None:
    """Print the published and the user's values of a figure, and draw the user's sweeps beside the published values."""
    from hgld.cli.paper_figures import draw_sweeps, increases, read_sweeps
    from hgld.cli.report_commands import print_tables
    from hgld.published import lay_out

    if sweeps := read_sweeps(one, Path()):
        own = increases(one, sweeps)  # no report of hgld has these values
        print_tables([lay_out(one.title, one.values, own)] if own else [])
        files = draw_sweeps(
            one, sweeps, Path("figures"), note="toy: tiny synthetic data, a small network" if is_toy else ""
        )
        echo(f"drawn: {', '.join(str(Path('figures', name).absolute()) for name in files)}", err=True)


def _make_release(name: str, source: str) -> None:
    """Write a tiny release of a dataset in its real layout, with the functions that the tests use.

    Raises:
        ConfigError: hgld does not run from a clone of its repository, so these functions are missing.
    """
    if not (_CHECKOUT / "tests" / "fake_releases").is_dir():
        raise ConfigError("--toy needs the synthetic releases of hgld's tests; run it in a clone of hgld's repository.")
    command = [sys.executable, "-m", "tests.fake_releases", name, str(Path(source).absolute())]
    subprocess.run(command, cwd=_CHECKOUT, check=True)  # noqa: S603  # a module of this repository


_SMALL = (
    "--backbone small --pretrained none --pooling gem --dim 8 --classifier random --size 16 --resize 18 --workers 1 "
    "--amp off --micro-batch-size 0 --steps-per-epoch 2 --epochs 1 --frozen-epochs 0"
)
_SWEPT = {"batch_size": "4", "images_per_class": "2,4"}  # small values that replace the values of a sweep


def _small(words: list[str]) -> list[str]:
    """Return a small version of a command.

    ``train`` gets a small network, 16-pixel images, two steps and small batches. Other commands get a small network in
    place of torchvision's, and 1/14 of their ``--size``.
    """
    from hgld.training.recipes import RECIPES

    if words[0] != "train":
        pairs = list(zip(["", *words], words, strict=False))
        words = [str(int(word) // 14) if before == "--size" else word for before, word in pairs]
        return ["small" if word.startswith("torchvision:") else word for word in words]
    config = RECIPES[words[1]]()
    size = "6" if config.batch.sampler == "repeated-augmentation" else "4"
    more = ["--images-per-class", "2"] if config.batch.sampler.endswith("pk") and "shuffled" not in words else []
    more += ["--memory-from-epoch", "0"] if config.loss.memory else []
    for name, values in _SWEPT.items():
        if any(word.startswith(f"{name}=") for word in words):
            words, size = [*words[:-1], f"{name}={values}"], "8"
    return [*words, *_SMALL.split(), *more, "--batch-size", size]
