"""Every code block of the documentation runs or is checked, and the site builds without warnings."""

import doctest
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import polars as pl
import pytest
import yaml
from markdown_it import MarkdownIt

import hgld
from docs.figures import FIGURES, PICTURES, SOURCES, fingerprints
from hgld.cli import VERBS, cli, main
from hgld.pipelines.hierarchy.review.decisions import parse_decisions
from tests.documented_files import KINDS, VIEWS, documented_wiki, write_documented_files
from tests.hgld.range_server import serve
from tests.interpreter import ROOT, python
from tests.pipelines.wikimedia_server import WikimediaServer
from tests.rows import each_row
from tests.undrawn import without_figures

DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
DOCUMENTS += sorted(set(DOCS.rglob("*.md")) - {DOCS / "how-to/adding.md"})  # tests/test_adding.py follows adding.md

INSTALLED = ".ci/run installs hgld in a new virtual environment"
NOT_RUN = {  # first words of a command: reason why it is only checked
    "python -m venv": INSTALLED,
    ". .venv/bin/activate": INSTALLED,
    "pip install": ".ci/run installs an editable clone; tests/test_wheel.py installs the wheel",
    "pytest": "these are the tests",
    "python -m tests.faults": "tests/faults/test_faults.py runs a short form",
    "bash .ci/run": "these are the tests",
    "python benchmarks/mutations.py": "runs these tests forty times",
    "python benchmarks/gpu.py": "takes an hour; tests/test_first_hour.py runs it at toy size",
    "python -m sphinx": "another test builds the site",
    "export MASTER_": "needs Slurm",
    "srun": "needs Slurm",
    "torchrun": "needs eight GPUs; tests/training/test_train_processes.py starts processes",
    "hgld demo": "tests/test_demo.py runs it",
    "hgld build-hierarchy --classes names.txt --out build --encoder sbert": "needs a sentence encoder",
    "hgld build-hierarchy --classes names.csv --into groups.csv --out sorted --encoder sbert": "needs an encoder",
    "hgld build-shards manifest --source images.csv --levels species": "tests/pipelines/test_build_labels.py runs it",
    "hgld train happier-sop --data sop --out seeds": "five runs of a ResNet; tests/training/test_sweep.py has seeds",
    "hgld train happier-sop --data sop --out sweep": "twelve runs of a ResNet; tests/training/test_sweep.py sweeps",
    "hgld evaluate --checkpoint run --data holidays": "needs the release; tests/hgld evaluates protocols",
    "hgld evaluate --model": "needs weights; tests/training/test_cli_embed.py evaluates networks",
    "hgld embed --model": "needs weights",
    "hgld search photo.jpg --model": "needs weights",
    "hgld search --model": "needs weights",
    "hgld calibrate": "needs a split val of ten classes; tests/training/test_answer_commands.py calibrates and answers",
    "hgld search photo.jpg --checkpoint run --data shards --min-confidence": "needs a calibration",
    "hgld search photo.jpg --checkpoint run --data shards --within": "needs a class of that name",
    "hgld push": "needs a Hub; tests/hgld/test_hub.py pushes to a local fake Hub",
    "hgld serve": "serves a page until it is stopped; tests/training/test_serve.py uses it",
    "hgld review": "serves a page until it is stopped; tests/pipelines/test_review_browser.py uses it",
}
SHORTER = {  # first words of a slow command: options that make it fast
    "hgld train multigrain": [
        *("--backbone", "small", "--size", "24", "--resize", "28", "--batch-size", "6", "--steps-per-epoch", "2"),
        *("--epochs", "1", "--schedule", "constant", "--milestones", "", "--amp", "off", "--device", "cpu"),
    ],
    "hgld train": [
        *("--epochs", "1", "--steps-per-epoch", "2", "--warmup-steps", "0", "--size", "24", "--resize", "28"),
        *("--batch-size", "16", "--device", "cpu"),
    ],
}
TWO_VALUES = re.compile(r"^(\w+=[^,]+,[^,]+),.*")  # these tests train only the first two values of a sweep
# models without downloads that replace models with weights
WITHOUT_WEIGHTS = {"timm:tf_efficientnet_lite0": "small", "weights.pth": "none"}
TRAINED = "docs/tutorials/five-minutes.md"  # the pages in AFTER_TRAINING start from the files of this tutorial
REHEARSED = "docs/tutorials/h-gldv2.md"  # needs the GLDv2 release; tests/test_rehearsal.py uses a synthetic release
AFTER_TRAINING = [
    "docs/how-to/audit.md",
    "docs/how-to/cookbook.md",
    "docs/how-to/hubs.md",
    "docs/how-to/models.md",
    "docs/how-to/report.md",
    "docs/how-to/searching.md",
]


