"""Subcommand ``demo``: everything in one folder, from landmark names to a report.

Only this module uses both ``pipelines``, which builds the data, and ``training``.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgld.cli.options import verb
from hgld.cli.output import echo, print_json, progress_bars
from hgld.errors import ConfigError, storage_errors
from hgld.files import read_json, write_atomic
from hgld.settings import setting
from hgld.version import __version__

if TYPE_CHECKING:
    from hgld.pipelines.stage import Progress
    from hgld.training.config import TrainConfig
    from hgld.training.log import RunSummary


LABELS, RUNS, REPORT = "labels", "runs", "report.html"
LABEL_FILE = "train_label_to_hierarchical.csv"
MARKER, RESULT = ".hgld-demo", "result.json"
SPLIT = "test"
DATASET = "drawings, shards"
BASELINE, HIERARCHICAL = "ROADMAP", "HAPPIER"  # losses of the two runs


@dataclass(frozen=True)
class DemoSize:
    """Number of drawings, and length of the training; the defaults take a minute or two on two cores.

    Attributes:
        landmarks: number of landmarks to draw; two thirds are for training.
        images: number of drawings per landmark.
        epochs: number of epochs of each of the two runs; every epoch ends with an evaluation.
        steps: number of steps per epoch.
    """

    landmarks: int = 330
    images: int = 12
    epochs: int = 4
    steps: int = 75


@dataclass(frozen=True)
class DemoResult:
    """A finished demo.

    Attributes:
        labelled: number of landmarks that the build labelled.
        groups: number of groups of these landmarks.
        splits: numbers of images and landmarks per split.
        values: metrics on the test split per run, the baseline first.
        example: path of a drawing of the test split, relative to the demo's folder.
    """

    labelled: int
    groups: int
    splits: Mapping[str, Mapping[str, int]]
    values: Mapping[str, Mapping[str, float]]
    example: str

    def places(self, out: Path) -> dict[str, Path]:
        """Return the paths of the labels, the shards, the report and each run's folder; the keys are their names."""
        runs = {name: out / RUNS / name for name in self.values}
        return {"labels": out / LABELS / LABEL_FILE, "shards": out / "shards", "report": out / REPORT, **runs}


def run_demo(out: Path, seed: int, progress: "Progress", size: DemoSize | None = None) -> DemoResult:
    """Build, draw, shard, train twice, evaluate and report; resume if an earlier call stopped.

    Args:
        out: folder of the demo, which does not exist, is empty, or holds an earlier demo of the same seed.
        seed: seed of all random numbers.
        progress: function called with the current task and its progress.
        size: number of drawings and length of the training; None: the defaults.

    Raises:
        ConfigError: ``out`` holds other files.
        StorageError: another demo runs in ``out``, or the disk is full or not writable.
        KeyboardInterrupt: a signal asked to stop.
    """
    from hgld.pipelines.stage import own_folder

    size = size or DemoSize()
    with own_folder(out, MARKER, "demo") as marker:
        marker.seek(0)
        before, now = (
            marker.read().decode(errors="replace"),
            json.dumps({"hgld": __version__, "seed": seed, **asdict(size)}),
        )
        if not before:
            marker.write(now.encode())
        elif before != now:
            raise ConfigError(
                f"{out} holds a demo made with {before[:200]}; this command asks for {now}. Choose another --out."
            )
        return _read_result(out) or _run(out, seed, size, progress)


def _run(out: Path, seed: int, size: DemoSize, progress: "Progress") -> DemoResult:
    from hgld.data.dataset import open_dataset
    from hgld.pipelines.demo.dataset import DRAWINGS, LEVELS, DrawnConfig, build_drawn_dataset
    from hgld.pipelines.hierarchy.build import build_hierarchy
    from hgld.pipelines.hierarchy.config import BuildConfig, ClusterConfig, EmbedConfig
    from hgld.report_page.page import make_report

    config = BuildConfig("sample", embed=EmbedConfig(encoder="lexical"), cluster=ClusterConfig(seed=seed))
    build = build_hierarchy(out / LABELS, config, _part("hierarchy", progress))
    drawn = DrawnConfig(landmarks=size.landmarks, images=size.images, seed=seed)
    dataset = build_drawn_dataset(build.files[LABEL_FILE], out, drawn, _part(DATASET, progress))
    configs = demo_runs(seed, epochs=size.epochs, steps=size.steps)
    summaries = {name: _train(name, one, dataset.out, out, progress) for name, one in configs.items()}
    folders = [out / RUNS / name for name in configs]
    title, part = "hgld demo: drawn landmarks", _part("report", progress)
    make_report(folders, out / REPORT, data=dataset.out, title=title, progress=part)
    counts = build.stages["export"].result.counts
    result = DemoResult(
        labelled=int(counts["landmarks"]),
        groups=int(counts["groups"]),
        splits={
            name: {"images": facts["items"], "landmarks": facts["classes"][LEVELS[0]]}
            for name, facts in dataset.manifest.splits.items()
        },
        values={name: dict(summary.values[SPLIT]) for name, summary in summaries.items()},
        example=f"{DRAWINGS}/{open_dataset(dataset.out, SPLIT).keys[0]}.jpg",
    )
    with storage_errors(f"write {out / RESULT}", "Free space, then run it again."):
        write_atomic(out / RESULT, json.dumps(asdict(result), indent=2) + "\n")
    return result


