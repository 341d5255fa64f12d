"""A new user's journey: successive commands of hgld, with counts of what the user has to type and read."""

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from hgld.cli import main
from tests.forked import together

MOST_COMMANDS, MOST_FLAGS, MOST_WORDS = 5, 8, 400  # limits on the way from a folder of images to a report


@dataclass
class Journey:
    """Commands run in a folder, each in a forked process, without a network and with an empty cache.

    Attributes:
        folder: working directory, where the user's files are.
        commands: the commands so far, as typed.
        flags: number of flags in these commands.
        words: number of words on stdout and stderr of these commands; lines and bars of tables do not count.
        texts: output of each command.
    """

    folder: Path
    commands: list[str] = field(default_factory=list)
    flags: int = 0
    words: int = 0
    texts: list[str] = field(default_factory=list)

    def hgld(self, command: str) -> str:
        """Run ``hgld COMMAND``, quoted as in a shell, and return its output, stdout before stderr."""
        arguments = shlex.split(command)
        # not inside the folder, which may itself be the dataset
        cache = self.folder.with_name(f"{self.folder.name}-cache")
        cache.mkdir(exist_ok=True)
        environment = {"COLUMNS": "120", "XDG_CACHE_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
        done = together(_run, self.folder, arguments, folder=cache, count=1, timeout=600, environment=environment)
        written = done.stdout + done.stderr
        self.commands.append(command)
        self.flags += sum(bool(re.match(r"--?[A-Za-z]", word)) for word in arguments)
        self.words += count_words(written)
        self.texts.append(written)
        return written

    def check(self, commands: int = MOST_COMMANDS, flags: int = MOST_FLAGS, words: int = MOST_WORDS) -> None:
        """Fail if the journey took more commands, flags or words of output than these limits."""
        each = zip(self.commands, self.texts, strict=True)
        per_command = ", ".join(f"{count_words(text)} ({command})" for command, text in each)
        said = f"{len(self.commands)} commands, {self.flags} flags, {self.words} words: {per_command}"
        assert len(self.commands) <= commands, said
        assert self.flags <= flags, said
        assert self.words <= words, said


def _run(folder: Path, arguments: list[str]) -> None:
    os.chdir(folder)
    main(arguments)


def count_words(text: str) -> int:
    """Return the number of words and numbers. Of a redrawn progress bar, only the last state counts."""
    shown = "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))
    return sum(bool(re.search(r"\w", word)) for word in shown.split())