@dataclass(frozen=True)
class Block:
    """A fenced code block of a document."""

    document: Path
    line: int
    language: str
    file: str
    text: str

    @property
    def examples(self):
        return self.language == "python" and ">>>" in self.text

    def __str__(self):
        return f"{self.document.relative_to(ROOT).as_posix()}:{self.line}"


def blocks_of(document: Path) -> list[Block]:
    tokens = MarkdownIt().parse(document.read_text(encoding="utf-8"))
    code = [token for token in tokens if token.type in ("fence", "code_block")]
    named = [(token, *token.info.strip().partition(" ")) for token in code]
    return [Block(document, t.map[0] + 1, language, file, t.content) for t, language, _, file in named if t.map]


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
DIRECTIVE = re.compile(r"\{[a-z-]+\}")  # Sphinx directives, which the build of the site checks


def of_language(language: str) -> list[Any]:
    return [b for b in BLOCKS if b.language == language and not b.examples]


def commands_of(block):
    """Yield the words of every command of a shell block; ``&&`` separates commands."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            if words:
                yield words


COMMANDS = [(block, words) for block in BLOCKS if block.language == "sh" for words in commands_of(block)]


def why_not_run(words):
    """Return the key of :data:`NOT_RUN` for a command, if any."""
    return next((begin for begin in NOT_RUN if " ".join(words).startswith(begin)), None)


# -- every block has a test ----------------------------------------------------------------------------------------


def test_every_code_block_has_a_tested_language():
    unknown = [
        str(b) for b in BLOCKS if b.language not in ("python", "sh", "yaml", "csv") and not DIRECTIVE.match(b.language)
    ]
    assert not unknown, f"name their language, or add a test for it: {unknown}"


def test_doctest_examples_are_in_collected_folders(pytestconfig):
    assert "*.md" in pytestconfig.getoption("doctestglob")
    places = [ROOT / place for place in pytestconfig.getini("testpaths")]
    for block in (b for b in BLOCKS if b.examples):
        assert any(block.document.is_relative_to(place) for place in places), block
        assert doctest.DocTestParser().get_examples(block.text), block
        assert block.text.endswith("\n\n"), f"{block}: without an empty line its end is taken for output"


def test_every_exception_from_running_matches_a_documented_command():
    used = {why_not_run(words) for _, words in COMMANDS}
    assert set(NOT_RUN) <= used
    assert {TRAINED, *AFTER_TRAINING} <= {b.document.relative_to(ROOT).as_posix() for b in BLOCKS}


def test_code_blocks_have_valid_syntax():
    for block in (b for b in BLOCKS if b.language == "python" and not b.examples):
        compile(block.text, str(block), "exec")
    text = "\n".join(block.text for block in BLOCKS if block.language == "sh")
    result = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@each_row("block", of_language("yaml"))
def test_yaml_code_blocks_are_valid_decisions(block):
    assert parse_decisions(block.text, block.document)


@each_row("block", of_language("csv"))
def test_csv_code_blocks_have_columns_for_all_levels(block):
    table = pl.read_csv(BytesIO(block.text.encode()))
    assert len(table)
    if block.file:
        assert any(block.file in words for b, words in COMMANDS if b.document == block.document)
        return
    named = [
        words[words.index("--levels") + 1]
        for b, words in COMMANDS
        if b.document == block.document and "manifest" in words
    ]
    assert named
    assert all(set(levels.split(",")) <= set(table.columns) for levels in named)


# -- commands parse -------------------------------------------------------------------


def hgld_arguments(words):
    """Return the arguments of ``hgld`` in a command, also through torchrun or srun; None for other programs."""
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        launch = get_args_parser().parse_args(words[1:])
        assert launch.module, "torchrun must be told that hgld is a module: -m hgld"
        words = [launch.training_script, *launch.training_script_args]
    elif words[0] == "srun":
        words = words[words.index("hgld") :]
    return words[1:] if words[0] == "hgld" else None


@each_row(("block", "words"), COMMANDS)
def test_documented_commands_parse(block, words, monkeypatch):
    # accepts paths of files that do not exist here
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: Path(value))
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    arguments = hgld_arguments(words)
    if arguments is None:
        assert why_not_run(words), f"{block}: {shlex.join(words)} is neither run nor in NOT_RUN"
        return
    if arguments[0].startswith("-"):
        cli.make_context("hgld", arguments[:1], resilient_parsing=True)
        return
    command = cli.get_command(click.Context(cli), arguments[0])
    assert command is not None, f"{block}: there is no verb {arguments[0]}"
    command.make_context(arguments[0], arguments[1:])


# -- blocks are run ------------------------------------------------------------------------------------------------


class Reader:
    """Reader who runs the code blocks of a document in a folder."""

    def __init__(self, folder, address, wiki):
        self.folder, self.address = folder, address
        self.longer = SHORTER | {  # an encoder without weights, and a local wiki at any request rate
            "hgld build-hierarchy --landmarks": [
                *("--commons-url", wiki, "--wikidata-url", wiki, "--rate", "1000", "--encoder", "lexical")
            ],
        }
        self.names: dict[str, object] = {"__name__": "documents"}

    def follow(self, document):
        for block in blocks_of(document):
            if DIRECTIVE.match(block.language):
                continue
            if block.file:
                (self.folder / block.file).write_text(block.text)
            elif block.language == "sh":
                for words in commands_of(block):
                    self.run(block, words)
            elif block.language == "python" and not block.examples:
                program = block.text.replace("https://example.org", self.address)
                exec(compile(program, str(block), "exec"), self.names)

    def run(self, block: Block, words: list[str]) -> None:
        if why_not_run(words):
            return
        longer = next((more for begin, more in self.longer.items() if shlex.join(words).startswith(begin)), [])
        shorter = [TWO_VALUES.sub(r"\1", word) if before == "--sweep" else word for before, word in pairwise(words)]
        if shorter[0] == "train":
            shorter = [WITHOUT_WEIGHTS.get(word, word) for word in shorter]
        with pytest.raises(SystemExit) as stop:
            main([*shorter, *(longer if "--out" in words else [])])
        assert stop.value.code == 0, f"{block}: {shlex.join(words)} left with {stop.value.code}"


@pytest.fixture(scope="module")
def begun(module_path):
    """Folder with the files that the documentation assumes."""
    write_documented_files(module_path, [b.text for b in blocks_of(DOCS / "how-to/review.md") if b.language == "yaml"])
    return module_path


def follow(document, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    without_figures(monkeypatch, drawn=1)
    with serve(folder) as server, WikimediaServer(documented_wiki()) as wiki:
        Reader(folder, server.url, wiki.url).follow(document)


@pytest.fixture(scope="module")
def trained(begun, tmp_path_factory):
    """Folder after all commands of the five-minutes tutorial, which trains a model."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        follow(ROOT / TRAINED, folder, monkeypatch)
    return folder


