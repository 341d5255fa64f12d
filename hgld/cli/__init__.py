"""The ``hgld`` command: verbs that import what they need only when they run.

Exit codes: 0 done, 1 a check failed, 2 bad input, 130 stopped by the user.
"""

import sys
from importlib import import_module

import click

from hgld import __version__
from hgld.errors import HgldError

EXIT_CHECK_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130

VERBS = {  # verb: where its command is made, and what it does
    "demo": ("hierarchy_verbs:demo_command", "Run the main job on the landmarks that hgld ships."),
    "build-hierarchy": ("hierarchy_verbs:build_hierarchy_command", "Landmark categories in, hierarchical labels out."),
    "review": ("review_verbs:review_command", "Finish the hierarchy on a local web page."),
    "compare": ("hierarchy_verbs:compare_command", "Judge one label file against another."),
    "build-shards": ("shard_verbs:build_shards_command", "A dataset's release in, WebDataset shards out."),
    "index": ("check_verbs:index_command", "Rebuild a dataset's index from its tars alone."),
    "verify": ("check_verbs:verify_command", "Read a dataset back and list whatever is off."),
    "card": ("catalog_verbs:card_command", "The data card of a dataset directory, made anew."),
    "datasets": ("catalog_verbs:datasets_command", "The datasets that hgld can shard, and how to obtain them."),
    "download": ("catalog_verbs:download_command", "Fetch a release whose owners allow direct download."),
    "train": ("train_verbs:train_command", "Train a model by a recipe, on one process or many."),
    "embed": ("embed_verbs:embed_command", "A dataset's images in, embeddings of a trained model out."),
    "evaluate": ("measure_verbs:evaluate_command", "Every metric of every level, from embeddings and labels."),
    "report": ("report_verbs:report_command", "Results of runs as one page: tables, curves, galleries."),
    "search": ("embed_verbs:search_command", "The images of a dataset that are nearest to yours."),
    "export": ("embed_verbs:export_command", "A trained model as one file that runs without hgld."),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        code = cli.main(arguments, prog_name="hgld", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("hgld: stopped; the same command goes on from here.", err=True)
        code = EXIT_STOPPED
    except HgldError as error:
        if debug:
            raise
        click.echo(f"hgld: {error}", err=True)
        code = EXIT_BAD_INPUT
    sys.exit(code if isinstance(code, int) else 0)


class _Verbs(click.Group):
    """A group that knows its verbs' one-line helps without importing the verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        place, summary = VERBS[cmd_name]
        module, _, make = place.partition(":")
        command = getattr(import_module(f"hgld.cli.{module}"), make)()
        command.name, command.short_help = cmd_name, summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, summary) for name, (_, summary) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The verbs are: {', '.join(VERBS)}."
            raise click.UsageError(f"there is no verb {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="hgld")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Build, measure and train on hierarchically labelled image datasets."""
