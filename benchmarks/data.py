"""Speed of reading, decoding, opening and planning, compared with webdataset and plain PyTorch code.

Run with: python benchmarks/data.py --work DIR [--images 20000] [--only read batches stream open plan]

Everything runs on one core. Times are CPU seconds, so that other load on the machine has little effect. Files are in
the page cache. All programs of a group take turns within every round; figures are medians over the rounds. The first
run makes the images and keeps them in DIR, which needs some 2 GB. The plan needs pytorch-metric-learning, a benchmark
extra.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import made_shards
import numpy as np
import torch
from measured import head, in_its_own_process, row, status_bytes
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from webdataset.compat import WebDataset

from hgld import open_dataset, stream
from hgld.data.batch import Batch, normalize
from hgld.data.loader import Loader
from hgld.data.views import TrainView
from hgld.samplers import PKSampler

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, SIZE = 256, 224
PLANNED_ITEMS, PLANNED_CLASSES = 970_981, 46_593  # about the size of H-GLDv2's training set
OPENED_ITEMS = 1_500_000


@dataclass(frozen=True)
class Row:
    """One result: the median of several rounds, with its name and unit."""

    group: str
    side: str
    value: float
    unit: str


@dataclass(frozen=True)
class Made:
    """Input data: loose files, a dataset directory, and the files' bytes in memory."""

    work: Path
    files: list[Path]
    images: list[bytes]
    sizes: tuple[int, int]

    @property
    def shards(self) -> Path:
        return self.work / "hgld"


Sides = dict[str, Callable[[], float]]  # name of an implementation -> function that returns one measurement


def take_turns(group: str, unit: str, sides: Sides, rounds: int) -> list[Row]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            found[name].append(measure())
    return [Row(group, name, statistics.median(values), unit) for name, values in found.items()]