def demo_runs(seed: int, *, epochs: int, steps: int) -> dict[str, "TrainConfig"]:
    """Return the configs of the two runs by name; they differ only in the label levels that the loss uses.

    Both runs train the small residual net from scratch with the learning rates of the small recipes. The ROADMAP run is
    HAPPIER with one level: it has the same surrogate of AP and the same proxies, but only landmark labels.

    Args:
        seed: seed of all random numbers: the runs start from the same weights and see the same batches.
        epochs: number of epochs of a run; every epoch ends with an evaluation.
        steps: steps per epoch.
    """
    from hgld.training.config import TrainConfig, with_fields

    fields: dict[str, Any] = {"backbone": "small-resnet", "pretrained": "none", "dim": 128, "size": 32, "resize": 32}
    fields |= {"crop_min": 0.7, "workers": 1, "batch_size": 64, "images_per_class": 4, "decomposability": "proxy"}
    fields |= {"lr": 2e-3, "lr_head": 2e-3, "lr_proxies": 1e-2, "device": "cpu", "seed": seed}
    fields |= {"epochs": epochs, "steps_per_epoch": steps, "warmup_steps": min(30, epochs * steps // 10)}
    return {name: with_fields(TrainConfig(), {**fields, "loss": name}) for name in (BASELINE, HIERARCHICAL)}


def _part(name: str, progress: "Progress") -> "Progress":
    """Report all tasks of a part of the demo as one task, so that its progress bars fit into a terminal."""
    return lambda task, done, total: progress(name, done, total)


def _train(name: str, config: "TrainConfig", data: str, out: Path, progress: "Progress") -> "RunSummary":
    """Train one run on one thread, so that its values do not depend on the number of cores."""
    import torch

    from hgld.training.loop import train
    from hgld.training.progress import ProgressReporter

    class Steps(ProgressReporter):
        total = 0

        def begin(self, step: int, total: int, description: str = "") -> None:
            self.total = total
            self.advance(step)

        def advance(self, step: int) -> None:
            progress(f"training {name}", step, self.total)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        summary = train(config, data, out / RUNS / name, progress=Steps())
    finally:
        torch.set_num_threads(threads)
    if not summary.finished:
        raise KeyboardInterrupt  # a signal stopped the run, which saved its state
    return summary


def _read_result(out: Path) -> DemoResult | None:
    """Return the result of an earlier call, if all its files exist."""
    try:
        result = DemoResult(**read_json(out / RESULT))
        paths = result.places(out).values()
    except (OSError, ValueError, TypeError, AttributeError):  # the run has no result yet, or its file is damaged
        return None
    return result if all(path.exists() for path in paths) else None


# -- demo -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of ``hgld demo``: the folder and the seed."""

    out: Path = setting(Path("hgld-demo"), "Folder for the demo's files.", path="folder")
    seed: int = setting(0, "Seed of all random numbers.", least=0, most=2**32 - 1)


@verb()
def demo(asked: DemoOptions, *, as_json: bool) -> None:
    """Run everything on landmarks that hgld ships: no network, no weights, a few minutes on two cores.

    The demo builds a hierarchy, draws each landmark several times, and makes shards of the drawings. It trains a small
    net with landmark labels alone (ROADMAP) and one with all levels (HAPPIER). It evaluates both nets on landmarks that
    are not in the training data, and writes a report. After a stop the same command resumes. If the demo is complete,
    the command shows the result.
    """
    with progress_bars() as progress:
        result = run_demo(asked.out, asked.seed, progress)
    if as_json:
        paths = {name: str(path) for name, path in result.places(asked.out).items()}
        print_json({"out": str(asked.out), "seed": asked.seed, **asdict(result), "places": paths})
    else:
        echo(demo_text(result, asked.out))


@verb()
def doctor(*, as_json: bool) -> int:
    """Show the installed versions, extras and GPUs.

    Exit code 1: a required package is missing, or torch cannot be imported.
    """
    from hgld.installation import installation

    found = installation()
    if as_json:
        print_json(found)
    else:
        rows = {name: found[name] for name in ("hgld", "python", "machine", "torch")}
        rows |= {f"[{extra}]": "installed" if there else "-" for extra, there in found["extras"].items()}
        echo("\n".join([*(f"{name:<14}{text}" for name, text in rows.items()), *found["hints"]]))
    return int(bool(found["missing"]) or found["torch"].startswith("cannot"))


def demo_text(result: "DemoResult", out: Path) -> str:
    """Describe a finished demo on one screen: the values of both runs in per cent, the files, and further commands."""
    train, test = result.splits["train"], result.splits["test"]
    baseline, hierarchical = result.values
    ours = result.values[hierarchical]
    rows = [
        f"{metric:<26}{100 * value:>10.1f}{100 * ours[metric]:>10.1f}{100 * (ours[metric] - value):>+13.1f}"
        for metric, value in result.values[baseline].items()
    ]
    places = result.places(out)
    run = places[hierarchical].relative_to(out)
    lines = [
        f"{result.labelled:,} landmarks were put into {result.groups} groups.",
        (
            f"Trained on {train['images']:,} drawings of {train['landmarks']:,} landmarks, tested leave-one-out on "
            f"{test['images']:,} of {test['landmarks']:,} others."
        ),
        f"{baseline} learned from landmark labels only, {hierarchical} from all levels; nothing else differs.",
        "",
        f"{'per cent':<26}{baseline:>10}{hierarchical:>10}{'difference':>13}",
        *rows,
        "",
        *(f"{name:<9}{path}" for name, path in places.items()),
        f"{'next':<9}cd {shlex.quote(str(out))}",
        f"{'':<9}hgld search {result.example} --checkpoint {run} --data shards",
        f"{'':<9}hgld evaluate --checkpoint {run} --data shards --split test --metrics mAP@R,H-R@10",
        f"{'':<9}hgld review labels",
    ]
    return "\n".join(lines)
