"""Directive ``{command-reference}``: the help of every subcommand, as click prints it."""

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from hgld.cli import cli

_LITERAL = "\b\n"  # after this mark, click keeps the line breaks of a paragraph


class CommandReference(SphinxDirective):
    """One section per subcommand: usage, description, and options under their headings."""

    def run(self) -> list[nodes.Node]:
        parent = click.Context(cli, info_name="hgld")
        return [self._verb(name, parent) for name in cli.list_commands(parent)]

    def _verb(self, name: str, parent: click.Context) -> nodes.section:
        command = cli.get_command(parent, name)
        if command is None:
            raise self.error(f"hgld lists the subcommand {name!r} but does not have it")
        context = click.Context(command, info_name=name, parent=parent)
        program = f"hgld {name}"
        section = nodes.section(ids=[f"hgld-{name}"], names=[program], support_smartquotes=False)  # --out is no dash
        section += nodes.title(text=program)
        usage = " ".join(command.collect_usage_pieces(context))
        section += nodes.literal_block(text=f"{program} {usage}", language="none")
        section += [_paragraph(text) for text in (command.help or "").split("\n\n") if text.strip()]
        headings: dict[str, nodes.definition_list] = {}
        for option in command.get_params(context):
            record = option.get_help_record(context)
            if record is not None:
                heading = getattr(option, "section", "Options")
                items = headings.setdefault(heading, nodes.definition_list(classes=["options"]))
                items += self._option(name, option, *record)
        for heading, items in headings.items():
            section += [nodes.rubric(text=heading), items]
        return section

    def _option(self, verb: str, option: click.Parameter, spelled: str, text: str) -> nodes.definition_list_item:
        place = f"hgld-{verb}-{option.name}".replace("_", "-")
        standard = self.env.domains["std"]
        assert isinstance(standard, StandardDomain)
        for flag in (*option.opts, *option.secondary_opts):
            standard.add_program_option(f"hgld {verb}", flag, self.env.docname, place)
        term = nodes.term(ids=[place])
        term += nodes.literal(text=spelled)
        return nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(text=text)))


def _paragraph(text: str) -> nodes.Element:
    text = text.strip(" \n")
    if text.startswith(_LITERAL):
        return nodes.literal_block(text=text.removeprefix(_LITERAL), language="none")
    return nodes.paragraph(text=" ".join(text.split()))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
