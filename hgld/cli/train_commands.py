"""The subcommand that trains: train."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import ReadingOptions, verb
from hgld.cli.output import echo, print_json, say_next
from hgld.settings import options_of, setting
from hgld.training.config import SECTIONS

if TYPE_CHECKING:
    from hgld.training.config import TrainConfig
    from hgld.training.progress import ProgressReporter


def _recipes() -> Iterable[str]:
    from hgld.training.recipes import RECIPES

    return RECIPES


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """A recipe, the data to train on and the folder of the run."""

    recipe: str | None = setting(
        None, "Recipe by its name (--list), or the config.json of a run.", argument=True, offered=_recipes
    )
    list: bool = setting(False, "Name the recipes and stop.")
    show: bool = setting(
        False, "Print the recipe with all its fields, with --data also how many images an epoch shows, and stop."
    )
    data: str | None = setting(None, "Dataset directory; its address with --stream.", metavar="DIR|URL")
    out: Path | None = setting(None, "Folder of the run; a stopped one resumes.", metavar="RUN", path="folder")
    init_from: Path | None = setting(
        None, "Run or checkpoint whose model a new run starts from.", metavar="RUN", path="existing", common=False
    )
    sweep: tuple[str, ...] = setting(
        (),
        "A run for every value, into RUN/FIELD=VALUE, and a table; several times: all combinations. Semicolons between "
        "the values of a field that is a list.",
        metavar="FIELD=A,B,C",
        repeated=True,
        commas=False,
        common=False,
    )
    seeds: int = setting(
        1, "Runs with consecutive seeds from --seed on, into RUN/seed=N, and a table of means and deviations.", least=1
    )


@verb(*SECTIONS.values(), overrides=True)
def train(asked: TrainOptions, reading: ReadingOptions, given: Mapping[str, Any], *, as_json: bool) -> int:
    """Train a model by a RECIPE, or by the config.json of an earlier run.

    \b
    hgld train happier-sop --data DIR --out RUN --seed 0
    torchrun --nproc-per-node 8 -m hgld train happier-sop --data DIR --out RUN --seed 0

    After a stop the same command resumes.
    """
    if asked.list:
        _print_recipes(as_json)
        return 0
    if asked.recipe is None:
        raise click.UsageError("name a RECIPE (--list names them), or the config.json of a run.")
    config = _changed(_read(asked.recipe), given)
    if asked.show:
        _print_config(asked.recipe, config, asked.data, as_json)
        return 0
    data, out = asked.data, asked.out
    if data is None or out is None:
        raise click.UsageError("--data and --out say what to train on and where to; --show prints the recipe alone.")
    if "monitor" in given:
        _refuse_test_choice(config, data)
    if asked.sweep or asked.seeds > 1:
        return _sweep(config, asked.sweep, asked.seeds, data, out, as_json, init_from=asked.init_from)
    return _train(config, data, out, as_json, init_from=asked.init_from)


def _read(recipe: str) -> "TrainConfig":
    """Return the config of a recipe, by its name, or of a file."""
    from hgld.training.config import read_config
    from hgld.training.recipes import load_recipe

    return read_config(Path(recipe)) if recipe.endswith(".json") else load_recipe(recipe)


def _changed(config: "TrainConfig", given: Mapping[str, Any]) -> "TrainConfig":
    from hgld.training.config import with_fields
    from hgld.training.config_checks import check_config

    config = with_fields(config, given)
    check_config(config)
    return config


def _refuse_test_choice(config: "TrainConfig", data: str) -> None:
    """Refuse ``--monitor`` where all that is evaluated is a test split, on which no checkpoint is chosen."""
    from hgld.errors import ConfigError
    from hgld.training.evaluation import check_evaluation

    if config.run.evaluate_on and not check_evaluation(config, data)[1]:
        entries = ", ".join(config.run.evaluate_on)
        raise ConfigError(
            f"--monitor {config.run.monitor}: all that is evaluated is a test split ({entries}), and no checkpoint is "
            "chosen on test. Give the dataset a split val (hgld build-shards --val-classes), or say --select-on-test."
        )


def _print_recipes(as_json: bool) -> None:
    from hgld.training.recipes import RECIPES

    rows = []
    for recipe in RECIPES.values():
        config = recipe()
        rows.append(
            {
                "name": recipe.name,
                "dataset": recipe.dataset,
                "loss": config.loss.loss,
                "backbone": config.model.backbone,
                "pretrained": config.model.pretrained,
                "summary": recipe.line,
                "hardware": recipe.setting.hardware,
                "hours": recipe.setting.hours,
                "published": recipe.brief,
            }
        )
    if as_json:
        print_json({"recipes": rows})
        return
    shown = ("name", "dataset", "loss", "backbone", "pretrained")
    widths = [max(len(row[column]) for row in rows) for column in shown]
    for row in rows:
        cells = "  ".join(row[column].ljust(width) for column, width in zip(shown, widths, strict=True))
        echo(f"{cells}  {row['summary']} Published: {row['published']}.")


def _print_config(recipe: str, config: "TrainConfig", data: str | None, as_json: bool) -> None:
    from hgld.training.config import flat
    from hgld.training.recipes import RECIPES

    told = RECIPES[recipe].text if recipe in RECIPES else f"The config of {recipe}."
    epoch = None
    if data is not None:
        from hgld.training.batches import epoch_coverage

        epoch = epoch_coverage(config, data)
    if as_json:
        print_json(
            {"recipe": config.recipe, "text": told, "fields": flat(config), **({"epoch": epoch} if epoch else {})}
        )
        return
    echo(told)
    for section in SECTIONS:
        echo(f"\n{section}:")
        for name, option in options_of(SECTIONS[section]).items():
            echo(f"  {_as_flag(option.flag, getattr(getattr(config, section.lower()), name))}")
    if epoch:
        echo(f"\nAn epoch of {epoch['steps']:,} steps shows {epoch['seen']:,} of {epoch['images']:,} images.")
        if left_out := epoch.get("left_out_combinations"):
            classes = config.batch.batch_size // config.batch.images_per_class
            echo(
                f"{left_out:,} combinations of {config.batch.super_classes} super-classes have fewer than the "
                f"{classes} classes of a batch and are left out."
            )


def _as_flag(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"--{flag} {shown or chr(34) * 2}"


def _train(config: "TrainConfig", data: str, out: Path, as_json: bool, *, init_from: Path | None) -> int:
    from hgld.cli import EXIT_STOPPED
    from hgld.distributed import is_main_process
    from hgld.training.loop import train

    with _shown(quiet=as_json) as progress:
        summary = train(config, data, out, init_from=init_from, progress=progress)
    if is_main_process():
        if as_json:
            print_json(summary.to_dict())
        else:
            echo(summary.to_text())
            if summary.finished:
                _say_next(config, data, out)
    return 0 if summary.finished else EXIT_STOPPED


def _say_next(config: "TrainConfig", data: str, out: Path) -> None:
    """Print the report of what was evaluated; where nothing was, how the model is evaluated on its dataset."""
    if config.run.evaluate_on:
        say_next("hgld", "report", out, "--data", data, "--out", out / "report.html")
        return
    asked = ("hgld", "evaluate", "--checkpoint", out, "--data", data, *_evaluated_by(data, config.run.train_split))
    say_next(*asked, "--out", out / "report.json")


def _evaluated_by(data: str, trained: str) -> tuple[str, ...]:
    """Return the options of ``hgld evaluate`` by which a dataset is evaluated: none by its protocol, else splits."""
    from hgld.data.dataset import open_dataset
    from hgld.errors import HgldError
    from hgld.evaluation.protocols.benchmark import checked_protocol, filled_splits

    dataset = open_dataset(data, trained)
    try:
        checked_protocol(dataset, data)
    except HgldError:  # it names none, or lacks what that needs
        filled = filled_splits(dataset)
        if {"query", "gallery"} <= {*filled}:
            return ("--query-split", "query", "--gallery-split", "gallery")
        held_out = sorted({*filled} - {trained}, key=lambda split: (split != "test", split != "val", split))
        return ("--split", [*held_out, trained][0])
    return ()


def _shown(*, quiet: bool) -> "AbstractContextManager[ProgressReporter]":
    """Report progress as bars on a terminal, elsewhere as lines, unless the result is printed in another form."""
    from hgld.training.progress import progress_reporter

    return progress_reporter(sys.stderr, _unsaid if quiet else echo, partial(echo, err=True))


def _unsaid(text: str) -> None:
    pass


def _sweep(
    config: "TrainConfig",
    sweeps: tuple[str, ...],
    seeds: int,
    data: str,
    out: Path,
    as_json: bool,
    *,
    init_from: Path | None,
) -> int:
    from hgld.cli import EXIT_STOPPED
    from hgld.distributed import is_main_process, process_group
    from hgld.evaluation.report import markdown_table
    from hgld.training.log import RunSummary
    from hgld.training.loop import train
    from hgld.training.sweep import plan_sweep, run_sweep, tabulate_sweep

    def train_one(one: "TrainConfig", folder: Path) -> RunSummary:
        with _shown(quiet=True) as progress:  # the table is the result
            if is_main_process():
                progress.heading(f"{folder.name}:")
            return train(one, data, folder, init_from=init_from, progress=progress)

    runs = plan_sweep(config, sweeps, seeds)
    with process_group(config.run.device, lambda: "Start the same command again."):  # one group for all runs
        found = run_sweep(runs, out, train_one)
    if is_main_process():
        rows = tabulate_sweep(runs, found, out)
        if as_json:
            print_json({"runs": rows, "folder": str(out)})
        else:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            cells = [[f"{v:.4f}" if isinstance(v, float) else v or "" for v in map(row.get, columns)] for row in rows]
            echo(markdown_table(columns, cells), nl=False)
    is_whole = len(found) == len(runs) and all(one is None or one.finished for one in found.values())
    return 0 if is_whole else EXIT_STOPPED
