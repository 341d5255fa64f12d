"""Time and memory of a build at GLDv2's size: 200,000 landmarks with 5,700 names.

    python benchmarks/hierarchy_scale.py [--landmarks 200000] [--names 5700] [--encoder lexical] [--out DIR]

The landmarks are synthetic, but their names resemble real names: head nouns with modifiers and place names. Their
frequencies follow Zipf's law, and some have several spellings. A third of the landmarks have no name. The program
prints seconds per stage and the peak memory.
"""

import csv
import resource
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
from measured import make_parser

from hgld.pipelines.hierarchy.build import build_hierarchy
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig
from hgld.pipelines.stage import silent

MOST_SECONDS = 60
MOST_BYTES = 4 * 2**30
TIMED = ("clean", "embed", "evidence", "cluster", "toplevel", "review", "export", "report")

HEADS = """\
church building,chapel,cathedral,monastery,abbey,mosque,synagogue,temple,shrine,pagoda,castle,fortress,palace,
manor house,villa,tower,city gate,town hall,courthouse,museum,art museum,library,theatre,opera house,cinema,
school building,university,hospital,hotel,railway station,metro station,airport,lighthouse,bridge,footbridge,
viaduct,aqueduct,dam,canal,lock,harbour,tunnel,road,street,square,market hall,shopping centre,skyscraper,
office building,apartment building,house,farmhouse,barn,windmill,watermill,factory,power station,mine,quarry,
stadium,arena,swimming pool,racecourse,park,garden,botanical garden,zoo,cemetery,mausoleum,tomb,monument,
memorial,statue,fountain,obelisk,triumphal arch,archaeological site,ruins,cave,mountain,hill,volcano,glacier,
valley,canyon,mountain pass,ridge,cliff,rock formation,island,peninsula,beach,bay,lake,reservoir,river,stream,
waterfall,hot spring,forest,nature reserve,national park,desert,village,town,neighbourhood,human settlement,
military base,prison,observatory,radio tower,water tower,cable car,amusement park,winery,brewery,bunker""".replace(
    "\n", ""
).split(",")
MODIFIERS = """\
,former,ruined,Gothic,Baroque,Romanesque,neoclassical,medieval,Roman,Byzantine,Ottoman,wooden,brick,stone,
concrete,steel,covered,small,state,national,county,provincial,municipal,private,public,royal,imperial,
Catholic,Lutheran,Orthodox,Buddhist,Hindu,Shinto,protected,listed,historic,abandoned,underground,artificial,
coastal,alpine,urban,rural""".replace("\n", "").split(",")
PLACES = """\
,in France,in Germany,in Italy,in Japan,in Norway,in the United States,in Poland,of Bavaria,of Scotland,
(1172-1954)""".replace("\n", "").split(",")


def make_names(count: int, rng: np.random.Generator) -> list[str]:
    """Return ``count`` distinct names: first every head noun alone, then random combinations."""
    combined = [
        " ".join(part for part in (modifier, head, place) if part)
        for modifier, head, place in product(MODIFIERS, HEADS, PLACES)
        if not place.startswith("(") and (modifier or place)
    ]
    chosen = [combined[i] for i in rng.permutation(len(combined))]
    names = list(dict.fromkeys([*HEADS, *chosen]))[:count]  # the generator makes "national park" twice
    if len(names) < count:
        raise SystemExit(f"only {len(names)} names can be made from the word lists; lower --names")
    return names


def write_table(file: Path, landmarks: int, names: list[str], rng: np.random.Generator) -> None:
    """Write a table like a scraped one: landmark_id, category, supercategory; one landmark in three has no name."""
    frequency = 1 / np.arange(1, len(names) + 1)
    chosen = rng.choice(len(names), size=landmarks, p=frequency / frequency.sum())
    chosen[: len(names)] = np.arange(len(names))  # each name occurs at least once
    unnamed = rng.random(landmarks) < 1 / 3
    unnamed[: len(names)] = False
    spelling = rng.integers(0, 20, size=landmarks)
    with open(file, "w", encoding="utf-8", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(["landmark_id", "category", "supercategory"])
        for i in range(landmarks):
            name = names[chosen[i]]
            name = name.capitalize() if spelling[i] == 0 else f"{name} (1890-1954)" if spelling[i] == 1 else name
            url = f"http://commons.wikimedia.org/wiki/Category:Landmark_{i}"
            rows.writerow([i, url, "" if unnamed[i] else name])


def main() -> None:
    parser = make_parser(__doc__, landmarks=200_000, names=5_700, encoder="lexical")
    parser.add_argument("--out", type=Path, help="keep the build in this folder")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    names = make_names(options.names, rng)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tables = {"train": folder / "train.csv", "index": folder / "index.csv"}
        write_table(tables["train"], options.landmarks * 2 // 3, names, rng)
        write_table(tables["index"], options.landmarks - options.landmarks * 2 // 3, names, rng)
        config = EmbedConfig(encoder=options.encoder)
        whole = BuildConfig("names", tuple(tables.items()), embed=config)
        started = time.perf_counter()
        build = build_hierarchy(options.out or folder / "build", whole, silent)
        seconds = time.perf_counter() - started
    report(build.stages, seconds)


def report(stages, whole: float) -> None:
    seconds = {name: stages[name].record["times"]["seconds"] for name in TIMED}
    for name, count in seconds.items():
        print(f"{name:10} {count:6.1f} s   {dict(stages[name].result.counts)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    total = sum(seconds.values())
    print(f"clean to export: {total:.1f} s (at most {MOST_SECONDS}); with table reading and hashing: {whole:.1f} s")
    print(f"peak memory: {peak / 2**30:.2f} GiB (at most {MOST_BYTES / 2**30:.0f})")
    if total > MOST_SECONDS or peak > MOST_BYTES:
        raise SystemExit("over the limit of time or memory")


if __name__ == "__main__":
    main()
