"""The verb that sets up Tab completion, and completion in bash.

bash's words end before ``@`` and behind ``=`` and ``:``, while ours do not.
"""

import os

import click
from click.shell_completion import BashComplete, CompletionItem, split_arg_string

from hgld.cli.output import echo

_SCRIPT = """\
%(complete_func)s() {
    local kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(
        COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
            %(complete_var)s=bash_complete "$1"
    )
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class WholeWords(BashComplete):
    """Complete words as the command reads them, and answer with the part that bash is about to replace."""

    source_template = _SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]  # up to the cursor
        words = split_arg_string(line)[1:]
        return words, words.pop() if words and not line[-1].isspace() else ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        value = incomplete.partition("=")[2] if incomplete.startswith("-") else incomplete
        kept = 0 if set(os.environ["COMP_LINE"].split(" ")[-1]) & set("\"'\\") else _word_start(value)
        offered = super().get_completions(args, incomplete)
        for item in offered:
            if item.type == "plain":
                item.value = str(item.value)[kept:]
        return offered


def _word_start(text: str) -> int:
    """Return the position of bash's last word in an unquoted text; readline counts ``@`` to that word."""
    last = max((text.rfind(end) for end in os.environ["COMP_WORDBREAKS"]), default=-1)
    return last if text[last : last + 1] == "@" else last + 1


# -- completion -------------------------------------------------------------------------------------------------------


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

        made = WholeWords if shell == WholeWords.name else get_completion_class(shell)
        assert made is not None
        echo(made(cli, {}, "hgld", COMPLETE_VARIABLE).source(), nl=False)

    return completion
