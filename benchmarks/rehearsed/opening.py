"""What a person waits for: until a dataset is open, an epoch's batches are planned, the review page is there.

``python -m rehearsed.opening dataset DIR`` and ``python -m rehearsed.opening page BUILD`` print seconds as JSON.
"""

import json
import subprocess
import sys
import time
import urllib.request

PAGE = ("/", "/api/state", "/api/names", "/api/groups", "/api/queue")  # what it shows first


def open_dataset(place: str) -> dict[str, float]:
    import hgld
    from hgld.samplers import PKSampler

    begun = time.perf_counter()
    hgld.open_dataset(place)
    opened = time.perf_counter()
    train = hgld.open_dataset(place, "train")
    ready = time.perf_counter()
    sampler = PKSampler(train, min(64, int(train.labels[:, 0].max()) + 1), 4, seed=0)
    steps = len(sampler)
    begin_plan = time.perf_counter()
    next(iter(sampler))
    return {
        "open": opened - begun,
        "items": len(train),
        "steps": steps,
        "plan": time.perf_counter() - begin_plan,
        "made": begin_plan - ready,
    }


def _get(url: str, token: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"X-Hgld-Token": token})) as answer:
        return answer.read()


def open_page(build: str) -> dict[str, float]:
    command = (sys.executable, "-m", "hgld", "review", build, "--who", "script", "--no-browser", "--json")
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
