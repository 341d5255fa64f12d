"""Every flag of every subcommand changes the printed output, the written files, or the requests to a service."""

import contextlib
import itertools
import re
import shutil
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
import pytest

from hgld.cli import VERBS, main
from hgld.data.dataset import open_dataset
from hgld.data.storage import READING
from hgld.errors import HgldError
from hgld.pipelines.hierarchy.config import stage_configs
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.settings import options_of
from hgld.training.config import SECTIONS, with_fields
from hgld.training.seen import write_seen
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.pipelines.reviewed_build import GROUPS, write_build
from tests.training.untrained_run import CONFIG_OF_RUN, write_run
from tests.undrawn import without_figures

SPEED = {"workers", "chunk-size", "device", "batch-size"}  # flags that may only change the speed
ELSEWHERE = {  # flags with a test in another file
    ("serve", "browser"),  # opens a browser like review
    ("review", "browser"),  # the flag opens a browser, and only on a terminal
    ("review", "propose-only"),  # tested in tests/pipelines/test_propose.py
    ("train", "drill"),  # tested in tests/test_drill.py
    ("reproduce", "data"),  # tested in tests/test_papers.py
    ("reproduce", "toy"),  # tested in tests/test_papers.py
    ("build-hierarchy", "as-published"),  # tested in tests/test_cli.py
    ("build-hierarchy", "replace"),  # tested in the folder tests/pipelines/hierarchy_build
    ("show", "doubtful"),  # tested in the folder tests/pipelines/hierarchy_build
}
# tests/test_every_field.py checks these configs
OF_STAGES = {*SECTIONS.values(), *stage_configs().values(), SourceConfig, ShardConfig}

EMBED = "embed --checkpoint run --data few --split test --out made.npy"
FILES = "evaluate --embeddings e.npy --labels e.parquet --levels fine,coarse --out r.json"
MODEL = "evaluate --checkpoint run --data few --split test"
OWN = "evaluate --embeddings few.npy --data few --protocol sop"
SEARCH = "search image.jpg --checkpoint run --data few"
ANSWER = "search image.jpg --checkpoint sure --data few --min-confidence 0"
SERVE = "serve run --data few"
SURE = "serve sure --data few --min-confidence 0"
AUDIT = "audit --embeddings a.npy --labels a.parquet --levels fine,coarse --out out"
JUDGED = "audit --embeddings a.npy --labels a.parquet --out"
REPORT = "report r1.json r2.json --out p.html"
DRAWN = "report r1.json --metrics R@1 --out p.html"
DOWNLOAD = "download gldv2 --split index --tars 0 --out gldv2"
REVIEW = "review build --annotator ada --decisions d.yaml"
PROPOSE = f"{REVIEW} --propose http://127.0.0.1:9/v1 --propose-model m"
CLASSES = "build-hierarchy --classes list.txt --encoder lexical --out made"
TRAIN = "train small-grocery --data data --out made"
SHARDS = "build-shards manifest --source table.csv --images images --levels fine,coarse --workers 1 --out made"

