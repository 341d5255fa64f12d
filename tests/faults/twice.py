"""Starts a command in two processes at a time, in one folder, for every line of JSON on its standard input.

The processes are forks that wait for each other at the start, with the modules imported that the line names. Of each
the exit code and what it said come out as a line of JSON.
"""

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from tests.faults.commands import run


def both(base: Path, words: str, place: Path) -> list[tuple[int, str]]:
    """Run a command in two forks at a time."""
    ready, go = os.pipe(), os.pipe()
    answers = []
    for _ in range(2):
        answer = os.pipe()
        if os.fork() == 0:
            os.write(ready[1], b".")
            os.read(go[0], 1)
            found = run(words, base, place)
            os.write(answer[1], json.dumps(found).encode())
            os._exit(0)
        os.close(answer[1])
        answers.append(answer[0])
    for _ in range(2):
        os.read(ready[0], 1)
    os.write(go[1], b"..")
    found = []
    for answer in answers:
        with open(answer, "rb") as file:
            found.append(tuple(json.loads(file.read() or b'[-1, "killed"]')))
    for _ in range(2):
        os.wait()
    return found


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        for name in asked["modules"]:
            if name not in sys.modules:
                with suppress(ImportError):
                    import_module(name)
        print(json.dumps(both(Path(asked["base"]), asked["words"], Path(asked["place"]))), flush=True)
