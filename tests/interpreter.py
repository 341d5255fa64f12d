"""The folder of the repository, and new Python interpreters."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python(
    *words: object, cwd: Path = ROOT, given: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python, which must end without an error.

    Args:
        words: arguments of the interpreter.
        cwd: working directory.
        given: standard input.
        environment: variables that are set or changed.
    """
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