# Each row is a command and the flag values to test. A value is added to the command or replaces its value. For a
# positional argument, "=..." is the whole changed command.
LAW: list[tuple[str, dict[str, str]]] = [
    ("demo --out made", {"out": "other", "seed": "1"}),
    (CLASSES, {"out": "elsewhere", "groups": "3,2", "encoder": "sbert:x"}),
    (
        "build-hierarchy --encoder sbert:x --out made",  # without a source, and with an encoder that is missing
        {"sample": "", "landmarks": "train=lm.csv", "names": "lm.csv", "classes": "list.txt"},
    ),
    (
        REVIEW,
        {
            "build": "=review build2 --annotator ada --decisions d.yaml",
            "annotator": "bob",
            "decisions": "e.yaml",
            "compare-with": "bob.yaml",
            "adjudicate": "",
            "images": "images",
            "order": "names",
            "port": "7",
            "propose": "=" + PROPOSE,
        },
    ),
    (
        PROPOSE,
        {"propose": "http://127.0.0.1:8/v1", "propose-model": "n", "propose-requests": "3"},
    ),
    (
        "compare x.csv y.csv",
        {"a": "=compare y.csv y.csv", "b": "=compare x.csv x.csv"},
    ),
    ("show data", {"path": "=show many", "levels": "a,b", "depth": "1", "html": "t.html"}),
    ("show edges.csv", {"format": "folders", "parents": "first"}),
    (
        "show edges.csv --parents first",
        {"parents": "most-specific", "changes": "c.csv", "cut": "leaves:1", "most": "1"},
    ),
    (
        SHARDS,
        {
            "release": "=build-shards folders --source images --levels fine,coarse --workers 1 --out made",
            "source": "table2.csv",
            "out": "other",
            "test-classes": "0.5",
            "shard-items": "3",
        },
    ),
    (SHARDS.replace(" --out made", "").replace("table", "table2"), {"yes": "", "out": "made"}),
    ("index copy --force", {"root": "=index copy2 --force", "levels": "a,b"}),
    ("index copy", {"force": ""}),
    ("verify data", {"root": "=verify many"}),
    ("verify broken", {"decode": ""}),
    ("card copy", {"root": "=card copy2"}),
    ("datasets", {"name": "=datasets sop"}),
    (
        DOWNLOAD,
        {
            "name": "=download sop --split index --tars 0 --out gldv2",
            "split": "train",
            "tars": "1",
            "metadata": "",
            "out": "other",
            "base-url": "http://127.0.0.1:9",
            "allow-redirects-to": "a.org",
            "allow-private": "b.org",
        },
    ),
    (
        TRAIN,
        {
            "recipe": "=train happier-sop --data data --out made",
            "config": "=train --config small.yaml --data data --out made",
            "list": "",
            "show": "",
            "data": "many",
            "out": "other",
            "init-from": "run",
            "sweep": "tau=0.01,0.1",
            "seeds": "2",
            "loss": "SupAP",
            "epochs": "3",
            "verify-reads": "",
        },
    ),
    ("train --list", {"papers": ""}),
    (
        EMBED,
        {
            "data": "many",
            "split": "train",
            "out": "other.npy",
            "parts": "2",
            "fit-whitening": "w.safetensors",
            "checkpoint": "sure",
            "model": "=embed --model pixels --data few --split test --out made.npy",
            "checkpoint-choice": "last",
            "resize-mode": "squash",
            "size": "32",
            "resize": "24",
            "scales": "1,0.5",
            "amp": "bf16",
            "verify-reads": "",
        },
    ),
    (f"{EMBED} --fit-whitening w.safetensors", {"whitening-power": "0.25"}),
    (f"{EMBED} --resize-mode original", {"max-pixels": "1000"}),
    (f"{EMBED} --scales 1,0.5", {"scale-p": "3"}),
    (EMBED.replace("run", "gem"), {"gem-p": "5"}),
    ("embed --model small --weights none --size 24 --data few --out m.npy", {"weights": "w.none", "pooling": "max"}),
    (
        FILES,
        {
            "embeddings": "a6.npy",
            "labels": "f.parquet",
            "levels": "fine",
            "gallery-embeddings": "=" + FILES + " --gallery-embeddings a6.npy --gallery-labels f.parquet",
            "gallery-labels": "f.parquet",
            "distractors": "a6.npy",
            "whitening": "w6.safetensors",
            "out": "r.md",
            "metrics": "AP",
            "alpha": "2",
            "relevance": "total",
            "no-count-query": "",
            "no-normalize": "",
            "query-expansion": "2,1",
            "truncate-dim": "2",
            "quantize": "int8",
        },
    ),
    (f"{FILES} --relevance weighted_ap", {"level-weights": "1,3"}),
    (
        MODEL,
        {
            "checkpoint": "sure",
            "data": "many",
            "split": "train",
            "query-split": "=" + MODEL.replace("--split test", "--query-split test --gallery-split train"),
            "gallery-split": "train",
            "size": "32",
            "metrics": "AP",
            "levels": "coarse",
            "verify-reads": "",
        },
    ),
    (OWN, {"protocol": "cub", "query-expansion": "2,1", "alpha": "2"}),
    ("reproduce pnp.5", {"table": "=reproduce pnp.7", "list": ""}),
    (
        "published --dataset sop",
        {"dataset": "cub", "method": "HAPPIER", "metric": "R@1"},
    ),
    (
        REPORT,
        {
            "runs": "=report r2.json r1.json --out p.html",
            "out": "q.html",
            "paper": "SupRank Table V",
            "data": "data",
            "latex": "table.tex",
            "metrics": "AP",
            "baseline": "r2",
            "title": "Other",
        },
    ),
    (f"{REPORT} --data data", {"verify-reads": "", "cache": "kept", "cache-size": "7"}),
    (DRAWN, {"figures": "figures"}),
    ("report r3.json", {"seen": ""}),
    ("evaluate --checkpoint known --data few --split val", {"seen": ""}),
    ("calibrate --checkpoint known --data resplit --out c.json", {"seen": ""}),
    ("audit --checkpoint known --data few --out out", {"seen": ""}),
    (AUDIT, {"embeddings": "b.npy", "labels": "b.parquet", "levels": "fine", "probability": "1"}),
    (f"{JUDGED} out", {"out": "other"}),
    ("audit --embeddings few.npy --out out", {"data": "few"}),
    ("audit --checkpoint run --data few --out out", {"checkpoint": "sure", "size": "32", "verify-reads": ""}),
    (
        "calibrate --checkpoint run --data many --split test --out c.json",
        {
            "data": "data",
            "split": "train",
            "gallery-split": "train",
            "test-split": "test",
            "k": "3",
            "unknown": "0.5",
            "out": "d.json",
            "checkpoint": "sure",
            "size": "32",
            "verify-reads": "",
        },
    ),
    (
        SEARCH,
        {
            "images": "=search other.jpg --checkpoint run --data few",
            "text": "a lake",
            "data": "many",
            "split": "train",
            "k": "2",
            "index": "ivf",
            "within": "coarse=0",
            "calibration": "sure/calibration.json",
            "html": "s.html",
            "checkpoint": "sure",
            "size": "32",
            "verify-reads": "",
        },
    ),
    (
        SERVE,
        {
            "run": "=serve sure --data few",
            "data": "many",
            "split": "train",
            "k": "2",
            "calibration": "sure/calibration.json",
            "port": "7",
            "size": "32",
            "verify-reads": "",
        },
    ),
    (SURE, {"min-confidence": "1.1", "level": "coarse", "embeddings": "s.npy"}),
    (ANSWER, {"min-confidence": "1.1", "level": "coarse", "embeddings": "s.npy"}),
    (
        "export --checkpoint run --out m.onnx",
        {"checkpoint": "sure", "checkpoint-choice": "last", "out": "n.onnx"},
    ),
    ("push data hf:a/b", {"folder": "=push many hf:a/b", "address": "=push data hf:a/c", "dry-run": "", "private": ""}),
]


