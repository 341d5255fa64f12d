"""The page about the papers' tables: every table has a row, every command parses, every status is known."""

import csv
import re
import shlex
from pathlib import Path

import click
import pytest

from hgld.cli import cli
from hgld.cli.train_commands import TrainOptions, _asked_config
from hgld.evaluation.protocols import protocol_of
from hgld.metrics import Metric
from hgld.pipelines.shards.sources import source_name
from hgld.published import find_table, published_values
from hgld.settings import options_of
from hgld.training.config import SECTIONS
from hgld.training.sweep import plan_sweep

FOLDER = Path(__file__).parents[1] / "docs" / "project" / "papers"
HERE = {"GPU", "toy", "equation"}
PAPERS = ("smooth-ap", "listwise", "pnp", "suprank", "multigrain")


def rows_of_papers() -> dict[str, list[list[str]]]:
    """Return the cells of each table's rows, keyed by the name of the table's file."""
    rows = {}
    for file in sorted(FOLDER.glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as text:
            rows[file.stem] = list(csv.reader(text))[1:]
    return rows


ROWS = rows_of_papers()


@pytest.fixture(scope="module")
def verbs():
    """Return a function from a subcommand to its click command, with a cache because ``train`` takes long."""
    made: dict[str, click.Command] = {}

    def verb(name: str) -> click.Command:
        found = made.get(name) or cli.get_command(click.Context(cli), name)
        assert found is not None, f"there is no verb {name}"
        return made.setdefault(name, found)

    return verb


def test_every_paper_row_has_a_known_status():
    assert {row[-1] for rows in ROWS.values() for row in rows} == HERE
    assert sum(map(len, ROWS.values())) > 60
    for heading, rows in ROWS.items():
        assert len({row[0] for row in rows}) == len(rows), f"{heading} has two rows of one name"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_of_a_paper_has_a_row(paper):
    named = " ; ".join(row[0] for row in ROWS[paper])
    for table in dict.fromkeys(value.table for value in published_values() if value.paper == paper):
        assert re.search(rf"{re.escape(table)}(?![\w.])", named), f"{table} of {paper} has no row"


@pytest.mark.parametrize("heading", ROWS)
def test_every_paper_command_parses_without_unknown_names(heading, verbs, monkeypatch):
    # accepts paths of files that do not exist here
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: Path(value))
    for row in ROWS[heading]:
        commands = re.findall(r"`([^`]+)`", row[-2])
        assert commands, row
        for command in commands:
            words = command if command.startswith("hgld ") else f"hgld train {command} --data shards --out run"
            program, verb, *words = shlex.split(words)
            assert program == "hgld"
            given = verbs(verb).make_context(verb, words).params
            check(verb, given)


def check(verb: str, given: dict) -> None:
    """Fail for unknown recipes, datasets, tables, protocols and metrics."""
    if verb == "train":
        options = [option for section in SECTIONS.values() for option in options_of(section).values()]
        fields = {option.name: given[option.flag.replace("-", "_")] for option in options}
        asked = TrainOptions(recipe=given["recipe"], loss=given["loss"] or (), sweep=sum(given["sweep"], ()))
        plan_sweep(*_asked_config(asked, {name: value for name, value in fields.items() if value is not None}))
    elif verb == "build-shards":
        source_name(given["release"])
    elif verb == "report":
        for table in sum(given["paper"], ()):
            find_table(table)
    elif given.get("paper"):
        find_table(given["paper"])
    if given.get("protocol"):
        protocol_of(given["protocol"])
    for name in (given.get("metrics") or ()) if verb == "evaluate" else ():
        Metric.parse(name)


def test_equation_rows_refer_to_existing_tests():
    for rows in ROWS.values():
        for row in rows:
            named = re.findall(r"`(tests/[^`]+)`", " ".join(row[:-2]))
            assert bool(named) == (row[-1] == "equation"), row
            assert all((FOLDER.parents[2] / file).is_file() for file in named), row
