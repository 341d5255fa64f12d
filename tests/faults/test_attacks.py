"""Well-formed but hostile files: each costs less than 600 MB and 20 CPU seconds more than opening a dataset.

The memory is that of the process and its children together.
"""

import json
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from tests.hgld.small_dataset import items_of_classes, write_dataset

pytestmark = pytest.mark.slow
MOST_MEMORY, MOST_SECONDS = 600 << 20, 20
READ_WEIGHTS = (
    "from pathlib import Path; from hgld.training.models.backbone import read_weights; read_weights(Path({!r}))"
)
OPEN = "import hgld; hgld.open_dataset({!r}, 'train')"


def used_by(program: str) -> tuple[int, float, str]:
    """Run a Python program; return its peak memory in bytes, its CPU seconds and the last line of its errors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = 0
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        while process.poll() is None:
            peak = max(peak, sum(map(resident, family(process.pid))))
            time.sleep(0.01)
        errors.seek(0)
        last = errors.read().strip().rpartition("\n")[2]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return peak, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, last


def family(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [one for child in children.read_text().split() for one in family(int(child))]
        except OSError:
            continue  # the thread has ended
    return found


def resident(pid: int) -> int:
    """Return the bytes of a process's memory without mapped files, such as its libraries."""
    try:
        _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
        return (int(resident) - int(shared)) * resource.getpagesize()
    except OSError:
        return 0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    write_dataset(folder, items_of_classes([2, 2, 2, 2]))
    return folder


@pytest.fixture(scope="module")
def usual(dataset) -> tuple[int, float]:
    return min(used_by(OPEN.format(str(dataset)))[:2] for _ in range(2))  # the first run may fill caches


def copied(dataset: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in dataset.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def six_large_webp(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    Image.new("RGB", (7070, 7070), (200, 30, 40)).save(folder / "large.webp", quality=50)
    return f"""
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from hgld.data.decode import decode
from hgld.data.images import EncodedImage
from hgld.data.views import TestView
image = EncodedImage(Path({str(folder / "large.webp")!r}).read_bytes(), 1, None, "an image")
view = TestView(224, 256)
def read(position):
    out = np.empty((224, 224, 3), np.uint8)
    decode(image, view.parameters([7070], [7070]), 0, out)
with ThreadPoolExecutor(6) as pool:
    list(pool.map(read, range(6)))
"""


def wide_index(dataset: Path, folder: Path) -> str:
    def widen(index: pl.DataFrame) -> pl.DataFrame:
        return index.with_columns(pl.Series("extra", [np.zeros(40_000_000, np.int64)] * len(index)))

    write_dataset(folder, items_of_classes([2, 2, 2, 2]), edit=widen)
    return OPEN.format(str(folder))


def brackets(dataset: Path, folder: Path) -> str:
    (copied(dataset, folder) / "dataset.json").write_text("[" + "[]," * 33_000_000 + "[]]")
    return OPEN.format(str(folder))


def deep_brackets(dataset: Path, folder: Path) -> str:
    (copied(dataset, folder) / "dataset.json").write_text("[" * 100_000_000)
    return OPEN.format(str(folder))


def many_rows(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    pl.select(label=pl.repeat("a", 150_000_000, dtype=pl.String)).write_parquet(folder / "labels.parquet")
    return f"from hgld.tables import read_parquet; read_parquet({str(folder / 'labels.parquet')!r})"


def long_embeddings(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    rows = pl.Series("embedding", [np.zeros(1_000_000, np.float32)] * 1_000)
    pl.DataFrame([rows]).write_parquet(folder / "embeddings.parquet")
    return f"from hgld.tables import read_parquet; read_parquet({str(folder / 'embeddings.parquet')!r})"


def endless_braces(dataset: Path, folder: Path) -> str:
    return "from hgld.data.storage import expand_braces; expand_braces(['train-{000000..99999999999}.tar'])"


def long_first_line(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    (folder / "names.txt").write_text("x" * 131_073 + "\nchurch\n")
    command = ["build-hierarchy", "--classes", str(folder / "names.txt"), "--out", str(folder / "build")]
    return f"from hgld.cli import main; main({command})"


def huge_projection(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model": {"dim": 20_000_000}}))
    path = str(folder / "config.json")
    return f"from hgld.training.config import read_config; from pathlib import Path; read_config(Path({path!r}))"


def brackets_from_a_wiki(dataset: Path, folder: Path) -> str:
    return """
from hgld.pipelines.web import _json_object
_json_object("https://wiki.example/api", b'{"query": [' + b"[]," * 20_000_000 + b"[]]}")
"""


def safetensors_of_a_terabyte(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    size = 1 << 40
    header = json.dumps({"x": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    return READ_WEIGHTS.format(str(folder / "weights.safetensors"))


def compressed_weights(dataset: Path, folder: Path) -> str:
    """Weights of 4 GB of zeros that torch.save wrote, compressed to 4 MB."""
    folder.mkdir()
    torch.save({"x": torch.zeros(1)}, folder / "small.pt")
    with (
        zipfile.ZipFile(folder / "small.pt") as small,
        zipfile.ZipFile(folder / "weights.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for info in small.infolist():
            with packed.open(info.filename, "w", force_zip64=True) as member:
                if info.filename.endswith("data/0"):
                    for _ in range(64):
                        member.write(bytes(1 << 26))
                else:
                    member.write(small.read(info))
    return READ_WEIGHTS.format(str(folder / "weights.pt"))


@pytest.mark.parametrize(
    ("attack", "error"),
    [
        (six_large_webp, ""),
        (wide_index, ""),
        (brackets, "values and brackets; expected at most"),
        (deep_brackets, "values and brackets; expected at most"),
        (many_rows, "MiB or more in memory"),
        (long_embeddings, "MiB"),
        (endless_braces, "more than 100000 shards"),
        (long_first_line, "131,073 characters"),
        (huge_projection, "dim"),
        (brackets_from_a_wiki, "values and brackets; expected at most"),
        (safetensors_of_a_terabyte, "cannot be read as weights"),
        (compressed_weights, "is compressed"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_hostile_files_are_read_with_limited_memory_and_time_or_refused_with_one_line(
    attack, error, dataset, usual, tmp_path
):
    memory, seconds, last = used_by(attack(dataset, tmp_path / "hostile"))
    print(f"{attack.__name__}: {(memory - usual[0]) >> 20} MiB, {seconds - usual[1]:.1f} CPU s")  # pytest -s shows it
    assert error in last
    assert bool(error) == bool(last)
    assert memory - usual[0] < MOST_MEMORY
    assert seconds - usual[1] < MOST_SECONDS
