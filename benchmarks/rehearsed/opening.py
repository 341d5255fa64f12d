"""Seconds that a person waits: until a dataset is open, an epoch's batches are planned, the review page is there.

``python -m rehearsed.opening dataset DIR`` and ``python -m rehearsed.opening page BUILD`` print seconds as JSON.
"""

import json
import subprocess
import sys
import time
import urllib.request

PAGE = ("/", "/api/state", "/api/names", "/api/groups", "/api/queue")  # what it shows first


def open_dataset(place: str) -> dict[str, float]:
    """Open a dataset whole, then its training split, and plan an epoch: seconds of processor time and of a clock."""
    import hgld
    from hgld.samplers import PKSampler

    clocks = [_clocks()]
    hgld.open_dataset(place)
    clocks.append(_clocks())
    train = hgld.open_dataset(place, "train")
    sampler = PKSampler(train, min(64, int(train.labels[:, 0].max()) + 1), 4, seed=0)
    clocks.append(_clocks())
    next(iter(sampler))
    clocks.append(_clocks())
    found: dict[str, float] = {"items": len(train), "batches": len(sampler)}
    for name, before, after in zip(("open", "open train", "plan"), clocks, clocks[1:], strict=False):
        found |= {f"{name}, CPU": after[0] - before[0], f"{name}, wall": after[1] - before[1]}
    return found


def _clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _get(url: str, token: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"X-Hgld-Token": token})) as answer:
        return answer.read()


def open_page(build: str) -> dict[str, float]:
    command = (sys.executable, "-m", "hgld", "review", build, "--annotator", "script", "--no-browser", "--json")
    begun = time.perf_counter()
    with subprocess.Popen([*command, "--decisions", "page.yaml"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["address"]
            ready = time.perf_counter()
            place, _, token = address.partition("#")
            size = sum(len(_get(place.rstrip("/") + path, token)) for path in PAGE)
            return {"server": ready - begun, "page": time.perf_counter() - ready, "bytes": size}
        finally:
            server.terminate()


if __name__ == "__main__":
    what, place = sys.argv[1:]
    print(json.dumps({"dataset": open_dataset, "page": open_page}[what](place)))
