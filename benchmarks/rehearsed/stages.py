"""The chain of commands from the release to the search, with inputs and outputs."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rehearsed.world import IMAGES, LANDMARKS, World

RECIPE = "small-gldv2-washington"
RUNS = {"happier": (), "smooth-ap": ("--loss", "SmoothAP")}  # name of a run -> its options
EPOCHS, PARTS, PIXELS = 2, 4, 8
HGLD = (sys.executable, "-m", "hgld")
TWO_PROCESSES = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hgld")


@dataclass(frozen=True)
class Stage:
    """One link of the chain.

    Attributes:
        name: name of the stage.
        commands: commands to run in turn in the chain's folder.
        items: number of units.
        unit: unit of the count.
        before: function to call with the chain's folder before the commands.
    """

    name: str
    commands: Sequence[Sequence[str]]
    items: int
    unit: str
    before: Callable[[Path], object] = field(default=lambda folder: None)


@dataclass(frozen=True)
class Addresses:
    """URLs of the release's server, the wikis, and the server of the chain's folder."""

    release: str
    wikis: str
    chain: str


def stages(world: World, at: Addresses, steps: int, runs: Sequence[str] = tuple(RUNS)) -> list[Stage]:
    """Return all stages in order; paths are relative to the chain's folder, so that no file contains its path.

    Args:
        world: the synthetic landmarks.
        at: URLs of the servers.
        steps: steps of each training.
        runs: names from :data:`RUNS` of the runs to train and compare.
    """
    images = {which: world.count(count) for which, count in IMAGES.items()}
    landmarks = sum(world.count(count) for count in LANDMARKS.values())
    labelled = {which: int(own.images[own.labelled].sum()) for which, own in world.landmarks.items()}
    return [
        *_labels(world, at, landmarks, sum(images.values())),
        *_shards(sum(images.values()), sum(labelled.values())),
        *_training(at, steps, runs),
        *_use(labelled["index"], runs),
    ]


def _labels(world: World, at: Addresses, landmarks: int, images: int) -> list[Stage]:
    def download(which: str, last: int) -> tuple[str, ...]:
        words = f"download gldv2 --split {which} --tars 0-{last} --metadata --out gldv2 --workers 2"
        return (*HGLD, *words.split(), "--base-url", at.release)

    lists = [f"--landmarks={s}=gldv2/metadata/{s}_label_to_category.csv" for s in ("train", "index")]
    servers = ["--commons-url", at.wikis, "--wikidata-url", at.wikis, "--rate", "1000"]
    build = (*HGLD, "build-hierarchy", *lists, "--encoder", "lexical", "--groups", str(len(world.groups)), *servers)
    build = (*build, "--out", "labels")
    decide = (sys.executable, "-m", "rehearsed.annotator", str(world.scale), str(world.seed), "labels")
    released = "gldv2/metadata/train_label_to_hierarchical.csv"
    return [
        Stage(
            "download",
            [download("train", 499), download("index", 99), download("test", 19)],
            images,
            "images",
        ),
        Stage("build-hierarchy", [build], landmarks, "landmarks"),
        Stage("decisions", [(*decide, "decisions.yaml")], len(world.names), "names"),
        Stage("build-hierarchy again", [(*build, "--decisions", "decisions.yaml")], landmarks, "landmarks"),
        Stage(
            "compare",
            [(*HGLD, "compare", "labels/train_label_to_hierarchical.csv", released)],
            landmarks,
            "landmarks",
        ),
    ]


def _shards(images: int, labelled: int) -> list[Stage]:
    build = (
        *HGLD,
        *["build-shards", "gldv2", "--source", "gldv2", "--labels", "labels", "--out", "shards", "--workers", "2"],
    )
    return [
        Stage("build-shards", [build], images, "images"),
        Stage("verify", [(*HGLD, "verify", "shards")], labelled, "images"),
        Stage("index", [(*HGLD, "index", "rebuilt")], labelled, "images", _link_tars),
    ]


def _link_tars(folder: Path) -> None:
    """Link the shards into a folder without an index."""
    rebuilt = folder / "rebuilt"
    rebuilt.mkdir(exist_ok=True)
    for tar in (folder / "shards").glob("*.tar"):
        if not (rebuilt / tar.name).exists():
            (rebuilt / tar.name).hardlink_to(tar)


def _training(at: Addresses, all_steps: int, runs: Sequence[str]) -> list[Stage]:
    def train(name: str, steps: int, *told: str, data: str = "shards", launch: Sequence[str] = TWO_PROCESSES) -> Stage:
        course = f"--steps-per-epoch {max(1, steps // EPOCHS)} --epochs {EPOCHS if steps else 0} --checkpoint-every 20"
        course = [*course.split(), "--warmup-steps", str(min(30, 3 * steps // 4))]
        # --flip 0: the direction of waves shows the group, so a mirrored image would show another landmark.
        images = "--size 32 --resize 32 --crop-min 0.8 --flip 0 --jitter 0 --erasing 0"
        images = (*images.split(), "--evaluate-every", "0", "--evaluate-on", "")
        command = (*launch, "train", RECIPE, "--data", data, "--out", f"runs/{name}", "--seed", "0")
        return Stage(f"train {name}", [(*command, *course, *images, *told)], steps * 64, "images")

    sampler = ["--sampler", "hierarchical-pk", "--super-level", "hierarchical_label", "--super-classes", "4"]
    return [
        *(train(run, all_steps, *sampler, *RUNS[run]) for run in runs),
        train("streamed", all_steps // 3, "--stream", "--cache", "cache", data=f"{at.chain}/shards"),
        train("untrained", 0, launch=HGLD),
    ]


def _use(gallery: int, runs: Sequence[str]) -> list[Stage]:
    def embed(run: str, split: str, *told: str) -> tuple[str, ...]:
        source = ("--checkpoint", f"runs/{run}", "--data", "shards", "--split", split)
        return (*HGLD, "embed", *source, "--out", f"embeddings/{run}-{split}.npy", *told)

    def evaluate(name: str, *what: str) -> tuple[str, ...]:
        return (*HGLD, "evaluate", *what, "--data", "shards", "--out", f"embeddings/{name}.json")

    def embedded(run: str) -> tuple[str, ...]:
        return ("--embeddings", f"embeddings/{run}-query.npy", "--gallery-embeddings", f"embeddings/{run}-gallery.npy")

    def make_folder(folder: Path) -> None:
        (folder / "embeddings").mkdir(exist_ok=True)

    reports = [f"embeddings/{run}.json" for run in runs]
    search = ["search", "query.jpg", "--checkpoint", "runs/happier", "--data", "shards", "--split", "gallery"]
    parts = ("--parts", str(PARTS))
    return [
        *(
            Stage(
                f"embed {run}",
                [embed(run, "query"), embed(run, "gallery", *parts)],
                gallery,
                "images",
                make_folder,
            )
            for run in runs
        ),
        Stage("evaluate", [evaluate(run, *embedded(run)) for run in runs], len(runs) * gallery, "images"),
        Stage(
            "evaluate pixels",
            [evaluate("pixels", "--model", "pixels", "--size", str(PIXELS))],
            gallery,
            "images",
        ),
        Stage(
            "evaluate untrained",
            [evaluate("untrained", "--checkpoint", "runs/untrained")],
            gallery,
            "images",
        ),
        Stage("report", [(*HGLD, "report", *reports, "--data", "shards", "--out", "report.html")], 1, "page"),
        Stage(
            "search",
            [(*HGLD, *search, "--embeddings", "embeddings/happier-gallery.npy", "--k", "5")],
            gallery,
            "images",
            before=_take_query,
        ),
    ]


def _take_query(folder: Path) -> None:
    """Write the image of the first query, which replaces a user's photograph."""
    import hgld

    dataset = hgld.open_dataset(folder / "shards", "query")
    (folder / "query.jpg").write_bytes(dataset.read(0))