def flags_of(verb, without=()):
    """Return the flags and arguments of a subcommand, except those of some configs."""
    module = import_module(f"hgld.cli.{VERBS[verb][0]}_commands")
    configs = [config for config in getattr(module, verb.replace("-", "_")).configs if config not in without]
    options = [option for config in configs for option in options_of(config).values()]
    return {option.name if option.facts["argument"] else option.flag for option in options}


def test_every_flag_has_a_row_in_the_table():
    """A flag that several subcommands share needs a row for only one of them."""
    seen: dict[str, set[str]] = {}
    for words, changes in LAW:
        seen.setdefault(words.split()[0], set()).update(name.removeprefix("no-") for name in changes)
    everywhere = set().union(*seen.values())
    shared = {
        option.flag
        for path in ("models:ModelOptions", "models:ViewOptions", "options:ReadingOptions")
        for option in options_of(getattr(import_module(f"hgld.cli.{path.split(':')[0]}"), path.split(":")[1])).values()
    }
    missing = {}
    for verb in VERBS:
        own = flags_of(verb, OF_STAGES) - SPEED - {flag for of, flag in ELSEWHERE if of == verb}
        left = own - seen.get(verb, set()) - (shared & everywhere)
        left |= {flag for flag in ("size", "checkpoint", "verify-reads") if flag in own} - seen.get(verb, set())
        if left:
            missing[verb] = sorted(left)
    assert not missing, "nobody sees what these flags change"
    stale = {verb: sorted(names - flags_of(verb)) for verb, names in seen.items()}
    assert not {verb: names for verb, names in stale.items() if names}, "these flags are gone"