def with_programs() -> list[str]:
    names = {
        b.document.relative_to(ROOT).as_posix() for b in BLOCKS if b.language in ("sh", "python") and not b.examples
    }
    return sorted(names - {TRAINED, REHEARSED})


@pytest.mark.slow
@pytest.mark.parametrize("document", with_programs())
def test_documented_commands_and_programs_run(document, begun, request, tmp_path, monkeypatch):
    source = request.getfixturevalue("trained") if document in AFTER_TRAINING else begun
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    follow(ROOT / document, tmp_path, monkeypatch)


@pytest.mark.slow
def test_five_minutes_tutorial_leaves_the_stated_files(trained):
    assert (trained / "shards" / "dataset.json").is_file()
    assert (trained / "report.html").stat().st_size > 10_000
    assert len(pl.read_parquet(trained / "test.labels.parquet")) == KINDS // 2 * VIEWS


# -- statements of the pages ---------------------------------------------------------------------------------------


def test_heading_that_answers_each_question_of_newcomers_exists():
    asked = yaml.safe_load((DOCS / "questions.yaml").read_text(encoding="utf-8"))
    assert len({one["question"] for one in asked}) == 40
    for one in asked:
        pairs = pairwise(MarkdownIt().parse((DOCS / f"{one['page']}.md").read_text(encoding="utf-8")))
        headings = [inline.content.replace("`", "") for before, inline in pairs if before.type == "heading_open"]
        assert one["heading"] in headings, one


