"""The subcommand that trains: train."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import ReadingOptions, verb
from hgld.cli.output import echo, print_json, say_next, text_table
from hgld.losses.registry import loss_names
from hgld.settings import setting
from hgld.training.config import SECTIONS

if TYPE_CHECKING:
    from hgld.training.config import TrainConfig
    from hgld.training.progress import ProgressReporter


def _recipes() -> Iterable[str]:
    from hgld.training.recipes import RECIPES

    return RECIPES


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of ``hgld train``: a recipe, the data to train on and the folder of the run."""

    recipe: str | None = setting(
        None,
        "Name of the recipe (see --list). Default: finetune, for your own images.",
        argument=True,
        metavar="[RECIPE]",
        offered=_recipes,
    )
    config: Path | None = setting(
        None,
        "Config file to use instead of a recipe: YAML that --show printed, or config.json of a run.",
        metavar="FILE",
        path="file",
    )
    list: bool = setting(False, "List the recipes for your own images and exit.")
    papers: bool = setting(False, "With --list, also list the recipes of papers.", common=False)
    show: bool = setting(
        False, "Print all options as YAML for --config and exit; with --data, also the options derived from the data."
    )
    drill: bool = setting(
        False,
        "Let two processes that train a small network on this machine fail in every way, resume them, print a table "
        "with times, and exit. Takes minutes.",
        common=False,
    )
    data: str | None = setting(None, "Dataset directory or its URL.", metavar="DIR|URL")
    out: Path | None = setting(
        None, "Folder of the run; if a stopped run is in it, it resumes.", metavar="RUN", path="folder"
    )
    init_from: Path | None = setting(
        None,
        "Run or checkpoint whose weights are the initial weights of the new run.",
        metavar="RUN",
        path="existing",
        common=False,
    )
    loss: tuple[str, ...] = setting(
        (), "Name of a loss in hgld.losses; several names train one run each.", metavar="NAME,...", offered=loss_names
    )
    sweep: tuple[str, ...] = setting(
        (),
        "Train one run per value of the field, in RUN/FIELD=VALUE, and write a table. If the option is repeated, "
        "train all combinations. Semicolons separate the values if the field is a list.",
        metavar="FIELD=A,B,C",
        repeated=True,
        commas=False,
        common=False,
    )
    seeds: int = setting(
        1,
        "Number of runs, with consecutive seeds from --seed on, each in RUN/seed=N. A table lists the means of their "
        "metrics.",
        least=1,
    )


@verb(*SECTIONS.values(), overrides=True)
def train(asked: TrainOptions, reading: ReadingOptions, given: Mapping[str, Any], *, as_json: bool) -> int:
    """Fine-tune a pretrained network on your own images, or train with a RECIPE.

    \b
    hgld train --data DIR --out RUN --backbone timm:NAME [--pretrained FILE]
    hgld train happier-sop --data DIR --out RUN --seed 0
    torchrun --nproc-per-node 8 -m hgld train --data DIR --out RUN

    The recipe finetune derives the options that you omit from the data, and prints the reasons. --show prints the
    values of a recipe. After a stop the same command resumes.
    """
    if asked.list:
        _print_recipes(as_json, papers=asked.papers)
        return 0
    if asked.drill:
        return _drill(given.get("device") or "cpu", as_json)
    config, sweeps = _asked_config(asked, given)
    if asked.show:
        _print_config(config, asked.data, as_json)
        return 0
    data, out = asked.data, asked.out
    if data is None or out is None:
        raise click.UsageError(
            "train needs --data and --out, the dataset and the run's folder; --show prints only the options, --list "
            "the recipes."
        )
    if "monitor" in given:
        _refuse_test_choice(config, data)
    if sweeps or asked.seeds > 1:
        return _sweep(config, sweeps, asked.seeds, data, out, as_json, init_from=asked.init_from)
    return _train(config, data, out, as_json, init_from=asked.init_from)


def _drill(device: str, as_json: bool) -> int:
    """Run a drill; return the exit code for a failed check if a failure did not end as promised."""
    from tempfile import TemporaryDirectory

    from hgld.cli import EXIT_CHECK_FAILED
    from hgld.cli.drill import drill

    with TemporaryDirectory(prefix="hgld-drill-") as folder:
        found = drill(Path(folder), device, say=partial(echo, err=True))
    if as_json:
        print_json({"failures": [asdict(one) for one in found]})
    else:
        columns = ["failure", "started", "seconds", "kept", "result"]
        echo(text_table(columns, [one.cells() for one in found]), nl=False)
        for one in found:
            for index, line in enumerate(one.lines):
                echo(f"{one.failure}, {one.launcher}, process {index}: {line or '(ended by the signal)'}")
    return EXIT_CHECK_FAILED if any(one.problems for one in found) else 0


def _asked_config(asked: TrainOptions, given: Mapping[str, Any]) -> "tuple[TrainConfig, tuple[str, ...]]":
    """Return the config of a recipe or file after applying the flags, and the names of the swept fields."""
    from hgld.training.config import with_fields
    from hgld.training.config_checks import check_config
    from hgld.training.finetune import FINETUNE
    from hgld.training.runs import load_config

    if asked.recipe and asked.config:
        raise click.UsageError(f"RECIPE {asked.recipe} and --config {asked.config} were given; expected only one.")
    losses = asked.loss if len(asked.loss) > 1 else ()
    fields = {name: value for name, value in given.items() if name != "loss"}
    if asked.loss and not losses:
        fields["loss"] = asked.loss[0]
    config = with_fields(load_config(asked.config or asked.recipe or FINETUNE), fields)
    if asked.show:
        if losses:
            raise click.UsageError(f"--show prints the options of one run, but --loss has {len(losses)} losses.")
        check_config(config)
    return config, (*asked.sweep, *([f"loss={','.join(losses)}"] if losses else []))


