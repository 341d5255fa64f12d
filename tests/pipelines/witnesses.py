"""Results that change with each field of a build config: requests, tables, clusters, shards."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.errors import HgldError
from hgld.pipelines import executor
from hgld.pipelines.hierarchy import build as building
from hgld.pipelines.hierarchy import export
from hgld.pipelines.hierarchy.config import (
    BuildConfig,
    CleanConfig,
    ClusterConfig,
    EmbedConfig,
    EvidenceConfig,
    LevelsConfig,
    NamesConfig,
    ReviewConfig,
    ScrapeConfig,
    TopLevelConfig,
    TreeConfig,
)
from hgld.pipelines.hierarchy.encoders import embed, pretrained
from hgld.pipelines.hierarchy.groups import cluster, evidence, toplevel
from hgld.pipelines.hierarchy.names import clean
from hgld.pipelines.hierarchy.review import review
from hgld.pipelines.hierarchy.scrape.scrape import polite_client, run
from hgld.pipelines.shards import build, examine
from hgld.pipelines.shards.build import build_catalog
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.shards.sources import read_source
from hgld.pipelines.stage import silent
from tests.fake_releases.__main__ import maker
from tests.fake_releases.pictures import jpeg
from tests.pipelines.hierarchy_build.conftest import THINGS, LengthEncoder, write_decisions
from tests.pipelines.test_clean import scraped
from tests.pipelines.toy_release import ToyRelease, bytes_of
from tests.pipelines.wikimedia_server import Wiki, WikimediaServer, api_error, status
from tests.witnesses import World, witness

# Scraping.

CATEGORIES = ("Windsor Castle", "Cathedral", "Plain")


def wiki() -> Wiki:
    made = Wiki()
    made.item("Q1", {"en": "castle", "de": "Burg"})
    made.item("Q100", "Windsor Castle", P31=["Q1"])
    made.item("Q101", "Cathedral", P31=["Q1"])
    made.category("Windsor Castle", "Q100")
    made.category("Cathedral", "Q101")
    made.category("Plain")
    return made


def landmarks(folder: Path) -> Path:
    folder.mkdir()
    rows = [f"{i},https://commons.wikimedia.org/wiki/Category:{name}\n" for i, name in enumerate(CATEGORIES)]
    (folder / "train.csv").write_text("landmark_id,category\n" + "".join(rows).replace(" ", "_"))
    return folder / "train.csv"


def scrape(config: ScrapeConfig, world: World, server: WikimediaServer, root: Path) -> Any:
    """Return the found names, the requests, and whether the client waited."""
    given = {name: getattr(config, name).replace("http://wiki", server.url) for name in ("commons_url", "wikidata_url")}
    asked = replace(config, **given)
    table, waits = world.once("landmarks", landmarks), []
    try:
        client = polite_client(asked)
        client._sleep = waits.append
        found = pl.read_parquet(run(root, {"train": table}, asked, silent, client).path("landmarks.parquet"))
        names = found.select("category", "status", "names").rows()
    except HgldError as error:
        names = type(error).__name__
    requests = [(one.kind, sorted(one.params.items()), one.headers.get("User-Agent")) for one in server.log]
    return names, requests, bool(waits)


LOCAL = {"commons_url": "http://wiki", "wikidata_url": "http://wiki", "rate": 10_000.0}
HTML = {**LOCAL, "route": "html"}


@witness(ScrapeConfig, LOCAL, route="html", contact="a@b.org", language="de", request_budget=1, rate=1.0)
@witness(ScrapeConfig, LOCAL, commons_url="http://wiki/else", wikidata_url="http://wiki/else")
@witness(ScrapeConfig, HTML, infobox_rows=("Country",), language="de")
def scraped_names(config: ScrapeConfig, world: World) -> Any:
    """Return names and requests of a scrape."""
    with WikimediaServer(wiki()) as server:
        return scrape(config, world, server, world.new())


@witness(ScrapeConfig, LOCAL, retries=1, max_total_retries=0)
def scraped_in_spite_of_errors(config: ScrapeConfig, world: World) -> Any:
    """Return names and requests of a scrape whose first responses are errors."""
    with WikimediaServer(wiki()) as server:
        server.faults += [status(503), api_error("maxlag")]
        return scrape(config, world, server, world.new())


@witness(ScrapeConfig, {**LOCAL, "retries": 1}, timeout=0.05)
def scraped_from_a_slow_server(config: ScrapeConfig, world: World) -> Any:
    """Return the names from a server that responds slowly."""
    with WikimediaServer(wiki(), delay=0.2) as server:
        return scrape(config, world, server, world.new())[0]


@witness(ScrapeConfig, {**LOCAL, "retries": 1}, retry_errors=True)
def scraped_again(config: ScrapeConfig, world: World) -> Any:
    """Return the names of a second scrape, after a first scrape whose requests failed."""
    with WikimediaServer(wiki()) as server:
        root = world.new()
        server.faults += [api_error("badvalue")] * 5
        scrape(replace(config, retry_errors=False), world, server, root)
        return scrape(config, world, server, root)[0]


# From names to labels.

GRAPH = [
    ("Q1", "castle", "en", ["Q9"]),
    ("Q2", "water castle", "en", ["Q1"]),
    ("Q3", "lake", "en", []),
    ("Q9", "building", "en", []),
]
WORDS = ("old", "high", "small", "stone", "royal", "iron")
NOUNS = {"castle": "Q1", "bridge": "Q9", "lake": "Q3", "church": "Q9", "tower": "Q1"}
ROWS = [
    ("train", 10 * i + j, "found", [(f"{word} {noun}", NOUNS[noun])])
    for i, word in enumerate(WORDS)
    for j, noun in enumerate(NOUNS)
] + [("train", 100 + i, "found", [("old lake", "Q3")]) for i in range(9)]
ROWS += [
    ("train", 200, "found", [("castle", "Q1"), ("water castle", "Q2")]),
    ("train", 201, "found", [("castle", "Q1")]),
    ("train", 202, "missing", []),
]


def decisions(folder: Path) -> tuple[Path, ...]:
    folder.mkdir()
    return (write_decisions(folder / "ann.yaml", "action: drop, names: [old lake]"),)


def stages(root: Path, world: World, **given: Any) -> dict[str, Any]:
    """Run the stages from names to labels and return their tables; finished stages do not run again."""
    config = BuildConfig("sample", embed=EmbedConfig("lexical"))
    config = replace(config, **given)
    runs = {"scrape": scraped(root, ROWS, GRAPH)}
    for stage in (clean, embed, evidence, cluster, toplevel):
        run = stage.run(root, runs, config, silent)
        runs[run.name] = run
    runs["review"] = review.run(root, runs["cluster"], runs["toplevel"], config.review, silent)
    runs["export"] = export.run(root, runs, silent)
    return {
        f"{run.name}/{file}": data
        for run in runs.values()
        if run.name not in ("scrape", "evidence")
        for file, data in bytes_of(run.path(".")).items()
        if "done" not in file
    }


def from_the_finished(world: World, **given: Any) -> dict[str, Any]:
    """Return the tables of a build with changed options in a copy of a finished build."""
    done = world.once("stages", lambda folder: (stages(folder, world), folder)[1])
    root = world.new()
    shutil.copytree(done, root)
    return stages(root, world, **given)


@witness(ClusterConfig, groups=3)
@witness(ClusterConfig, {"groups": 7}, method="kmeans")
@witness(ClusterConfig, {"groups": 7, "method": "kmeans"}, seed=1)
def clustered(config: ClusterConfig, world: World) -> Any:
    """Return the group of every name."""
    return pl.read_parquet(from_the_finished(world, cluster=config)["cluster/names.parquet"])["group"].to_list()


@witness(CleanConfig, multi_name_policy="most-common")
def cleaned(config: CleanConfig, world: World) -> Any:
    """Return the tables of all stages for a config of the clean stage."""
    return from_the_finished(world, clean=config)


@witness(TopLevelConfig, margin=0.9)
def divided(config: TopLevelConfig, world: World) -> Any:
    """Return the tables of all stages for a config of the top level (natural or human-made)."""
    return from_the_finished(world, toplevel=config)


def things(folder: Path) -> Path:
    folder.mkdir()
    (folder / "things.txt").write_text("\n".join([*THINGS, "old lakes", "dry lakes"]))
    return folder / "things.txt"


def runs_of_classes(world: World, table: Path, **given: Any) -> dict[str, Any]:
    """Return the stages of a build from a list of class names."""
    config = BuildConfig("classes", (("classes", table),), embed=EmbedConfig("lexical"))
    config = replace(config, **{"cluster": ClusterConfig(groups=4), **given})
    return building.run_stages(world.new(), config, building._plan_levels(config), silent)


def classes_built(world: World, **given: Any) -> bytes:
    """Return the label table of a build from a list of class names."""
    return runs_of_classes(world, world.once("things", things), **given)["export"].path("labels.csv").read_bytes()


@witness(EvidenceConfig, evidence=("none",))
def weighed(config: EvidenceConfig, world: World) -> Any:
    """Return the evidence sources used for a list of names."""
    folder = world.new()
    lines = things(folder).read_text().splitlines()
    (folder / "t.csv").write_text("name,description\n" + "".join(f"{name},a {name}\n" for name in lines))
    return runs_of_classes(world, folder / "t.csv", evidence=config)["evidence"].result.details["blocks"]


@witness(NamesConfig, domain="landmarks", language_of_names="de")
def named(config: NamesConfig, world: World) -> Any:
    """Return the label table of a list of names."""
    return classes_built(world, names=config)


def sorts(folder: Path) -> Path:
    folder.mkdir()
    (folder / "sorts.txt").write_text("tree oak\ndry place\n")
    return folder / "sorts.txt"


@witness(LevelsConfig, into=lambda world: world.once("sorts", sorts))
@witness(LevelsConfig, {"into": lambda world: world.once("sorts", sorts)}, none_below=0.9)
@witness(LevelsConfig, levels=("thing", "kind"), coarser=(2,), top=("fruit apple", "sea whale"))
def levelled(config: LevelsConfig, world: World) -> Any:
    """Return the label table of a list of names."""
    return classes_built(world, levels=config, cluster=ClusterConfig(groups=0 if config.into else 4))


def trees(folder: Path) -> Path:
    """Write a taxonomy file that can be read as edges, levels or paths; one class has two parents."""
    folder.mkdir()
    rows = [
        ("red apple", "toy", "toy"), ("oak", "tree", "oak"), ("red apple", "fruit", "apple"),
        ("fruit", "food", "f"), ("tree", "plant", "t"), ("toy", "thing", "x"), ("food", "thing", "y"),
    ]  # fmt: skip
    lines = [f"{child},{parent},{other},{parent} > {child}" for child, parent, other in rows]
    (folder / "tree.csv").write_text("\n".join(["child,parent,other,path", *lines, ""]))
    return folder / "tree.csv"


def tree_of(world: World) -> Path:
    return world.once("trees", trees)


LEVELS_OF_TREE = {"tree": tree_of, "tree_use": "levels", "parents": "first"}


@witness(TreeConfig, tree=tree_of)
@witness(TreeConfig, {"tree": tree_of}, tree_format="paths", tree_columns=("child", "other"), tree_use="levels")
@witness(TreeConfig, LEVELS_OF_TREE, parents="most-specific", cut="leaves:1")
def placed_in_a_tree(config: TreeConfig, world: World) -> Any:
    """Return the label table of a list of names, and the taxonomy classes that match the names."""
    try:
        runs = runs_of_classes(world, world.once("things", things), taxonomy=config, cluster=ClusterConfig())
    except HgldError as error:
        return type(error).__name__
    matches = runs["scrape"].path("matches.parquet")
    found = pl.read_parquet(matches).rows() if matches.exists() else None
    return runs["export"].path("labels.csv").read_bytes(), found


@witness(ReviewConfig, decisions=lambda world: world.once("decisions", decisions))
def reviewed(config: ReviewConfig, world: World) -> Any:
    """Return the tables of all stages after review decisions."""
    return from_the_finished(world, review=config)


CLIP = {"encoder": "clip:eyes/weights"}


@witness(EmbedConfig, CLIP, encoder="clip:others/weights", templates=("a {}",), device="cuda:3", batch_size=7)
def encoder_made(config: EmbedConfig, world: World) -> Any:
    """Return the arguments of the encoder that a build creates."""
    world.patch.setattr(pretrained, "ClipEncoder", LengthEncoder)
    made = embed.encoder_of(Path("names.parquet"), BuildConfig("sample", embed=config))
    assert isinstance(made, LengthEncoder)
    return made.made


# Shards.


def manifest(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = ["path,species,family,split"]
    for number in range(24):
        (folder / f"{number}.jpg").write_bytes(jpeg(rng))
        rows.append(f"{number}.jpg,species {number // 3},family {number // 12},{('train', 'val')[number % 2]}")
    (folder / "labels.csv").write_text("\n".join([*rows, ""]))
    (folder / "whole.csv").write_text("\n".join([row.rpartition(",")[0] for row in rows] + [""]))
    shutil.copytree(folder, folder.with_name("copy"))
    return folder


LEVELS = {"levels": ("species", "family")}
SERIAL = {"group_size": 3, "shard_items": 8, "workers": 1}


def exclusions(world: World) -> Path:
    path = world.folder / "exclude.csv"
    path.write_text("key,reason\n3,\n")
    return path


IMAGES = {"images": lambda world: world.folder / "copy", "exclude": exclusions}


@witness(SourceConfig, LEVELS, levels=("family",), splits=("val",), **IMAGES)
@witness(SourceConfig, {**LEVELS, "test_classes": 0.5}, seed=1, test_classes=0.2, val_classes=0.5)
def read_table(config: SourceConfig, world: World) -> Any:
    """Return items and levels of a table, and the folder of its images; a table to divide has no splits."""
    file = "whole.csv" if config.test_classes else "labels.csv"
    catalog = build.read_release("manifest", world.once("manifest", manifest) / file, config)
    return catalog.items.rows(), catalog.levels, catalog.root


@witness(SourceConfig, LEVELS, merge_spellings=True)
def read_spellings(config: SourceConfig, world: World) -> Any:
    """Return the class names from a table with spelling variants."""
    file = world.new() / "table.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("path,species,family\n1.jpg,Red Kite,a\n2.jpg,red_kite,a\n")
    return read_source("manifest", file, config).items["species"].to_list()


@witness(
    SourceConfig,
    LEVELS,
    protocol="landmarks-clean",
    name="fruit",
    license="cc-by-4.0",
    description="Fruit on white paper.",
)
def told(config: SourceConfig, world: World) -> Any:
    """Return facts of the manifest and the card of a dataset built from a table."""
    out = world.new()
    catalog = read_source("manifest", world.once("manifest", manifest) / "labels.csv", config)
    build_catalog(catalog, None, str(out), config, ShardConfig(workers=1), silent)
    facts = json.loads((out / "dataset.json").read_text())
    return facts["name"], facts["protocol"], facts["provenance"]["licence"], (out / "README.md").read_text()


def gldv2(folder: Path) -> Path:
    folder.mkdir()
    maker("gldv2")(folder, 0)
    own = folder.with_name("labels")
    own.mkdir()
    for name in ("train", "index"):
        lines = (folder / "metadata" / f"{name}_label_to_hierarchical.csv").read_text().splitlines()
        (own / f"{name}_label_to_hierarchical.csv").write_text("\n".join(lines[:2]) + "\n")
    return folder


@witness(SourceConfig, {"splits": ("train",)}, labels=lambda world: world.folder / "labels")
@witness(SourceConfig, distractors=True)
def read_release(config: SourceConfig, world: World) -> Any:
    """Return the items of a release."""
    return read_source("gldv2", world.once("gldv2", gldv2), config).items.rows()


def built(catalog: Any, config: ShardConfig, world: World, **options: Any) -> Any:
    out = world.new()
    try:
        build_catalog(catalog, None, str(out), SourceConfig(**options), config, silent)
    except HgldError as error:
        return type(error).__name__
    return {name: data for name, data in bytes_of(out).items() if name.endswith(".tar")}


def loose(world: World) -> Any:
    release = world.once("toy", lambda _: ToyRelease.make())
    return release.catalog(world.once("loose", release.write))


@witness(ShardConfig, SERIAL, group_size=2, shard_items=4, shard_mb=4, resize=8)
@witness(ShardConfig, {**SERIAL, "resize": 8}, quality=5)
def sharded(config: ShardConfig, world: World) -> Any:
    """Return the shards of loose images; a megabyte counts as 100 bytes."""
    world.patch.setattr(build, "MEGABYTE", 100)
    return built(loose(world), config, world)


def tars(folder: Path) -> Any:
    """Return the catalog of a release in tars, one of which is missing."""
    release = ToyRelease.make()
    containers = release.write_tars(folder, tars=3)
    containers[1].path.unlink()
    return release.tar_catalog(folder, containers)


@witness(ShardConfig, SERIAL, partial=True)
def sharded_in_part(config: ShardConfig, world: World) -> Any:
    """Return the shards of a release with a missing tar."""
    return built(world.once("tars", tars), config, world)


@witness(ShardConfig, SERIAL, keep_examined=True)
def kept_examined(config: ShardConfig, world: World) -> Any:
    """Return per unit whether images of a tar are spooled, so that the tar can be deleted."""
    folder = world.new()
    release = ToyRelease.make()
    catalog = release.tar_catalog(folder, release.write_tars(folder))
    return [unit.spooled for unit in examine.units_of(catalog, catalog.items, folder / "work", config)]


RAY = {**SERIAL, "executor": "ray"}


@witness(ShardConfig, SERIAL, executor="ray", workers=2)
@witness(ShardConfig, RAY, ray_address="ray://head:10001", workers=2)
def executed(config: ShardConfig, world: World) -> Any:
    """Return the executor calls of a build: number of processes, or arguments for Ray."""
    asked: list[Any] = []

    def on_ray(work: Any, units: Any, done: Any, **where: Any) -> None:
        asked.append(where)
        for unit in units:
            done(unit, work(unit))

    class Pool:
        def __init__(self, work: Any, processes: int) -> None:
            self.work = work
            asked.append(processes)

        def run(self, units: Any, done: Any) -> None:
            for unit in units:
                done(unit, self.work(unit))

    world.patch.setattr(executor, "run_on_ray", on_ray)
    world.patch.setattr(executor, "_SupervisedPool", Pool)
    built(world.once("whole", lambda folder: loose(world)), config, world)
    return asked
