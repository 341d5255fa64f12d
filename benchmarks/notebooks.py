"""Run the notebooks of docs/notebooks, and store their outputs in them.

The outputs are stored because most readers do not run notebooks. The program needs nbclient and ipykernel::

    python benchmarks/notebooks.py shards happier --write

:mod:`benchmarks.libraries` runs them too.
"""

import argparse
import base64
import io
import itertools
import json
import os
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = ("hierarchy", "shards", "happier", "evaluate", "report")  # in reading order
SECONDS = 900  # time limit per cell, in seconds
_CONTINUED = re.compile(r"^\s*!(?:.*\\\n)+", re.MULTILINE)  # a shell command and its continuation lines
_KEPT = ("image/png", "text/html", "text/plain")  # an output keeps only the first of these formats that it has


def read_notebook(name: str) -> dict[str, Any]:
    """Return a notebook as parsed JSON."""
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def program_of(notebook: dict[str, Any]) -> str:
    """Return the code of all cells as one program; bash runs shell lines (``!command``)."""
    lines = ["import subprocess"]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            code = _CONTINUED.sub(lambda command: command[0].replace("\\\n", " "), "".join(cell["source"]))
            lines += [_plain(line) for line in code.splitlines()]
    return "\n".join(lines) + "\n"


def _plain(line: str) -> str:
    command = line.lstrip()
    if not command.startswith("!"):
        return line
    run = f"subprocess.run(['bash', '-c', f{command[1:]!r}], check=True)"
    return line[: len(line) - len(command)] + run


def execute(name: str, folder: Path) -> dict[str, Any]:
    """Run a notebook in a folder with Jupyter; return it with cleaned outputs."""
    import nbformat  # pyright: ignore[reportMissingImports]
    from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute(cwd=str(folder))
    return cleaned(json.loads(nbformat.writes(notebook)), str(folder))


def cleaned(notebook: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a notebook without times, paths and warnings, which differ between runs and machines."""
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            kept = [_output(one, folder) for one in cell["outputs"] if one.get("name") != "stderr"]
            cell["outputs"] = list(_joined(kept))
    notebook["metadata"] = {"kernelspec": notebook["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    return notebook


def _joined(outputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield outputs, with consecutive printed pieces joined."""
    for kind, some in itertools.groupby(outputs, lambda output: output["output_type"]):
        group = list(some)
        yield from [group[0] | {"text": [line for one in group for line in one["text"]]}] if kind == "stream" else group


def _output(output: dict[str, Any], folder: str) -> dict[str, Any]:
    if output["output_type"] == "stream":
        return output | {"text": "".join(output["text"]).replace(f"{folder}/", "").splitlines(keepends=True)}
    kind = next(kind for kind in _KEPT if kind in output["data"])
    data = output["data"][kind]
    return output | {"data": _as_jpeg(data) if kind == "image/png" else {kind: data}, "metadata": {}}


def _as_jpeg(data: str) -> dict[str, str]:
    """Return a PNG as a JPEG, which takes a quarter of the bytes in the repository."""
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        flat = Image.new("RGB", picture.size, "white")
        flat.paste(picture.convert("RGB"), mask=picture.getchannel("A") if "A" in picture.getbands() else None)
    written = io.BytesIO()
    flat.save(written, "JPEG", quality=85)
    return {"image/jpeg": base64.b64encode(written.getvalue()).decode()}


def write_notebook(name: str, notebook: dict[str, Any]) -> None:
    """Write a notebook as Jupyter does."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")


def run_notebook(name: str, *, write: bool = False) -> float:
    """Run a notebook in a new folder; return its seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = execute(name, Path(folder))
    if write:
        write_notebook(name, done)
    return time.monotonic() - started


def main() -> None:
    """Run notebooks and print their seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks to run; all by default")
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    asked = parser.parse_args()
    for name in asked.names or NAMES:
        print(f"{name}: {run_notebook(name, write=asked.write):.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
