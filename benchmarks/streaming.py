"""Time of batches from a server with latency, compared with the same batches from a disk.

Run with: python benchmarks/streaming.py --work DIR [--latency 100] [--steps 100] [--rounds 3]

A process reads 32 images per step, like one of eight processes with a batch of 256, and then sleeps as long as a GPU
would compute. The server on 127.0.0.1 waits before every response. All cases take turns within every round; each run
is a process of its own, and its images are in the page cache. Prints CSV: seconds from the first step to the last
(median, least and most over the rounds), and their ratio to the disk.
"""

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import made_shards
from measured import in_its_own_process

from hgld import open_dataset, stream
from hgld.data import remote_files
from hgld.data.loader import Loader
from hgld.data.views import TrainView
from hgld.samplers import PKSampler

P, K, IMAGES, SIZE = 8, 4, 6400, 256
CASES = [  # (order of the images, source)
    (order, source)
    for order in ("pk", "stream")
    for source in ("disk", "server", "server, empty cache", "server, full cache")
]


def read(order: str, place: str, cache: str, steps: int, seconds: float) -> dict[str, float]:
    """Read an epoch's first batches, and sleep after each."""
    options = {"cache": cache} if cache else None
    if order == "stream":
        batches = iter(stream(place, P, K, view=TrainView(224), storage_options=options))
    else:
        dataset = open_dataset(place, "train", storage_options=options)
        batches = iter(Loader(dataset, PKSampler(dataset.labels, P, K), TrainView(224)))
    began = time.monotonic()
    for _ in range(steps):
        next(batches)
        time.sleep(seconds)
    return {"seconds": time.monotonic() - began}


def print_shown(work: Path, images: list[bytes]) -> None:
    """Print CSV: how many images an epoch of shards without an index shows, if it has as many images as the shards."""
    print('shards,sequences,window,images,shown,epoch,"missed, %"')
    for per_shard in (400, 290):
        folder = work / f"bare-{per_shard}"
        if not folder.exists():
            made_shards.write_hgld(folder, images, (SIZE, SIZE), per_shard)
        tars = [str(tar) for tar in sorted(folder.glob("*.tar"))]
        for window in (8, 2):
            batches = stream(tars, P, K, batches_per_epoch=len(images) // (P * K), window=window, view=TrainView(32))
            for epoch in range(2):
                shown = len({index for batch in batches for index in batch.indices.tolist()})
                missed = 100 - 100 * shown / len(images)
                print(f"{len(tars)},8,{window},{len(images)},{shown},{epoch},{missed:.1f}", flush=True)


def print_requests(url: str, shard: Path, together: int) -> None:
    """Print requests per second, and the CPU time of the client per request."""
    remote_files.TOGETHER = together
    files = remote_files.RemoteFiles(url, {})
    starts = range(0, shard.stat().st_size - 8000, 100_000)  # so far apart that each needs its own request
    spans = [(shard.name, start, 8000) for start in starts]
    files.read_many(spans[:together])
    began, cpu = time.monotonic(), time.process_time()
    files.read_many(spans)
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    print(
        f"{together} at a time: {len(spans) / wall:.0f} requests/s, {1e3 * cpu / len(spans):.2f} ms of CPU per request"
    )


def serve(folder: Path, latency: float) -> None:
    """Serve a folder, print its URL, and wait."""
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
    from rehearsed.servers import FileServer

    with FileServer(folder, delay=latency) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--latency", type=float, default=100, help="milliseconds")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[160, 80], help="milliseconds of a step on a GPU")
    parser.add_argument("--bare", action="store_true", help="count the images that epochs without an index show")
    parser.add_argument("--requests", type=int, metavar="N", help="only measure N requests at a time, without decoding")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    data = told.work / "data"
    if told.serve:
        serve(data, told.latency / 1000)
        return
    if told.read:
        order, place, cache = told.read
        print(json.dumps(read(order, place, cache, told.steps, told.step_ms[0] / 1000)))
        return
    images = [file.read_bytes() for file in made_shards.make_jpegs(told.work / "images", IMAGES, SIZE, SIZE)]
    if told.bare:
        print_shown(told.work, images)
        return
    if not data.exists():
        made_shards.write_hgld(data, images, (SIZE, SIZE))
    words = ["--work", told.work, "--latency", told.latency, "--steps", told.steps]
    found: dict[tuple[float, str, str], list[float]] = {}
    command = [sys.executable, __file__, *map(str, words), "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        if told.requests:
            print_requests(url, next(data.glob("*.tar")), told.requests)
            server.terminate()
            return
        for _ in range(told.rounds):
            for step in told.step_ms:
                for order, source in CASES:
                    place, cache = data if source == "disk" else url, ""
                    if "cache" in source:
                        cache = told.work / f"cache-{order}"
                        if "empty" in source:
                            shutil.rmtree(cache, ignore_errors=True)
                    one = in_its_own_process(__file__, *words, "--step-ms", step, "--read", order, place, cache)
                    found.setdefault((step, order, source), []).append(one["seconds"])
                    print(step, order, source, one, file=sys.stderr, flush=True)
        server.terminate()
    writer = csv.writer(sys.stdout)
    writer.writerow(["step, ms", "order", "source", "s", "least", "most", "times disk"])
    for (step, order, source), seconds in found.items():
        ratio = statistics.median(seconds) / statistics.median(found[step, order, "disk"])
        figures = (statistics.median(seconds), min(seconds), max(seconds), ratio)
        writer.writerow([f"{step:g}", order, source, *(f"{figure:.2f}" for figure in figures)])


if __name__ == "__main__":
    main()
