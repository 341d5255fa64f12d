"""The verbs that make hierarchies: build-hierarchy, compare."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import EXISTING_FILE, FOLDER, SectionedCommand, SplitTable, config_options, json_option, take
from hgld.cli.shown import echo, print_json, progress_bars
from hgld.terminal import is_terminal

if TYPE_CHECKING:
    from pipelines.config import BuildConfig


def build_hierarchy_command() -> click.Command:
    from pipelines.config import (
        AssignConfig,
        BuildConfig,
        CleanConfig,
        ClusterConfig,
        EmbedConfig,
        ReviewConfig,
        ScrapeConfig,
        TopLevelConfig,
    )

    sections = {
        "Scrape": ScrapeConfig,
        "Clean": CleanConfig,
        "Embed": EmbedConfig,
        "Cluster": ClusterConfig,
        "Natural or human-made": TopLevelConfig,
        "Review": ReviewConfig,
        "Assign": AssignConfig,
    }

    @click.command(cls=SectionedCommand)
    @click.option("--sample", is_flag=True, help="Build from the landmarks that hgld ships, offline.")
    @click.option(
        "--landmarks",
        metavar="SPLIT=CSV",
        type=SplitTable(),
        multiple=True,
        help="GLDv2's list of a split (landmark_id, category), to be scraped. Repeat for index.",
    )
    @click.option(
        "--names",
        metavar="[train=]CSV",
        type=SplitTable("train"),
        multiple=True,
        help="A table already scraped: landmark_id, category, supercategory.",
    )
    @click.option("--out", type=FOLDER, required=True, help="Folder of the build.")
    @click.option("--dry-run", is_flag=True, help="Say what would be asked and how long it would take, then stop.")
    @json_option
    @config_options(sections)
    def build_hierarchy(
        sample: bool,
        landmarks: tuple[tuple[str, Path], ...],
        names: tuple[tuple[str, Path], ...],
        out: Path,
        dry_run: bool,
        as_json: bool,
        **given: Any,
    ) -> None:
        """Build the hierarchy: landmark categories in, GLDv2's hierarchical labels out.

        Exactly one of --sample, --landmarks and --names says where the names come from. Stopped anywhere, the same
        command goes on; run again, it does nothing.
        """
        if sum(map(bool, (sample, landmarks, names))) != 1:
            raise click.UsageError("give exactly one of --sample, --landmarks SPLIT=CSV or --names [SPLIT=]CSV.")
        tables = landmarks or names
        if len({split for split, _ in tables}) != len(tables):
            raise click.UsageError("two tables have the same split; write for instance train=A.csv and index=B.csv.")
        context = click.get_current_context()
        if sample and context.get_parameter_source("encoder") is click.core.ParameterSource.DEFAULT:
            given["encoder"] = "lexical"
        config = BuildConfig(
            "sample" if sample else "landmarks" if landmarks else "names",
            tables,
            scrape=take(ScrapeConfig, given),
            clean=take(CleanConfig, given),
            embed=take(EmbedConfig, given),
            cluster=take(ClusterConfig, given),
            toplevel=take(TopLevelConfig, given),
            review=take(ReviewConfig, given),
            assign=take(AssignConfig, given),
        )
        _run_build(out, config, dry_run=dry_run, as_json=as_json)

    return build_hierarchy


def _run_build(out: Path, config: "BuildConfig", *, dry_run: bool, as_json: bool) -> None:
    from pipelines.build import build_hierarchy
    from pipelines.build_text import build_summary, build_table, plan_summary, plan_text

    with progress_bars() as progress:
        if config.source == "landmarks" and not (dry_run or as_json) and is_terminal(sys.stderr):
            planned = build_hierarchy(out, config, progress, dry_run=True)
            echo(plan_text(planned), err=True)
        build = build_hierarchy(out, config, progress, dry_run=dry_run)
    if as_json:
        print_json(plan_summary(build) if dry_run else build_summary(build))
    else:
        echo(plan_text(build) if dry_run else build_table(build))


def compare_command() -> click.Command:
    @click.command()
    @click.argument("a", type=EXISTING_FILE)
    @click.argument("b", type=EXISTING_FILE)
    @json_option
    def compare(a: Path, b: Path, as_json: bool) -> None:
        """Judge one label file against another, joined on the landmark id.

        Coverage, ARI, NMI and V-measure over landmarks and over distinct names, each group's best match, and the
        agreement on natural or human-made.
        """
        from pipelines.compare import compare as compare_files

        comparison = compare_files(a, b)
        if as_json:
            print_json(comparison.to_dict())
        else:
            echo(comparison.to_markdown())

    return compare
