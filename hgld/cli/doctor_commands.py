"""The verb about the installation: doctor; and the facts behind ``hgld --version --json``."""

from typing import TYPE_CHECKING

import click

from hgld.cli.options import json_option
from hgld.cli.output import echo, print_json

if TYPE_CHECKING:
    from hgld.installation import Installation


def print_facts() -> None:
    """Print everything that a report of a fault needs, as JSON."""
    from hgld.installation import as_json, installation

    print_json(as_json(installation()))


def doctor_command() -> click.Command:
    @click.command()
    @json_option
    @click.pass_context
    def doctor(ctx: click.Context, as_json: bool) -> None:
        """Say what is installed, which extras are missing and for what, which GPU and caches there are.

        Leaves with 1 where something that hgld cannot do without is missing, or torch cannot be imported.
        """
        from hgld import installation

        found = installation.installation()
        if as_json:
            print_json(installation.as_json(found))
        else:
            echo(_text(found, installation.EXTRAS))
        if not found.works:
            ctx.exit(1)

    return doctor


def _text(found: "Installation", purposes: dict[str, str]) -> str:
    lines = [f"{name:<12} {text}" for name, text in found.facts.items()]
    lines += ["", f"{'extra':<12} {'':<14} what it is for"]
    for extra, packages in found.extras.items():
        whole = bool(packages) and None not in packages.values()
        lines.append(f"{extra:<12} {'installed' if whole else 'not installed':<14} {purposes[extra]}")
    missing = [extra for extra, packages in found.extras.items() if None in packages.values()]
    if missing:
        lines += ["", f"To add one: pip install 'hgld[{missing[0]}]'; all of them: pip install 'hgld[all]'"]
    if found.caches:
        lines += ["", *(f"{size / 2**20:>10,.1f} MiB in {place}" for place, size in found.caches.items())]
    return "\n".join([*lines, "", *(found.advice or ["Nothing is wrong with this installation."])])
