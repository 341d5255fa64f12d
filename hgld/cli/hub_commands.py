"""The verb that takes datasets and runs to the Hugging Face Hub: push."""

from pathlib import Path

import click

from hgld.cli.options import FOLDER, json_option
from hgld.cli.output import echo, print_json, progress_bars

_SHOWN = {"new": "+", "changed": "~", "same": "="}


def push_command() -> click.Command:
    @click.command()
    @click.argument("folder", type=FOLDER)
    @click.argument("address", metavar="hf:USER/NAME")
    @click.option("--dry-run", is_flag=True, help="List the files with their sizes; send nothing.")
    @click.option("--private", is_flag=True, help="Make a repository that does not exist a private one.")
    @json_option
    def push(folder: Path, address: str, dry_run: bool, private: bool, as_json: bool) -> None:
        """Push a dataset directory or a run of hgld train to the Hugging Face Hub.

        Of a dataset: its shards, tables, card and Croissant metadata. Of a run: the weights of its best checkpoint, its
        config, and a card with its evaluation. Every file is listed first; those that are there already are not sent
        again, so the same command goes on after a stop. The token is the one that `hf auth login` keeps.
        """
        from hgld import hub
        from hgld.data.format import MANIFEST

        hub.repository(address)
        if (folder / MANIFEST).is_file():
            contents = hub.dataset_contents(folder)
        else:
            from hgld.training.inference.hub_run import run_contents

            contents = run_contents(folder, address)
        listed = hub.listing(address, contents)
        if not as_json:
            for file in listed:
                echo(f"{_SHOWN[file.state]} {file.bytes:>14,}  {file.path}")
        if not dry_run:
            with progress_bars() as progress:
                hub.push(address, contents, listed=listed, private=private, progress=progress)
        sent = [file for file in listed if file.state != "same"]
        if as_json:
            files = [{"path": file.path, "bytes": file.bytes, "state": file.state} for file in listed]
            print_json(
                {"repository": hub.repository(address), "kind": contents.kind, "sent": not dry_run, "files": files}
            )
        else:
            size = sum(file.bytes for file in sent)
            done = "would be sent" if dry_run else "sent"
            echo(f"{len(sent)} of {len(listed)} files, {size:,} bytes, {done} to the {contents.kind} {address}")

    return push