# -- input files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(module_path):
    """Folder with the input files of all commands."""
    rng = np.random.default_rng(0)
    splits = ["train", "val", "test"]
    items = items_of_classes([2] * 30, splits, per_coarse=5)
    write_dataset(module_path / "data", items)
    write_dataset(module_path / "many", items_of_classes([2] * 30, splits, per_coarse=3))
    for name in ("copy", "copy2"):
        write_dataset(module_path / name, items_of_classes([2, 2] + [1] * (name != "copy"), ["test"]))
    pixels = cv2.resize(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8), (40, 32), interpolation=cv2.INTER_CUBIC)
    plain = cv2.imencode(".png", pixels)[1].tobytes()
    damaged = plain[:800] + bytes([plain[800] ^ 255]) + plain[801:]
    write_dataset(module_path / "broken", [Item((0, 0), "test", damaged, suffix="png")])
    write_run(module_path / "run")
    write_run(module_path / "sure", config=with_fields(CONFIG_OF_RUN, {"pooling": "max"}))
    moved = [replace(item, split=splits[(splits.index(item.split) + 1) % 3]) for item in items]
    write_dataset(module_path / "resplit", moved)
    write_dataset(module_path / "few", moved[:24])
    write_run(module_path / "known")
    write_seen(module_path / "known", open_dataset(module_path / "data", "train"))
    write_run(module_path / "gem", config=with_fields(CONFIG_OF_RUN, {"pooling": "gem"}))
    for name, index in (("image.jpg", 1), ("other.jpg", 40)):
        (module_path / name).write_bytes(open_dataset(module_path / "data").read(index))
    for name, rows in (("e", 6), ("a6", 6), ("a", 24), ("b", 24)):
        np.save(module_path / f"{name}.npy", rng.standard_normal((rows, 4)))
    labels = {"fine": [0, 0, 1, 1, 2, 2], "coarse": [0, 0, 0, 0, 1, 1]}
    pl.DataFrame(labels).write_parquet(module_path / "e.parquet")
    pl.DataFrame({"fine": [0, 1, 1, 0, 2, 2], "coarse": [0, 0, 0, 0, 1, 1]}).write_parquet(module_path / "f.parquet")
    for name, order in (("a", 1), ("b", 7)):
        fine = [(order * i % 24) // 4 for i in range(24)]
        pl.DataFrame({"fine": fine, "coarse": [f // 3 for f in fine]}).write_parquet(module_path / f"{name}.parquet")
    (module_path / "list.txt").write_text(
        "\n".join(f"{kind} {i}" for kind in ("church", "lake", "bridge") for i in range(8))
    )
    (module_path / "other.txt").write_text("\n".join(f"tower {i}" for i in range(9)))
    (module_path / "small.yaml").write_text("recipe: small-omniglot\n")
    (module_path / "lm.csv").write_text("landmark_id,category,supercategory\n1,http://x/Category:A,church\n")
    (module_path / "x.csv").write_text("id,other,fine,coarse\n1,1,a,p\n2,3,a,p\n3,2,b,p\n4,4,c,q\n")
    (module_path / "y.csv").write_text("id,fine,coarse\n1,a,p\n2,b,p\n3,b,q\n4,c,q\n")
    (module_path / "edges.csv").write_text("child,parent\nb,a\nc,a\nd,b\nd,c\ne,c\nf,e\nc2,c\nd,f\n")
    (module_path / "images").mkdir()
    for name in ("1", "2", "3", "4"):
        (module_path / "images" / f"{name}.jpg").write_bytes(jpeg(rng))
    rows = [f"{name}.jpg,{fine},{coarse}" for name, fine, coarse in (("1", "a", "p"), ("2", "b", "p"), ("3", "c", "q"))]
    (module_path / "table.csv").write_text("\n".join(["path,fine,coarse", *rows]))
    (module_path / "table2.csv").write_text("\n".join(["path,fine,coarse", *rows, "4.jpg,d,q"]))
    write_build(module_path / "build")
    write_build(module_path / "build2", dict(list(GROUPS.items())[:-1]))
    with contextlib.chdir(module_path):
        for words in (
            "embed --checkpoint run --data few --out few.npy",
            "embed --checkpoint sure --data few --out s.npy",
            "embed --checkpoint run --data few --out t.npy --fit-whitening w6.safetensors",
            FILES.replace("r.json", "r1.json"),
            FILES.replace("r.json", "r2.json").replace("e.npy", "a6.npy"),
            "calibrate --checkpoint sure --data data",
            "evaluate --checkpoint known --data few --split val --seen --out r3.json",
        ):
            with pytest.raises(SystemExit, match=r"^0$"):
                main(words.split())
    return module_path


def with_flag(words, name, value):
    """Return the words of a command with a flag added or replaced."""
    if value.startswith("="):
        return value.removeprefix("=").split()
    given = words.split()
    flag = f"--{name}"
    if flag in given and not value:
        given.remove(flag)
    elif flag in given:
        given[given.index(flag) + 1] = value
    else:
        given += [flag, *([value] if value else [])]
    return given


class Asked(HgldError):
    """Replaces a request to a service or a call of slow code; its message has the arguments."""


def _told(value):
    if callable(value) or type(value).__repr__ is object.__repr__:
        return type(value).__name__
    return repr(value)


def _ask(*arguments, **named):
    told = {"reading": READING.get(), **dict(enumerate(arguments)), **named}
    raise Asked(", ".join(f"{name}={_told(value)}" for name, value in told.items()))


STUBS = {  # functions that call a service or take long: their replacements
    "hgld.cli.demo_commands.run_demo": _ask,
    "hgld.pipelines.download.Downloader": lambda **limits: limits,
    "hgld.pipelines.download.download_gldv2": _ask,
    "hgld.training.loop.train": _ask,
    "hgld.training.inference.export.export_model": _ask,
    "hgld.pipelines.hierarchy.review.server.serve": lambda review, port, ready: _ask(port, **_reviewed(review)),
    "hgld.training.inference.serve.serve": lambda searcher, port, ready: _ask(
        port, searcher.options, searcher.matches(Path("image.jpg").read_bytes(), "image.jpg", {}), searcher.page()
    ),
    "hgld.pipelines.hierarchy.review.propose.propose": _ask,
    "hgld.hub.push": _ask,
    "hgld.label_audit.audit.Audited.audit": _ask,
}


def _reviewed(review: Any) -> dict[str, object]:
    found = {"journal": vars(review.journal), "images": vars(review.thumbnails)}
    return found | {"by": vars(review._queue), "names": len(review.tables.names)}


NUMBERS = itertools.count(100_000)
# Times, folder names and addresses in memory differ between equal runs.
CHANGING = re.compile(
    r" at 0x[0-9a-f]+|seconds\": [\d.e+-]+|\d+\.\d+ s\b|at-\d{6}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?"
)


@pytest.fixture
def observe(world, monkeypatch, capfd):
    """``observe(words)`` runs a command and returns its exit code, printed text, written files and requests."""

    def run(words: list[str]) -> object:
        folder = world / f"at-{next(NUMBERS):06d}"
        folder.mkdir(exist_ok=True)
        for path in world.iterdir():
            if not path.name.startswith("at-"):
                if path.name.startswith(("copy", "build")) and path.name in words:
                    shutil.copytree(path, folder / path.name)
                else:
                    (folder / path.name).symlink_to(path)
        before = set(folder.rglob("*"))
        seen: list[str] = []

        class Reading:
            def get(self):
                seen.append(repr(READING.get()))
                return READING.get()

        with monkeypatch.context() as patch, contextlib.chdir(folder):
            # most figures are skipped to save time; both pages of a comparison skip the same ones
            without_figures(patch, drawn=words[:6] == DRAWN.split())
            patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            patch.setattr("hgld.data.dataset.READING", Reading())
            for door, instead in STUBS.items():
                if "audit.Audited" not in door or not " ".join(words).startswith(JUDGED):
                    patch.setattr(door, instead)
            with pytest.raises(SystemExit) as stop:
                main(words)
        out, err = capfd.readouterr()
        made = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
        files = {
            path.relative_to(folder).as_posix(): "" if folder / "cache" in path.parents else _content(path)
            for path in made
            if (path not in before) or path.name in ("README.md", "index.parquet")
        }
        return stop.value.code, [CHANGING.sub("", text) for text in (out, err)], files, seen[:1]

    return run


def _content(path):
    text = path.read_bytes()
    if path.name in ("done.json", "provenance.json"):  # these files contain times
        return ""
    if path.suffix in (".html", ".json", ".md"):
        return CHANGING.sub("", text.decode())
    return sha256(text).hexdigest()


COMMANDS = [pytest.param(words, row, id=words) for words, row in LAW]


@pytest.mark.parametrize(("words", "row"), COMMANDS)
def test_flag_changes_output_files_or_requests(observe, words, row):
    base = observe(words.split())
    assert base[0] in (0, 1, 2, 3), base
    found = {name: observe(with_flag(words, name, value)) for name, value in row.items()}
    assert [name for name, result in found.items() if result == base] == []
    assert [name for name, result in found.items() if result[0] == 70] == []


@pytest.mark.slow  # otherwise random differences would look like effects of flags
@pytest.mark.parametrize(("words", "row"), COMMANDS)
def test_repeated_command_gives_equal_results(observe, words, row):
    assert observe(words.split()) == observe(words.split())
