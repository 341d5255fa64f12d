"""What the shell offers behind a Tab: names of datasets, recipes, metrics and levels of options' values."""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

METRICS = (  # spelled here because hgld.metrics imports torch; with the numbers that are common for k and g
    *("AP", "mAP@R", "R@1", "R@10", "R@100", "TR@10", "P@10", "mAP@100"),
    *("H-AP", "H-R@1", "H-R@10", "H-P@10", "NDCG", "NDCG@10", "ASI", "wAP", "AP#1", "AP#2"),
)


def complete_datasets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the datasets that have a card."""
    from pipelines.sources import OWN_DATA, SOURCES

    return _beginning((name for name in SOURCES if name not in OWN_DATA), incomplete)


def complete_sources(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of all that can be made shards of."""
    from pipelines.sources import SOURCES

    return _beginning(SOURCES, incomplete)


def complete_recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recipes with what they are; files where none begins like that."""
    from training.recipes import RECIPES

    found = [CompletionItem(name, help=made.line) for name, made in RECIPES.items() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_metrics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of metrics, the last of several behind commas."""
    return complete_choices(METRICS, incomplete)


def complete_choices(choices: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Those of some names with which what is typed goes on, also as the last of several behind commas."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in choices if name.startswith(last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
