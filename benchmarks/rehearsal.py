"""Rehearse H-GLDv2 with a synthetic release: run and measure every command of docs/tutorials/h-gldv2.md.

    nice -n 10 python benchmarks/rehearsal.py --out DIR [--scale 1.0] [--steps 300] [--hours 8] [--until STAGE]

The release has GLDv2's layout, lists and counts (times the scale), with 32-pixel images. Fakes of the release's server,
Commons and Wikidata run on 127.0.0.1. After a stop the same command resumes: finished stages are skipped, and the
commands of a stopped stage resume themselves. ``DIR/record.json`` keeps the costs of every stage. The program prints
them as a table. ``--hours`` stops the running stage, for instance after a night; the next call resumes. The rehearsal
ends before the disk has less than ``--spare`` GB left.
"""

import argparse
import json
import shutil
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Let imports find hgld if it is not installed, and the tests' fake wikis.
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from rehearsed.measure import ENVIRONMENT, Spent, disk, end_leftovers, run  # noqa: E402
from rehearsed.servers import FileServer, Wikis  # noqa: E402
from rehearsed.stages import RUNS, Addresses, Stage, stages  # noqa: E402
from rehearsed.table import markdown, quality  # noqa: E402
from rehearsed.world import IMAGES, World  # noqa: E402

LATENCY, FAILING = 0.1, 40  # the shards' server waits 0.1 s before each response, and every 40th response fails


@dataclass
class Record:
    """Costs of the stages, kept in a file after each attempt.

    Attributes:
        path: path of the file.
        facts: scale, seed, ports, and the stages by name: spent, attempts, done, items, unit, disk.
    """

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, **told: object) -> "Record":
        facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {**told, "ports": {}, "stages": {}}
        if other := {name: facts[name] for name in told if facts[name] != told[name]}:
            raise SystemExit(f"{path} has a rehearsal with {other}, not {told}; use another --out.")
        return cls(path, facts)

    def port(self, name: str) -> int:
        """Return the port of a server, the same in every run, because files of a stopped run contain its URL."""
        known = self.facts["ports"].get(name, 0)
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind(("127.0.0.1", known))
            except OSError as error:
                raise SystemExit(
                    f"port {known} of an earlier run is taken ({error}); stop the program that listens there."
                ) from None
            self.facts["ports"][name] = free.getsockname()[1]
        if not known:
            self.save()
        return self.facts["ports"][name]

    def is_done(self, name: str) -> bool:
        return self.facts["stages"].get(name, {}).get("done", False)

    def add(self, stage: Stage, spent: Spent, *, done: bool, held: int) -> None:
        before = self.facts["stages"].get(stage.name, {})
        total = Spent(**before["spent"]) + spent if before else spent
        self.facts["stages"][stage.name] = {
            "spent": total.to_dict(),
            "attempts": before.get("attempts", 0) + 1,
            "done": done,
            "items": stage.items,
            "unit": stage.unit,
            "disk": held,
        }
        self.save()

    def save(self) -> None:
        aside = self.path.with_suffix(".part")
        aside.write_text(json.dumps(self.facts, indent=1), encoding="utf-8")
        aside.replace(self.path)


@dataclass(frozen=True)
class Chain:
    """A run of all stages in a folder.

    Attributes:
        folder: folder that the commands run in.
        record: record of the time, memory and disk that the stages took.
        spare: bytes of the disk that must stay free.
        end: monotonic time at which to stop; None: never.
    """

    folder: Path
    record: Record
    spare: int
    end: float | None = None

    def run(self, stage: Stage) -> None:
        """Run a stage unless it is done."""
        if self.record.is_done(stage.name):
            return
        if (free := shutil.disk_usage(self.folder).free) < self.spare:
            raise SystemExit(f"{free / 1e9:.1f} GB are free, less than --spare; make room, then run the same command.")
        left = None if self.end is None else self.end - time.monotonic()
        spent = self._attempt(stage, kill_after=left)
        self.record.add(stage, spent, done=spent.code == 0, held=disk(self.folder))
        if self.end is not None and time.monotonic() >= self.end:
            raise SystemExit(f"--hours have passed during {stage.name}; the same command resumes.")
        if spent.code:
            raise SystemExit(f"{stage.name} ended with {spent.code}; {self._log(stage)} says why.")
        print(f"{stage.name}: {spent.wall:.1f} s, {spent.cpu:.1f} s of CPU time", flush=True)

    def _attempt(self, stage: Stage, kill_after: float | None = None) -> Spent:
        stage.before(self.folder)
        total = Spent()
        for command in stage.commands:
            left = None if kill_after is None else max(0.01, kill_after - total.wall)
            total += run(command, self.folder, self._log(stage), ENVIRONMENT, left)
            if total.code:
                break
        return total

    def _log(self, stage: Stage) -> Path:
        return self.folder / "logs" / f"{stage.name.replace(' ', '-').replace(',', '')}.log"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps", type=int, default=300, help="steps of each training; a third of the steps reads the HTTP stream"
    )
    parser.add_argument("--runs", default=",".join(RUNS), help="names of the runs to train and compare")
    parser.add_argument("--hours", type=float, help="hours after which the rehearsal stops; the same command resumes")
    parser.add_argument("--until", help="name of the last stage to run; default: all")
    parser.add_argument(
        "--spare", type=float, default=5.0, metavar="GB", help="free disk space at which the rehearsal stops"
    )
    told = parser.parse_args()
    world = World(told.scale, told.seed)
    told.out.mkdir(parents=True, exist_ok=True)
    asked = {"scale": told.scale, "seed": told.seed, "steps": told.steps, "runs": told.runs}
    record = Record.open(told.out / "record.json", **asked)
    owners, whole = told.out / "owners", told.out / "chain"
    for folder in (owners, whole):
        folder.mkdir(exist_ok=True)
        end_leftovers(folder)
    make = (sys.executable, "-m", "rehearsed.release", str(told.scale), str(told.seed), str(owners.resolve()))
    chain = [Stage("release", [make], sum(world.count(n) for n in IMAGES.values()), "images")]
    with (
        FileServer(owners, record.port("owners")) as release,
        Wikis(world, record.port("wikis")) as wikis,
        FileServer(whole, record.port("chain"), LATENCY, FAILING) as own,
    ):
        chain += stages(world, Addresses(release.url, wikis.url, own.url), told.steps, told.runs.split(","))
        names = [stage.name for stage in chain]
        if told.until:
            if told.until not in names:
                raise SystemExit(f"there is no stage {told.until!r}; the stages are {', '.join(names)}.")
            chain = chain[: names.index(told.until) + 1]
        end = None if told.hours is None else time.monotonic() + 3600 * told.hours
        first = Chain(whole, record, int(told.spare * 1e9), end)
        for stage in chain:
            first.run(stage)
    print(markdown(record.facts))
    if record.is_done("evaluate untrained"):
        print("\n" + quality(whole))


if __name__ == "__main__":
    main()
