"""Seconds until the review page is there: ``python -m rehearsed.opening page BUILD`` prints them as JSON."""

import json
import subprocess
import sys
import time
import urllib.request

PAGE = ("/", "/api/state", "/api/names", "/api/groups", "/api/queue")  # what it shows first


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
    print(json.dumps(open_page(sys.argv[2])))
