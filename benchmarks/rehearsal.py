"""Rehearse H-GLDv2 with a synthetic release: run and measure every command of docs/tutorials/h-gldv2.md.

    nice -n 10 python benchmarks/rehearsal.py --out DIR [--scale 1.0] [--steps 300] [--runs happier,smooth-ap]

The release has GLDv2's layout, lists and counts (times the scale), with 32-pixel images. Fakes of the release's server,
Commons and Wikidata run on 127.0.0.1. After a stop (Ctrl-C) the same command resumes: finished stages are skipped, and
the commands of a stopped stage resume themselves. Each training takes --steps steps; a third of them reads the HTTP
stream. ``DIR/record.jsonl`` keeps the costs of every stage. The program prints them as a table. No stage begins if the
disk has less than 5 GB left.
"""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
# Let imports find hgld if it is not installed, and the tests' fake wikis.
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from measured import Lines, make_parser  # noqa: E402
from rehearsed.measure import ENVIRONMENT as ENVIRONMENT  # noqa: E402
from rehearsed.measure import Spent, disk, run  # noqa: E402
from rehearsed.servers import FileServer, Wikis  # noqa: E402
from rehearsed.stages import RUNS, Addresses, Stage, stages  # noqa: E402
from rehearsed.table import markdown, quality  # noqa: E402
from rehearsed.world import IMAGES, World  # noqa: E402

LATENCY, FAILING = 0.1, 40  # the shards' server waits 0.1 s before each response, and every 40th response fails
SPARE = 5e9  # bytes of the disk that must stay free


def run_stage(stage: Stage, folder: Path, record: Lines) -> None:
    """Run a stage in the chain's folder unless it is done, and add its costs to those of earlier attempts."""
    before = record.get({"stage": stage.name}) or {"wall": 0.0, "cpu": 0.0, "peak": 0, "attempts": 0, "code": 1}
    if before["code"] == 0:
        return
    if (free := shutil.disk_usage(folder).free) < SPARE:
        raise SystemExit(f"{free / 1e9:.1f} GB are free, less than {SPARE / 1e9:.0f}; make room, then run it again.")
    log = folder / "logs" / f"{stage.name.replace(' ', '-').replace(',', '')}.log"
    stage.before(folder)
    total = Spent(before["wall"], before["cpu"], before["peak"])
    for command in stage.commands:
        total += run(command, folder, log)
        if total.code:
            break
    about = {"items": stage.items, "unit": stage.unit, "disk": disk(folder), "attempts": before["attempts"] + 1}
    record.add({"stage": stage.name, **asdict(total), **about})
    if total.code:
        raise SystemExit(f"{stage.name} ended with {total.code}; {log} says why.")
    print(f"{stage.name}: {total.wall:.1f} s, {total.cpu:.1f} s of CPU time", flush=True)


def main() -> None:
    told = make_parser(__doc__, out=Path, scale=1.0, seed=0, steps=300, runs=",".join(RUNS)).parse_args()
    world = World(told.scale, told.seed)
    owners, folder = told.out / "owners", told.out / "chain"
    for one in (owners, folder):
        one.mkdir(parents=True, exist_ok=True)
    record = Lines(told.out / "record.jsonl", ("stage",))
    asked = {"stage": "", "scale": told.scale, "seed": told.seed, "steps": told.steps, "runs": told.runs}
    begun = record.get(asked) or {**asked, "ports": [0, 0, 0]}
    if other := {name: begun[name] for name in asked if begun[name] != asked[name]}:
        raise SystemExit(f"{told.out} has a rehearsal with {other}; use another --out.")
    ports = begun["ports"]  # the same in every run, because files of a stopped run contain the URLs
    make = (sys.executable, "-m", "rehearsed.release", str(told.scale), str(told.seed), str(owners.resolve()))
    with (
        FileServer(owners, ports[0]) as release,
        Wikis(world, ports[1]) as wikis,
        FileServer(folder, ports[2], LATENCY, FAILING) as own,
    ):
        record.add({**asked, "ports": [urlsplit(server.url).port for server in (release, wikis, own)]})
        run_stage(Stage("release", [make], sum(map(world.count, IMAGES.values())), "images"), folder, record)
        for stage in stages(world, Addresses(release.url, wikis.url, own.url), told.steps, told.runs.split(",")):
            run_stage(stage, folder, record)
    print(markdown({row["stage"]: row for row in record.rows.values() if row["stage"]}))
    print("\n" + quality(folder))


if __name__ == "__main__":
    main()