def rate(count: int, run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return count / (time.process_time() - began)


def drain(values: Iterable[object]) -> None:
    for _ in values:
        pass


# -- reading --------------------------------------------------------------------------------------------------------


def read(made: Made, rounds: int) -> list[Row]:
    """Measure undecoded images per second from the page cache."""
    dataset = open_dataset(made.shards, "train")
    count = len(dataset)
    order = np.random.default_rng(0).permutation(count)
    urls = [str(path) for path in sorted(made.shards.glob("*.tar"))]
    parts = np.array_split(order, max(1, count // BATCH))
    places_of = dataset.frame.select("shard", "offset", "size").rows()
    opened = {name: os.open(made.shards / name, os.O_RDONLY) for name in sorted({name for name, _, _ in places_of})}
    ranges = [(opened[places_of[i][0]], places_of[i][2], places_of[i][1]) for i in order]
    sides: Sides = {
        "webdataset stream": lambda: rate(count, lambda: drain(WebDataset(urls, shardshuffle=False))),
        "os.pread alone, random": lambda: rate(count, lambda: drain(os.pread(*one) for one in ranges)),
        "hgld read, random": lambda: rate(count, lambda: drain(dataset.read(int(i)) for i in order)),
        "hgld read_many of 256, random": lambda: rate(count, lambda: drain(dataset.read_many(part) for part in parts)),
    }
    rows = take_turns("read", "images/s", sides, rounds)
    for descriptor in opened.values():
        os.close(descriptor)
    return rows


# -- batches --------------------------------------------------------------------------------------------------------


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Plain dataset: one file per image, Pillow, torchvision's transforms."""

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.16, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        image = self.transform(Image.open(self.files[item]).convert("RGB"))
        assert isinstance(image, torch.Tensor)
        return image, made_shards.labels_of(item)[0]


def pk_batches(made: Made) -> PKSampler:
    fine = np.array([made_shards.labels_of(i)[0] for i in range(len(made.images))])
    return PKSampler(torch.from_numpy(fine), BATCH // 4, 4)


def batches(made: Made, rounds: int) -> list[Row]:
    """Measure images per second in batches of 256 at 224 pixels, as floats for the model or as bytes."""
    dataset = open_dataset(made.shards, "train")
    urls = [str(path) for path in sorted(made.shards.glob("*.tar"))]

    def loader() -> Iterator[Batch]:
        return iter(Loader(dataset, pk_batches(made), TrainView(SIZE)))

    def normalized() -> Iterator[torch.Tensor]:
        return (normalize(batch.images, MEAN, STD) for batch in loader())

    def by_webdataset() -> Iterator[object]:
        samples: Any = WebDataset(urls, shardshuffle=False).decode("pil").to_tuple("jpg", "json")
        return iter(samples.map_tuple(Files.transform, lambda facts: facts["labels"][0]).batched(BATCH))

    def plain() -> Iterator[object]:
        return iter(DataLoader(Files(made.files), batch_sampler=pk_batches(made)))

    def measured(start: Callable[[], Iterator[object]], count: int) -> float:
        found = start()
        next(found)  # warm up imports, plans and memory
        return rate(count * BATCH, lambda: drain(islice(found, count)))

    sides: Sides = {
        "file an image, PIL, torchvision v1, floats": lambda: measured(plain, 3),
        "webdataset, PIL, torchvision v1, floats": lambda: measured(by_webdataset, 3),
        "hgld, bytes": lambda: measured(loader, 12),
        "hgld, floats normalised on the CPU": lambda: measured(normalized, 12),
    }
    return take_turns("batches", "images/s", sides, rounds)


def streams(made: Made, rounds: int) -> list[Row]:
    """Measure images per second in P x K batches of 256 at 224 pixels, sequentially and by random access.

    It writes some 16 new shards, so that each of eight streams without an index has at least one shard.
    """
    folder = made.work / "streamed"
    if not (folder / "dataset.json").exists():
        made_shards.write_hgld(folder, made.images, made.sizes, per_shard=max(8, len(made.images) // 16 // 8 * 8))
    tars = sorted(str(path) for path in folder.glob("*.tar"))
    steps = min(20, len(made.images) // BATCH - 1)

    def measured(start: Callable[[], Iterable[object]]) -> float:
        found = iter(start())
        next(found)  # warm up imports, plans, memory and windows
        return rate((steps - 1) * BATCH, lambda: drain(islice(found, steps - 1)))

    with served(folder) as url:
        sides: Sides = {
            "hgld loader, random": lambda: measured(
                lambda: Loader(open_dataset(folder, "train"), pk_batches(made), TrainView(SIZE))
            ),
            "hgld stream, folder": lambda: measured(lambda: stream(folder, BATCH // 4, 4)),
            "hgld stream, HTTP": lambda: measured(lambda: stream(url, BATCH // 4, 4)),
            "hgld stream, bare tars": lambda: measured(lambda: stream(tars, BATCH // 4, 4, batches_per_epoch=steps)),
        }
        return take_turns("stream", "images/s", sides, rounds)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the folder over HTTP with ranges, in a child process."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.hgld.range_server import serve\n"
        "with serve(Path(sys.argv[1])) as server:\n    print(server.url, flush=True)\n    sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(folder)]
    root, pipe = Path(__file__).parent.parent, subprocess.PIPE
    with subprocess.Popen(command, text=True, cwd=root, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


# -- opening and planning -------------------------------------------------------------------------------------------


def open_index(work: Path) -> dict[str, float]:
    before = status_bytes("VmRSS")
    began = time.process_time()
    dataset = open_dataset(work / "large", "train")
    seconds = time.process_time() - began
    assert len(dataset) == OPENED_ITEMS
    return {"seconds": seconds, "MiB": (status_bytes("VmHWM") - before) / 2**20}


def open_large(made: Made, rounds: int) -> list[Row]:
    """Measure time and peak memory of opening 1.5 M items in a fresh process, after hgld's imports."""
    if not (made.work / "large" / "dataset.json").exists():
        made_shards.write_large_index(made.work / "large", OPENED_ITEMS)
    found = [in_its_own_process(__file__, "--work", made.work, "--task", "open") for _ in range(rounds)]
    return [
        Row("open", f"{OPENED_ITEMS:,} items", statistics.median(f[u] for f in found), u) for u in ("seconds", "MiB")
    ]


def long_tailed() -> np.ndarray:
    """Return class numbers of H-GLDv2's size, whose class sizes follow a power law."""
    sizes = 1 / np.arange(1, PLANNED_CLASSES + 1) ** 0.7
    sizes = np.maximum(2, np.floor(sizes / sizes.sum() * PLANNED_ITEMS).astype(int))
    sizes[np.arange(PLANNED_ITEMS - sizes.sum()) % PLANNED_CLASSES] += 1
    return np.random.default_rng(0).permutation(np.repeat(np.arange(PLANNED_CLASSES), sizes))


def plan_by_hgld() -> dict[str, float]:
    labels = torch.from_numpy(long_tailed())
    sampler = PKSampler(labels, BATCH // 4, 4)
    began = time.process_time()
    sampler.batch(0, 0)
    seconds = time.process_time() - began
    seen = np.concatenate([sampler.batch(0, step) for step in range(len(sampler))])
    classes = labels.numpy()[seen].reshape(len(sampler), -1, 4)[:, :, 0]
    twice = sum(len(np.unique(row)) < len(row) for row in classes)
    return {
        "seconds": seconds,
        "coverage, %": 100 * len(np.unique(seen)) / len(labels),
        "batches with a class twice": twice,
    }


def plan_by_metric_learning() -> dict[str, float]:
    from pytorch_metric_learning.samplers import MPerClassSampler  # pyright: ignore[reportMissingImports]

    labels = long_tailed()
    sampler = MPerClassSampler(labels, 4, BATCH, length_before_new_iter=len(labels))
    began = time.process_time()
    seen = np.array(list(sampler))
    seconds = time.process_time() - began
    return {"seconds": seconds, "coverage, %": 100 * len(np.unique(seen)) / len(labels)}


def plan(made: Made, rounds: int) -> list[Row]:
    """Measure planning an epoch of P x K batches at H-GLDv2's size."""
    ours = [in_its_own_process(__file__, "--work", made.work, "--task", "plan") for _ in range(rounds)]
    rows = [Row("plan", "hgld PKSampler", statistics.median(f[unit] for f in ours), unit) for unit in ours[0]]
    if find_spec("pytorch_metric_learning") is None:
        return rows
    theirs = in_its_own_process(__file__, "--work", made.work, "--task", "their plan")
    return rows + [Row("plan", "pytorch-metric-learning MPerClassSampler", theirs[unit], unit) for unit in theirs]


# -- running --------------------------------------------------------------------------------------------------------

GROUPS: dict[str, Callable[[Made, int], list[Row]]] = {
    "read": read,
    "batches": batches,
    "stream": streams,
    "open": open_large,
    "plan": plan,
}


def make(work: Path, count: int, sizes: tuple[int, int]) -> Made:
    work.mkdir(parents=True, exist_ok=True)
    folder = work / f"{count}-{sizes[0]}x{sizes[1]}"
    files = made_shards.make_jpegs(folder / "files", count, *sizes)
    made = Made(folder, files, [file.read_bytes() for file in files], sizes)
    if not (made.shards / "dataset.json").exists():
        made_shards.write_hgld(made.shards, made.images, sizes)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the generated images and shards")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--json", type=Path, help="JSON file for the figures")
    parser.add_argument("--task", choices=["open", "plan", "their plan"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if options.task:
        tasks = {"open": lambda: open_index(options.work), "plan": plan_by_hgld, "their plan": plan_by_metric_learning}
        print(json.dumps(tasks[options.task]()))
        return
    made = make(options.work, options.images, (options.width, options.height))
    average = sum(map(len, made.images)) / len(made.images)
    print(f"{len(made.images):,} JPEGs of {options.width} x {options.height}, {average / 1000:.1f} kB on average\n")
    print(head("what", "side", "figure", "unit"))
    rows = []
    for name in options.only:
        found = GROUPS[name](made, options.rounds)
        for one in found:
            figure = f"{one.value:,.{0 if one.value >= 100 else 2}f}"
            print(row([one.group, one.side, figure, one.unit]), flush=True)
        rows += found
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
