"""Starts a command in two processes at a time, in one folder: ``python -m tests.faults.twice BASE WORDS PLACE...``.

The processes are forks, with all imports done, that wait for each other at the start. Of each the exit code and what it
said come out as a line of JSON.
"""

import json
import os
import sys
from pathlib import Path

from tests.faults.commands import run
from tests.hgld import small_dataset as _imports  # noqa: F401  # what the commands import, once


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
        print(json.dumps(both(Path(asked["base"]), asked["words"], Path(asked["place"]))), flush=True)
