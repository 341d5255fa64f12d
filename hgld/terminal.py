"""Text and streams of a terminal: where progress bars may move, and text without other people's control characters."""

import os
import re
from typing import TextIO

# C0 but for tab and newline, DEL and C1 command a terminal, bidirectional overrides turn what is read around, and
# surrogates are bytes of file names that are no text.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_terminal(stream: TextIO) -> bool:
    """Tell whether the stream is a terminal that can move its cursor, so that a person is looking.

    A notebook gives the commands of its cells (``!hgld ...``) one that cannot, and calls it xterm.
    """
    can_move = os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and "JPY_PARENT_PID" not in os.environ
    return can_move and stream.isatty()


def printable(text: str) -> str:
    r"""Escape the characters of a text that could command a terminal (ESC becomes ``\x1b``); lines stay lines."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable_json(text: str) -> str:
    """Escape these characters, which only strings can hold, in a JSON text as JSON does it."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