def _refuse_test_choice(config: "TrainConfig", data: str) -> None:
    """Raise an error for ``--monitor`` if the run evaluates only on test splits, which must not choose a checkpoint."""
    from hgld.errors import ConfigError
    from hgld.training.evaluation import check_evaluation

    if config.run.evaluate_on and not check_evaluation(config, data)[1]:
        entries = ", ".join(config.run.evaluate_on)
        raise ConfigError(
            f"--monitor {config.run.monitor}: the run evaluates only on test splits ({entries}), and no checkpoint is "
            "chosen on test. Build a split val (hgld build-shards --val-classes), or pass --select-on-test."
        )


def _print_recipes(as_json: bool, *, papers: bool) -> None:
    from hgld.training.recipes import BROKEN, RECIPES

    rows, cells = [], []
    columns = ("name", "dataset", "loss", "backbone", "pretrained", "summary")
    for recipe in RECIPES.values():
        if recipe.setting.paper and not papers:
            continue
        config = recipe()
        network = {"loss": config.loss.loss, "backbone": config.model.backbone, "pretrained": config.model.pretrained}
        network |= dict.fromkeys(network.keys() & {*config.to_derive}, "derived")
        facts = {"hardware": recipe.setting.hardware, "hours": recipe.setting.hours, "published": recipe.brief}
        row = {"name": recipe.name, "dataset": recipe.dataset, **network, "summary": recipe.line, **facts}
        rows.append(row)
        cells.append([row[column] for column in columns])
        cells[-1][-1] += f" Published: {recipe.brief}." if recipe.setting.paper else ""
    if as_json:
        print_json({"recipes": rows, "broken": BROKEN})
        return
    echo(text_table(columns, cells), nl=False)
    for line in BROKEN:
        echo(line)
    if not papers:
        echo(f"--papers lists {len(RECIPES) - len(rows)} more, one for each row that papers report.")


def _print_config(config: "TrainConfig", data: str | None, as_json: bool) -> None:
    from hgld.training.config import config_text, flat
    from hgld.training.recipes import RECIPES

    recipe = RECIPES.get(config.recipe)
    told = f"{recipe.line}\n\n{recipe.facts_of(config)}" if recipe else "A config without a recipe."
    if data is not None:
        from hgld.training.plan import plan_alone

        config = plan_alone(config, data)
    if as_json:
        known = {name: value for name, value in flat(config).items() if name not in config.to_derive}
        said = [asdict(one) | {"is_followed": one.is_followed} for one in recipe.statements(config)] if recipe else []
        facts = {"to_derive": list(config.to_derive), "plan": dict(config.plan), "statements": said}
        print_json({"recipe": config.recipe, "text": told, "fields": known, **facts})
        return
    for line in told.splitlines():
        echo(f"# {line}".rstrip())
    echo(config_text(config), nl=False)


def _train(config: "TrainConfig", data: str, out: Path, as_json: bool, *, init_from: Path | None) -> int:
    from hgld.cli import EXIT_STOPPED
    from hgld.distributed import is_main_process
    from hgld.training.loop import train

    with _progress(is_quiet=as_json) as progress:
        summary = train(config, data, out, init_from=init_from, progress=progress)
    if is_main_process():
        if as_json:
            print_json(summary.to_dict())
        else:
            echo(summary.to_text())
            if summary.finished and config.run.evaluate_on:
                say_next("report", out, "--data", data, "--out", out / "report.html")
            elif summary.finished:
                say_next("evaluate", "--checkpoint", out, "--data", data, "--out", out / "report.json")
    return 0 if summary.finished else EXIT_STOPPED


def _progress(*, is_quiet: bool) -> "AbstractContextManager[ProgressReporter]":
    """Report progress as bars on a terminal and as lines elsewhere; a quiet reporter prints only warnings."""
    from hgld.training.progress import progress_reporter

    return progress_reporter(sys.stderr, (lambda text: None) if is_quiet else echo, partial(echo, err=True))


def _cell(row: Mapping[str, Any], name: str) -> str:
    """Return a mean of a sweep's table in per cent, with its standard deviation over the seeds."""
    from hgld.training.progress import metric_text

    value, deviation = row.get(name), row.get(f"{name} ±")
    if not isinstance(value, float):
        return str(value or "")
    texts = [metric_text(name.rpartition(": ")[2], number) for number in (value, deviation) if number is not None]
    return " ± ".join(texts)


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
    from hgld.training.sweep import plan_sweep, run_sweep, share_precision, tabulate_sweep

    def train_one(one: "TrainConfig", folder: Path) -> RunSummary:
        with _progress(is_quiet=True) as progress:
            if is_main_process():
                progress.heading(f"{folder.name}:")
            return train(one, data, folder, init_from=init_from, progress=progress)

    runs = plan_sweep(config, sweeps, seeds)
    # All runs share one group of processes.
    hint, asked = "Start the same command again.", config.run
    with process_group(asked.device, lambda: hint, asked.process_timeout) as processes:
        runs = share_precision(runs, data, out, processes)
        found = run_sweep(runs, out, train_one)
    if is_main_process():
        rows = tabulate_sweep(runs, found, out)
        if as_json:
            print_json({"runs": rows, "folder": str(out)})
        else:
            columns = [name for name in dict.fromkeys(name for row in rows for name in row) if not name.endswith(" ±")]
            echo(markdown_table(columns, [[_cell(row, name) for name in columns] for row in rows]), nl=False)
    is_whole = len(found) == len(runs) and all(one is None or one.finished for one in found.values())
    return 0 if is_whole else EXIT_STOPPED
