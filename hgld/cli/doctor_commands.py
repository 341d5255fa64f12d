"""The doctor subcommand; and the facts behind ``hgld --version --json``."""

import click

from hgld.cli.options import json_option
from hgld.cli.output import echo, print_json


def doctor_command() -> click.Command:
    @click.command()
    @json_option
    @click.pass_context
    def doctor(ctx: click.Context, as_json: bool) -> None:
        """Show what is installed: versions, GPUs, extras.

        Exit code 1: a required package is missing, or torch cannot be imported.
        """
        from hgld.installation import installation

        found = installation()
        if as_json:
            print_json(found)
        else:
            rows = {name: found[name] for name in ("hgld", "python", "machine", "torch")}
            rows |= {f"[{extra}]": "installed" if there else "-" for extra, there in found["extras"].items()}
            echo("\n".join([*(f"{name:<14}{text}" for name, text in rows.items()), *found["hints"]]))
        if found["missing"] or found["torch"].startswith("cannot"):
            ctx.exit(1)

    return doctor
