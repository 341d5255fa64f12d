"""Cost of scraping without the network: a client in the same process answers at once.

The synthetic world has the shape of the real one: 64% of the categories are linked to an item, a third of those items
are categories' items that lead to their main topic, the other categories are renamed, unlinked or without an item;
5,700 classes lie under 6,000 ancestors.

    python benchmarks/scrape.py --landmarks 200000
    python benchmarks/scrape.py --landmarks 200000 --faults 0.05 --rate 0.25

With --faults the polite client asks, over a transport that fails that share of the requests (busy servers, lost and
cut off connections, answers that are no JSON, lagging databases), in simulated time: waits pass at once and are
counted. Every landmark must end with the one status that it has without faults.
"""

import argparse
import io
import json
import random
import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import polars as pl
import requests
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse

from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.scrape.scrape import STORE, run
from hgld.pipelines.stage import silent
from hgld.pipelines.web import PoliteClient

CLASSES, ANCESTORS = 5_700, 6_000
_STATEMENT = (
    '{"mainsnak":{"snaktype":"value","property":"P","hash":"9f8a36f5ab4a17d55a1c83b6a4a1a0b7c3d2e1f0","datavalue":'
    '{"value":{"entity-type":"item","numeric-id":%d,"id":"Q%d"},"type":"wikibase-entityid"}},"type":"statement",'
    '"id":"Q1$9da5583a-45e8-4268-2770-41d999bd53da","rank":"normal"}'
)


def _claims(**items: int) -> str:
    return ",".join(f'"{name}":[{_STATEMENT % (item, item)}]' for name, item in items.items())


# A landmark's item has about this many statements of other properties.
_OTHERS = _claims(**{f"P{9000 + i}": i + 1 for i in range(25)})


class InstantWorld:
    """A client that answers for ``Category:Landmark N`` and its items, through JSON as the network would."""

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = 0.0

    def api(self, url: str, params: Mapping[str, str]) -> dict[str, Any]:
        started = time.perf_counter()
        self.requests += 1
        if params["action"] == "query":
            text = f'{{"query":{{"pages":[{",".join(map(_page, params["titles"].split("|")))}]}}}}'
        elif "titles" in params:
            text = f'{{"entities":{{{",".join(map(_linked, params["titles"].split("|")))}}}}}'
        else:
            entities = (f'"{item}":{{{_entity(int(item[1:]))}}}' for item in params["ids"].split("|"))
            text = f'{{"entities":{{{",".join(entities)}}}}}'
        self.seconds += time.perf_counter() - started
        return json.loads(text)  # part of the client's work, so it is measured

    def page(self, url: str) -> bytes | None:
        raise AssertionError(f"the api route asks for no page: {url}")


