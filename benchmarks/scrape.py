"""Cost of scraping without the network: a client in the same process answers at once.

The synthetic world has the shape of the real one: 64% of the categories are linked to an item, a third of those items
are categories' items that lead to their main topic, the other categories are renamed, unlinked or without an item;
5,700 classes lie under 6,000 ancestors.

    python benchmarks/scrape.py --landmarks 200000
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.scrape.scrape import STORE, run
from hgld.pipelines.stage import silent

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
    landmarks = parser.parse_args().landmarks
    with tempfile.TemporaryDirectory() as folder:
        root, table = Path(folder) / "stages", Path(folder) / "train.csv"
        rows = "".join(f"{i},https://commons.wikimedia.org/wiki/Category:Landmark_{i}\n" for i in range(landmarks))
        table.write_text("landmark_id,category\n" + rows)
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
