"""What a terminal may be sent: bars where it can move its cursor, and never the control characters of other people."""

import os
import re
from typing import TextIO

# C0 but for tab and newline, DEL and C1 command a terminal, bidirectional overrides turn what is read around, and
# surrogates are bytes of file names that are no text.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream through a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def printable(text: str) -> str:
    r"""Text in which characters that could command a terminal are spelled: ``\x1b`` for ESC; lines stay lines."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable_json(text: str) -> str:
    """JSON in which these characters, which only its strings can hold, are escaped as JSON does it."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
