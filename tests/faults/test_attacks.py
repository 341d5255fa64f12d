"""Well-formed but hostile files: each costs less than 600 MB and 20 CPU seconds more than opening a dataset.

The memory is that of the process and its children together.
"""

import copy
import hashlib
import json
import resource
import shutil
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

from tests.hgld.range_server import serve
from tests.hgld.small_dataset import items_of_classes, write_dataset

pytestmark = [pytest.mark.slow, pytest.mark.long]
MOST_MEMORY, MOST_SECONDS = 600 << 20, 20


def call(function, *arguments):
    """Return a program that calls a function, given as ``module.name``."""
    module, _, name = function.rpartition(".")
    return f"from pathlib import PosixPath; from {module} import {name}; {name}(*{arguments!r})"


def opens(dataset: Path | str) -> str:
    return call("hgld.open_dataset", str(dataset), "train")


def reads_table(folder):
    return call("hgld.tables.read_parquet", folder / "labels.parquet")


def reads_weights(path):
    return call("hgld.training.models.backbone.read_weights", path)


def write_four_classes(folder, **given):
    write_dataset(folder, items_of_classes([2, 2, 2, 2]), **given)


def used_by(program):
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


def resident(pid):
    """Return the bytes of a process's memory without mapped files, such as its libraries."""
    try:
        _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
        return (int(resident) - int(shared)) * resource.getpagesize()
    except OSError:
        return 0


@pytest.fixture(scope="module")
def dataset(module_path):
    write_four_classes(module_path)
    return module_path


@pytest.fixture(scope="module")
def usual(dataset) -> tuple[int, float]:
    return min(used_by(opens(dataset))[:2] for _ in range(2))  # the first run may fill caches


# -- each function writes hostile files into a folder, and returns the program that reads them ------------------------


def six_large_webp(folder):
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


def wide_index(folder):
    def widen(index):
        return index.with_columns(pl.Series("extra", [np.zeros(40_000_000, np.int64)] * len(index)))

    write_four_classes(folder, edit=widen)
    return opens(folder)


def brackets(folder):
    write_four_classes(folder)
    (folder / "dataset.json").write_text("[" + "[]," * 33_000_000 + "[]]")
    return opens(folder)


def long_text(folder):
    """A text of 60 MB in which one emoji makes every character take four bytes."""
    write_four_classes(folder)
    text = json.dumps(["a" * 60_000_000 + "\N{GRINNING FACE}"], ensure_ascii=False)
    (folder / "dataset.json").write_text(text)
    return opens(folder)


def many_rows(folder):
    pl.select(label=pl.repeat("a", 150_000_000, dtype=pl.String)).write_parquet(folder / "labels.parquet")
    return reads_table(folder)


def long_embeddings(folder):
    rows = pl.Series("embedding", [np.zeros(1_000_000, np.float32)] * 1_000)
    pl.DataFrame([rows]).write_parquet(folder / "labels.parquet")
    return reads_table(folder)


def many_row_groups(folder):
    pl.DataFrame({"label": ["a"] * 150_000}).write_parquet(folder / "labels.parquet", row_group_size=1)
    return reads_table(folder)


def long_names(folder):
    """Rows of a class name of a million letters, which parquet stores once."""
    names = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 1_000_000])
    pq.write_table(pa.table({"label": names}), folder / "labels.parquet")
    return call("hgld.evaluation.embedding_files.read_labels", str(folder / "labels.parquet"), None)


def endless_braces(folder):
    return call("hgld.data.storage.expand_braces", ["train-{000000..99999999999}.tar"])


def brackets_from_a_wiki(folder):
    return """
from hgld.pipelines.web import _json_object
_json_object("https://wiki.example/api", b'{"query": [' + b"[]," * 20_000_000 + b"[]]}")
"""


