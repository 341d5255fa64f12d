"""Well-formed but hostile files: each costs less than 600 MB and 20 CPU seconds more than opening a dataset.

The memory is that of the process and its children together.
"""

import copy
import hashlib
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
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from tests.hgld.range_server import Asked, serve
from tests.hgld.small_dataset import items_of_classes, write_dataset

pytestmark = [pytest.mark.slow, pytest.mark.long]
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


def long_text(dataset: Path, folder: Path) -> str:
    """A text of 60 MB in which one emoji makes every character take four bytes."""
    (copied(dataset, folder) / "dataset.json").write_text(
        json.dumps(["a" * 60_000_000 + "\N{GRINNING FACE}"], ensure_ascii=False)
    )
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


def million_tensors(dataset: Path, folder: Path) -> str:
    """Weights of a million empty tensors, all in the header."""
    folder.mkdir()
    tensors = (f'"{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for number in range(1_000_000))
    header = "{" + ",".join(tensors) + "}"
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return READ_WEIGHTS.format(str(folder / "weights.safetensors"))


def repacked(folder: Path, pickled: bytes) -> str:
    """Write weights as torch.save does, with another pickle; return the program that reads them."""
    folder.mkdir()
    torch.save({"x": torch.zeros(1)}, folder / "small.pt")
    with zipfile.ZipFile(folder / "small.pt") as small, zipfile.ZipFile(folder / "weights.pt", "w") as packed:
        for info in small.infolist():
            packed.writestr(info.filename, pickled if info.filename.endswith("data.pkl") else small.read(info))
    return READ_WEIGHTS.format(str(folder / "weights.pt"))


def pickled_lists(dataset: Path, folder: Path) -> str:
    return repacked(folder, b"\x80\x02" + b"]" * 60_000_000 + b".")


def pickled_bytearray(dataset: Path, folder: Path) -> str:
    """A call of bytearray(4_000_000_000) in 40 bytes."""
    size = (4_000_000_000).to_bytes(5, "little")
    return repacked(folder, b"\x80\x02}q\x00U\x01ac__builtin__\nbytearray\n\x8a\x05" + size + b"\x85Rs.")


def shared_bytes(dataset: Path, folder: Path) -> str:
    """A zip file in which 100 members are the same 64 MB."""
    folder.mkdir()
    torch.save({str(number): torch.zeros(1) for number in range(100)}, folder / "small.pt")
    with zipfile.ZipFile(folder / "small.pt") as small, zipfile.ZipFile(folder / "weights.pt", "w") as packed:
        tensors = [info.filename for info in small.infolist() if "/data/" in info.filename]
        for info in small.infolist():
            if info.filename not in tensors[1:]:
                packed.writestr(info.filename, bytes(1 << 26) if info.filename in tensors else small.read(info))
        first = packed.getinfo(tensors[0])
        for name in tensors[1:]:
            packed.filelist.append(copy.copy(first))
            packed.filelist[-1].filename = name
    return READ_WEIGHTS.format(str(folder / "weights.pt"))


def ground_truth_of_lists(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    (folder / "gnd_roxford5k.pkl").write_bytes(b"\x80\x02" + b"]" * (60 << 20) + b".")
    return (
        "from pathlib import Path; from hgld.evaluation.protocols.ground_truths import read_revisited; "
        f"read_revisited(Path({str(folder / 'gnd_roxford5k.pkl')!r}))"
    )


def long_log(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    (folder / "log.csv").write_text("step,loss\n" + "1,2\n" * 25_000_000)
    path = str(folder / "log.csv")
    return f"from pathlib import Path; from hgld.training.log import read_rows; read_rows(Path({path!r}))"


def many_row_groups(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    pl.DataFrame({"label": ["a"] * 150_000}).write_parquet(folder / "labels.parquet", row_group_size=1)
    return f"from hgld.tables import read_parquet; read_parquet({str(folder / 'labels.parquet')!r})"


def log_of_a_report(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    (folder / "log.csv").write_text("step,loss\n" + "1,2\n" * 15_000_000)
    command = ["report", str(folder), "--out", str(folder / "report.html")]
    return f"from hgld.cli import main; main({command})"


def many_decisions(dataset: Path, folder: Path) -> str:
    folder.mkdir()
    (folder / "decisions.yaml").write_text("decisions: [" + "{}," * 5_000_000 + "]")
    return (
        "from pathlib import Path; from hgld.pipelines.hierarchy.review.decisions import read_decisions; "
        f"read_decisions([Path({str(folder / 'decisions.yaml')!r})])"
    )


def long_names(dataset: Path, folder: Path) -> str:
    """Rows of a class name of a million letters, which parquet stores once."""
    folder.mkdir()
    names = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 1_000_000])
    pq.write_table(pa.table({"label": names}), folder / "labels.parquet")
    path = str(folder / "labels.parquet")
    return f"from hgld.evaluation.embedding_files import read_labels; read_labels({path!r}, None)"


@pytest.mark.parametrize(
    ("attack", "error"),
    [
        (six_large_webp, ""),
        (wide_index, ""),
        (brackets, "more than 67108864 bytes"),
        (deep_brackets, "more than 67108864 bytes"),
        (long_text, "expected a JSON object"),
        (many_rows, "MiB or more in memory"),
        (long_embeddings, "MiB"),
        (endless_braces, "more than 100000 shards"),
        (long_first_line, "131,073 characters"),
        (huge_projection, "dim"),
        (brackets_from_a_wiki, "values and brackets; expected at most"),
        (safetensors_of_a_terabyte, "cannot be read as weights"),
        (compressed_weights, "is compressed"),
        (million_tensors, "a header of"),
        (pickled_lists, "more than 2,097,152 opcodes"),
        (pickled_bytearray, "bytearray"),
        (shared_bytes, "bytes, more than the file"),
        (ground_truth_of_lists, "more than 2,097,152 opcodes"),
        (long_log, "expected a log of at most"),
        (log_of_a_report, "values; expected a log of at most"),
        (many_decisions, "too many fields and values"),
        (many_row_groups, "a footer of"),
        (long_names, "a name of more than 65,536 bytes"),
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


class LyingManifest:
    """A server's dataset whose index is zeros, with the size and SHA-256 that its manifest states."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size, digest = size, hashlib.sha256()
        for _ in range(size >> 20):
            digest.update(bytes(1 << 20))
        manifest = json.loads((folder / "dataset.json").read_text())
        manifest["files"]["index.parquet"] = {"bytes": size, "sha256": digest.hexdigest()}
        (folder / "dataset.json").write_text(json.dumps(manifest))

    def __call__(self, asked: Asked) -> None:
        start, stop = map(int, asked.handler.headers["Range"].removeprefix("bytes=").split("-"))
        data = bytes(min(stop + 1, self.size) - start)
        asked.partial(data, Content_Range=f"bytes {start}-{start + len(data) - 1}/{self.size}")


@pytest.mark.enable_socket
@pytest.mark.parametrize(
    ("size", "error"), [(400 << 20, "no parquet signature"), (1_500 << 20, "according to dataset.json")]
)
def test_server_that_also_writes_the_manifest_costs_limited_memory(size, error, dataset, usual, tmp_path):
    folder = copied(dataset, tmp_path / "served")
    with serve(folder) as server:
        server.lie, server.about = LyingManifest(folder, size), "index.parquet"
        memory, seconds, last = used_by(OPEN.format(server.url))
    print(f"index of {size >> 20} MiB: {(memory - usual[0]) >> 20} MiB, {seconds - usual[1]:.1f} CPU s")
    assert error in last
    assert memory - usual[0] < MOST_MEMORY
    assert seconds - usual[1] < MOST_SECONDS
