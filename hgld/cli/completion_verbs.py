"""The verb that teaches shells to complete: completion."""

import click

from hgld.cli.shown import echo


def completion_command() -> click.Command:
    @click.command()
    @click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
    def completion(shell: str) -> None:
        """Print the script by which SHELL completes verbs, options and names behind the Tab key.

        \b
        bash: hgld completion bash > ~/.local/share/bash-completion/completions/hgld
        zsh:  hgld completion zsh > ~/.zfunc/_hgld, with fpath+=~/.zfunc before compinit in ~/.zshrc
        fish: hgld completion fish > ~/.config/fish/completions/hgld.fish
        """
        from click.shell_completion import get_completion_class

        from hgld.cli import COMPLETE_VARIABLE, cli
        from hgld.cli.bash_completion import WholeWords

        made = WholeWords if shell == WholeWords.name else get_completion_class(shell)
        assert made is not None
        echo(made(cli, {}, "hgld", COMPLETE_VARIABLE).source(), nl=False)

    return completion
