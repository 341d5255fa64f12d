"""The verb that shows the whole way: demo."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hgld.cli.options import FOLDER, json_option
from hgld.cli.shown import echo, print_json, progress_bars

if TYPE_CHECKING:
    from hgld.cli.demo_run import DemoResult


def demo_command() -> click.Command:
    @click.command()
    @click.option("--out", type=FOLDER, default=Path("hgld-demo"), show_default=True, help="Folder of the demo.")
    @click.option(
        "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of everything random."
    )
    @json_option
    def demo(out: Path, seed: int, as_json: bool) -> None:
        """Go the whole way on landmarks that hgld ships: no network, no weights, a few minutes on two cores.

        Builds their hierarchy, draws photographs of them, makes shards of these, trains a small net with landmark
        labels alone (ROADMAP) and with all levels (HAPPIER), evaluates both at every level on landmarks that neither
        has seen, and writes a report. Stopped anywhere, the same command goes on; run again, it shows the result.
        """
        from hgld.cli.demo_run import run_demo

        with progress_bars() as progress:
            result = run_demo(out, seed, progress)
        if as_json:
            places = {name: str(place) for name, place in result.places(out).items()}
            print_json({"out": str(out), "seed": seed, **asdict(result), "places": places})
        else:
            echo(demo_text(result, out))

    return demo


def demo_text(result: "DemoResult", out: Path) -> str:
    """A finished demo on one screen: what was done, both runs' values in per cent, what lies where, what next."""
    train, test = result.splits["train"], result.splits["test"]
    drawn = {what: train[what] + test[what] for what in train}
    baseline, hierarchical = result.values
    lines = [
        (
            f"{result.labelled:,} landmarks were put into {result.groups} groups; {drawn['landmarks']:,} of them were "
            f"drawn on {drawn['images']:,} photographs."
        ),
        (
            f"Trained on {train['images']:,} photographs of {train['landmarks']:,} landmarks, tested on "
            f"{test['images']:,} of {test['landmarks']:,} others (leave one out)."
        ),
        f"{baseline} learned from landmark labels alone, {hierarchical} from all levels; all else was the same.",
        "",
        f"{'per cent':<26}{baseline:>10}{hierarchical:>10}{'difference':>13}",
        *_rows(result.values[baseline], result.values[hierarchical]),
        "",
    ]
    places = result.places(out)
    runs = " and ".join(str(places[name]) for name in result.values)
    lines += [f"{name:<8}{places[name]}" for name in ("report", "labels", "shards")]
    lines += [f"{'runs':<8}{runs}", f"{'next':<8}cd {shlex.quote(str(out))}"]
    run = places[hierarchical].relative_to(out)
    commands = (
        f"hgld search {result.example} --checkpoint {run} --data shards",
        f"hgld evaluate --checkpoint {run} --data shards --split test --metrics mAP@R,H-R@10",
        "hgld review labels",
    )
    return "\n".join([*lines, *(f"{'':<8}{command}" for command in commands)])


def _rows(baseline: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    return [
        f"{metric:<26}{100 * value:>10.1f}{100 * other[metric]:>10.1f}{100 * (other[metric] - value):>+13.1f}"
        for metric, value in baseline.items()
    ]