@dataclass
class Clock:
    """Time that passes only by waiting."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FaultyTransport(BaseAdapter):
    """A transport of requests that answers from the world, but for a share of requests that fail."""

    def __init__(self, world: InstantWorld, share: float, clock: Clock) -> None:
        super().__init__()
        self._world, self._share, self._clock, self._draw = world, share, clock, random.Random(0)
        self.faults = 0

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        self._clock.sleep(self._draw.uniform(0.05, 0.5))
        text = request.body if request.method == "POST" else urlsplit(request.url or "").query
        asked = {name: values[0] for name, values in parse_qs(str(text)).items()}
        if self._draw.random() >= self._share:
            return self._answer(request, 200, json.dumps(self._world.api(request.url or "", asked)).encode())
        self.faults += 1
        match self._draw.randrange(7):
            case 0:
                raise requests.ConnectionError("reset")
            case 1:
                raise requests.ReadTimeout("silent")
            case 2:
                return self._answer(request, 503, b"<h1>maintenance</h1>", {"Retry-After": "120"})
            case 3:
                return self._answer(request, 429, b"slower", {"Retry-After": "30"})
            case 4:
                return self._answer(request, 200, b'{"entities": {"Q1":')
            case 5:
                return self._answer(
                    request, 200, b'{"error": {"code": "maxlag", "info": "lagging"}}', {"Retry-After": "5"}
                )
            case _:
                return self._answer(request, 500, b"fault")

    def _answer(
        self, request: requests.PreparedRequest, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.url, answer.request = status, request.url or "", request
        answer.headers.update(headers or {})
        answer.raw = HTTPResponse(io.BytesIO(body), preload_content=False)
        return answer

    def close(self) -> None:
        pass


def simulated(root: Path, table: Path, share: float, rate: float) -> dict[str, Any]:
    """Scrape a table through the polite client with faults, and once without; what each landmark ended with."""
    config = replace(ScrapeConfig(), contact="benchmark@example.org", max_total_retries=1_000_000)
    world, clock, session = InstantWorld(), Clock(), requests.Session()
    transport = FaultyTransport(world, share, clock)
    session.mount("https://", transport)
    client = PoliteClient(
        (config.wikidata_url, config.commons_url),
        contact=config.contact,
        rate=rate,
        max_total_retries=config.max_total_retries,
        session=session,
        clock=clock,
        sleep=clock.sleep,
    )
    tables = [
        pl.read_parquet(run(root / name, {"train": table}, config, silent, by).path("landmarks.parquet"))
        for name, by in (("faults", client), ("whole", InstantWorld()))
    ]
    faulty, whole = tables
    return {
        "landmarks": len(whole),
        "landmarks with one status": faulty.filter(pl.col("status").is_not_null())["landmark_id"].n_unique(),
        "rows": len(faulty),
        "same as without faults": faulty.equals(whole),
        "statuses": dict(faulty["status"].value_counts(sort=True).iter_rows()),
        "requests": client.requests,
        "failed": transport.faults,
        "hours": round(clock.now / 3600, 1),
    }


def _page(title: str) -> str:
    number = int(title.rpartition(" ")[2])
    text, props = "{{Wikidata infobox}} [[Category:Landmarks]]", ""
    if number % 50 < 40:
        return f'{{"title":"{title}","missing":true}}'
    if number % 50 < 44:
        text = f"{{{{Category redirect|Landmark {number - 40}}}}}"
    elif number % 50 < 48:
        props = f'"pageprops":{{"wikibase_item":"Q{1_000_000 + number}"}},'
    return f'{{"title":"{title}",{props}"revisions":[{{"slots":{{"main":{{"content":"{text}"}}}}}}]}}'


def _linked(title: str) -> str:
    number = int(title.rpartition(" ")[2])
    if number % 50 >= 32:
        return f'"-{number}":{{"site":"commonswiki","title":"{title}","missing":""}}'
    link = f'"sitelinks":{{"commonswiki":{{"site":"commonswiki","title":"{title}"}}}}'
    return f'"Q{1_000_000 + number}":{{{_entity(1_000_000 + number)},{link}}}'


def _entity(number: int) -> str:
    if number < 100_000:  # a class or one of its ancestors
        has_parent = number < 100 + CLASSES + ANCESTORS // 2
        claims = _claims(P279=100 + (number - 100) // 3 + CLASSES) if has_parent else ""
    elif number < 10_000_000 and number % 3 == 0:
        claims = _claims(P31=4167836, P301=number + 10_000_000)
    else:
        claims = _claims(P31=100 + (number * 7919) % CLASSES) + "," + _OTHERS
    label = f'"labels":{{"en":{{"language":"en","value":"thing {number}"}}}}'
    return f'"type":"item","id":"Q{number}",{label},"claims":{{{claims}}}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landmarks", type=int, default=200_000)
    parser.add_argument("--faults", type=float, default=0.0, help="share of the requests that fail")
    parser.add_argument("--rate", type=float, default=3.0, help="with --faults: requests a second")
    given = parser.parse_args()
    landmarks = given.landmarks
    with tempfile.TemporaryDirectory() as folder:
        root, table = Path(folder) / "stages", Path(folder) / "train.csv"
        rows = "".join(f"{i},https://commons.wikimedia.org/wiki/Category:Landmark_{i}\n" for i in range(landmarks))
        table.write_text("landmark_id,category\n" + rows)
        if given.faults:
            print(
                json.dumps(simulated(root, table, given.faults, given.rate) | {"peak GB": round(_peak(), 2)}, indent=2)
            )
            return
        config = replace(ScrapeConfig(), contact="benchmark@example.org")
        for attempt in ("first run", "second run, nothing to ask"):
            world = InstantWorld()
            started, worked = time.perf_counter(), time.process_time()
            done = run(root, {"train": table}, config, silent, world)
            own = time.perf_counter() - started - world.seconds
            processor = time.process_time() - worked - world.seconds
            print(f"{attempt}: {own:.1f} s ({processor:.1f} s of processor time), {world.requests:,} requests")
        print(json.dumps(dict(done.result.counts)))
        print(f"store {(root / STORE).stat().st_size / 1e6:.0f} MB, peak memory {_peak():.2f} GB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
