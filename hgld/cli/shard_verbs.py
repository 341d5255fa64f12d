"""The verb that makes shards: build-shards."""

from pathlib import Path
from typing import Any

import click

from hgld.cli.completers import complete_sources
from hgld.cli.options import SectionedCommand, config_options, json_option, take
from hgld.cli.shown import echo, print_json, progress_bars


def build_shards_command() -> click.Command:
    from pipelines.shard_config import ShardConfig, SourceConfig

    @click.command(cls=SectionedCommand)
    @click.argument("name", shell_complete=complete_sources)
    @click.option(
        "--source",
        type=click.Path(path_type=Path, exists=True),
        required=True,
        help="Folder of the release; for manifest, the table (CSV or parquet).",
    )
    @click.option("--out", required=True, help="New or empty folder, or a URL (s3://bucket/name), of the dataset.")
    @click.option("--dry-run", is_flag=True, help="Say what would be read and written, then stop.")
    @json_option
    @config_options({"Reading the release": SourceConfig, "Writing the shards": ShardConfig})
    def build_shards(name: str, source: Path, out: str, dry_run: bool, as_json: bool, **given: Any) -> None:
        """Build the shards of the dataset NAME: its official release in, WebDataset shards and their index out.

        hgld datasets lists the names; folders (top/mid/fine/image.jpg) and manifest (a table with one column a level)
        take your own images. Stopped anywhere, the same command goes on; run again, it does nothing.
        """
        for option in ("levels", "splits"):
            given[option] = tuple(part.strip() for text in given[option] for part in text.split(","))
        options, config = take(SourceConfig, given), take(ShardConfig, given)
        from pipelines import shards, shards_text
        from pipelines.shard_dry_run import plan_build

        if dry_run:
            plan = plan_build(shards.read_release(name, source, options), out, options, config)
            if as_json:
                print_json(shards_text.plan_summary(plan))
            else:
                echo(shards_text.plan_text(plan))
            return
        with progress_bars() as progress:
            result = shards.build_shards(name, source, out, options, config, progress)
        if as_json:
            print_json(shards_text.result_summary(result))
        else:
            echo(shards_text.result_text(result))

    return build_shards