def safetensors_of_a_terabyte(folder):
    size = 1 << 40
    header = json.dumps({"x": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    return reads_weights(folder / "weights.safetensors")


def million_tensors(folder):
    """Weights of a million empty tensors, all in the header."""
    tensors = (f'"{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for number in range(1_000_000))
    header = "{" + ",".join(tensors) + "}"
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return reads_weights(folder / "weights.safetensors")


def repacked(folder, change, tensors=1):
    """Write weights as torch.save does, but let a function write each member; return the program that reads them."""
    torch.save({str(number): torch.zeros(1) for number in range(tensors)}, folder / "small.pt")
    with (
        zipfile.ZipFile(folder / "small.pt") as small,
        zipfile.ZipFile(folder / "weights.pt", "w") as packed,
    ):
        for info in small.infolist():
            change(packed, info.filename, small.read(info))
    return reads_weights(folder / "weights.pt")


def with_pickle(folder, pickled):
    def change(packed, name, data):
        packed.writestr(name, pickled if name.endswith("data.pkl") else data)

    return repacked(folder, change)


def pickled_lists(folder):
    return with_pickle(folder, b"\x80\x02" + b"]" * 60_000_000 + b".")


def pickled_bytearray(folder):
    """A call of bytearray(4_000_000_000) in 40 bytes."""
    size = (4_000_000_000).to_bytes(5, "little")
    return with_pickle(folder, b"\x80\x02}q\x00U\x01ac__builtin__\nbytearray\n\x8a\x05" + size + b"\x85Rs.")


def compressed_weights(folder):
    """Weights of 4 GB of zeros, compressed to 4 MB."""

    def change(packed, name, data):
        packed.compression = zipfile.ZIP_DEFLATED
        with packed.open(name, "w", force_zip64=True) as member:
            for part in [bytes(1 << 26)] * 64 if name.endswith("data/0") else [data]:
                member.write(part)

    return repacked(folder, change)


def shared_bytes(folder):
    """A zip file in which 100 members are the same 64 MB."""

    def change(packed, name, data):
        first = next((info for info in packed.filelist if "/data/" in info.filename), None)
        if "/data/" in name and first is not None:
            packed.filelist.append(copy.copy(first))
            packed.filelist[-1].filename = name
        else:
            packed.writestr(name, bytes(1 << 26) if "/data/" in name else data)

    return repacked(folder, change, tensors=100)


def ground_truth_of_lists(folder):
    path = folder / "gnd_roxford5k.pkl"
    path.write_bytes(b"\x80\x02" + b"]" * (60 << 20) + b".")
    return call("hgld.evaluation.protocols.ground_truths.read_revisited", path)


def long_log(folder):
    (folder / "log.csv").write_text("step,loss\n" + "1,2\n" * 25_000_000)
    return call("hgld.training.log.read_rows", folder / "log.csv")


def log_of_a_report(folder):
    (folder / "log.csv").write_text("step,loss\n" + "1,2\n" * 15_000_000)
    return call("hgld.cli.main", ["report", str(folder), "--out", str(folder / "report.html")])


def many_decisions(folder):
    (folder / "decisions.yaml").write_text("decisions: [" + "{}," * 5_000_000 + "]")
    return call("hgld.pipelines.hierarchy.review.decisions.read_decisions", [folder / "decisions.yaml"])


@pytest.mark.parametrize(
    ("attack", "error"),
    [
        (six_large_webp, ""),
        (wide_index, ""),
        (brackets, "more than 67108864 bytes"),
        (long_text, "expected a JSON object"),
        (many_rows, "MiB or more in memory"),
        (long_embeddings, "MiB"),
        (endless_braces, "more than 100000 shards"),
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
def test_hostile_files_are_read_with_limited_memory_and_time_or_refused_with_one_line(attack, error, usual, tmp_path):
    check_cost(attack(tmp_path), attack.__name__, error, usual)


def check_cost(program: str, what: str, error: str, usual: tuple[int, float]) -> None:
    memory, seconds, last = used_by(program)
    print(f"{what}: {(memory - usual[0]) >> 20} MiB, {seconds - usual[1]:.1f} CPU s")  # pytest -s shows it
    assert error in last
    assert bool(error) == bool(last)
    assert memory - usual[0] < MOST_MEMORY
    assert seconds - usual[1] < MOST_SECONDS


class LyingManifest:
    """A server's dataset whose index is zeros, with the size and SHA-256 that its manifest states."""

    def __init__(self, folder, size):
        self.size, digest = size, hashlib.sha256()
        for _ in range(size >> 20):
            digest.update(bytes(1 << 20))
        manifest = json.loads((folder / "dataset.json").read_text())
        manifest["files"]["index.parquet"] = {"bytes": size, "sha256": digest.hexdigest()}
        (folder / "dataset.json").write_text(json.dumps(manifest))

    def __call__(self, asked):
        start, stop = map(int, asked.handler.headers["Range"].removeprefix("bytes=").split("-"))
        data = bytes(min(stop + 1, self.size) - start)
        asked.partial(data, Content_Range=f"bytes {start}-{start + len(data) - 1}/{self.size}")


@pytest.mark.enable_socket
@pytest.mark.parametrize(
    ("size", "error"), [(400 << 20, "no parquet signature"), (1_500 << 20, "according to dataset.json")]
)
def test_server_that_also_writes_the_manifest_costs_limited_memory(size, error, dataset, usual, tmp_path):
    folder = shutil.copytree(dataset, tmp_path / "served")
    with serve(folder) as server:
        server.lie, server.about = LyingManifest(folder, size), "index.parquet"
        check_cost(opens(server.url), f"index of {size >> 20} MiB", error, usual)