def test_concept_figures_equal_the_output_of_their_script():
    for name, draw in FIGURES.items():
        assert (DOCS / "concepts" / name).read_text(encoding="utf-8") == draw(), "python -m docs.figures"


def test_screenshots_of_pages_are_current_and_small_and_have_an_alt_text():
    assert json.loads(SOURCES.read_text()) == fingerprints(), "python -m docs.figures hgld-demo"
    pages = "".join(path.read_text(encoding="utf-8") for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
    shown = {name for alt, name in re.findall(r"!\[([^]]*)\]\(\S*pictures/(\S+)\)", pages) if len(alt) > 20}
    assert {path.name for path in PICTURES.iterdir()} == shown | {SOURCES.name}
    assert all(path.stat().st_size <= 300_000 for path in PICTURES.iterdir())


def test_documentation_pages_stay_within_word_limits():
    def words(*pages):
        return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)

    generated = {page for page in (DOCS / "reference").glob("*.md") if "automodule::" in page.read_text("utf-8")}
    generated |= {DOCS / "reference" / f"{name}.md" for name in ("commands", "datasets", "recipes", "python")}
    notes = [
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")
    ]
    assert words(ROOT / "README.md") <= 900
    assert words(ROOT / "benchmarks" / "README.md") <= 1_500
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60
    guides = set(DOCS.rglob("*.md")) - (generated - {DOCS / "reference" / "protocols.md"})
    assert words(*guides, *notes) <= 28_000


# -- the site --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    words = ["-W", "--keep-going", "-q", "-b", "html", DOCS, out / "html", "-d", out / "doctrees"]
    # Pages with source code are slow to build and contain no references.
    python("-m", "sphinx", *words, NO_COLOR="1", HGLD_DOCS_WITHOUT_SOURCE="1")
    return out / "html"


@pytest.mark.checks
def test_site_documents_every_public_name_and_option(site):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    shown = {name for kind, objects in inventory.items() if kind.startswith("py:") for name in objects}
    for module in (hgld, hgld.losses, hgld.metrics, hgld.samplers):
        public = {f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("__")}
        assert public <= shown, public - shown
    options = inventory["std:cmdoption"]
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        flags = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
        assert {f"hgld {verb}.{flag}" for flag in flags} <= set(options)


@pytest.mark.checks
def test_site_loads_nothing_from_the_network(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"([^\"]+)\"", text)
        assert loaded
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style
    assert (site / "searchindex.js").stat().st_size > 100_000
    assert "<math" in (site / "reference/loss-formulas.html").read_text(encoding="utf-8")
