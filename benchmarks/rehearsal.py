"""Rehearse H-GLDv2 with a synthetic release: run and measure every command of docs/tutorials/h-gldv2.md.

    nice -n 10 python benchmarks/rehearsal.py --out DIR [--scale 1.0] [--steps 300] [--hours 8] [--until STAGE]
    python benchmarks/rehearsal.py --out DIR --scale 0.002 --kills 3

The release has GLDv2's layout, lists and counts (times the scale), with 32-pixel images. Fakes of the release's server,
Commons and Wikidata run on 127.0.0.1. After a stop the same command resumes: finished stages are skipped, and the
commands of a stopped stage resume themselves. ``DIR/record.json`` keeps the costs of every stage. The program prints
them as a table. ``--hours`` stops the running stage, for instance after a night; the next call resumes. The rehearsal
ends before the disk has less than ``--spare`` GB left.

``--kills N`` runs all stages a second time. It kills all processes of every stage (-9) at N random moments and repeats
the stage. Then it compares the files of both chains byte for byte.
"""

import argparse
import hashlib
import json
import random
import shutil
import socket
import sys
import time
from collections.abc import Mapping
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
        facts: scale, seed, ports, and the stages by name: spent, attempts, killed, done, items, unit, disk.
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
            "killed": before.get("killed", 0) + (spent.code < 0),
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
        kills: number of kills per stage.
        seed: seed of the random moments of kills.
        end: monotonic time at which to stop; None: never.
    """

    folder: Path
    record: Record
    spare: int
    kills: int = 0
    seed: int = 0
    end: float | None = None

    def run(self, stage: Stage, seconds: float = 0.0) -> None:
        """Run a stage unless it is done; ``seconds`` is its duration without kills, to choose random moments."""
        if self.record.is_done(stage.name):
            return
        if (free := shutil.disk_usage(self.folder).free) < self.spare:
            raise SystemExit(f"{free / 1e9:.1f} GB are free, less than --spare; make room, then run the same command.")
        moments = random.Random(f"{self.seed} {stage.name}")
        for _ in range(self.kills):
            spent = self._attempt(stage, kill_after=moments.uniform(0.05, 0.95) * seconds)
            self.record.add(stage, spent, done=False, held=0)
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


def digests(folder: Path, stage: Stage) -> dict[str, str]:
    """Return the SHA-256 of each file of a stage, ignoring times in the file."""
    files = sorted({path for pattern in stage.made for path in folder.glob(pattern) if path.is_file()})
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def _sha256(path: Path) -> str:
    if path.name == "provenance.json":  # its times differ from run to run
        facts = json.loads(path.read_text(encoding="utf-8"))
        return hashlib.sha256(json.dumps(_without_times(facts)).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_times(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {name: _without_times(value) for name, value in facts.items() if name not in ("started", "seconds")}
    return [_without_times(value) for value in facts] if isinstance(facts, list) else facts


def compare(whole: Path, broken: Path, chain: list[Stage]) -> list[str]:
    """Return the files that differ between two chains: missing in one chain, or with other bytes."""
    found = []
    for stage in chain:
        left, right = digests(whole, stage), digests(broken, stage)
        if stage.made and not left:
            found.append(f"{stage.name}: nothing to compare")
        found += [f"{stage.name}: {name}" for name in sorted({*left, *right}) if left.get(name) != right.get(name)]
    return found


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
    parser.add_argument("--kills", type=int, default=0, help="run a second chain and kill each stage this often")
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
    spare = int(told.spare * 1e9)
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
        first = Chain(whole, record, spare, end=end)
        for stage in chain:
            first.run(stage)
        if told.kills:
            _kill_all(told, record, chain, whole, world)
    print(markdown(record.facts))
    if record.is_done("evaluate untrained"):
        print("\n" + quality(whole))


def _kill_all(told: argparse.Namespace, record: Record, chain: list[Stage], whole: Path, world: World) -> None:
    """Run the chain with kills, with its own servers, and print the differences to the chain without kills."""
    broken = told.out / "broken"
    broken.mkdir(exist_ok=True)
    end_leftovers(broken)
    asked = {name: record.facts[name] for name in ("scale", "seed", "steps", "runs")}
    own = Record.open(told.out / "broken.json", kills=told.kills, **asked)
    second = Chain(broken, own, int(told.spare * 1e9), told.kills, told.seed)
    for stage in chain[1:]:
        walls: Mapping[str, Any] = record.facts["stages"][stage.name]
        second.run(stage, walls["spent"]["wall"] / walls["attempts"])
    if found := compare(whole, broken, chain):
        raise SystemExit("\n".join(["files differ after kills:", *found]))
    kills = sum(own.facts["stages"][stage.name]["killed"] for stage in chain[1:])
    compared = sum(bool(stage.made) for stage in chain)
    print(f"{kills} kills: the files of {compared} stages are equal, byte for byte.")


if __name__ == "__main__":
    main()
