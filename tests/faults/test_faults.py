"""The campaign in its short form, the cases that once failed, and the list of readers held to the source."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.faults import campaign
from tests.faults.readers import READERS

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"^(read|load|parse|open)_|^from_(json|parquet|file|bytes)$|^(read|load|parse)$")
NOT_FROM_OUTSIDE = {  # what no reader of the campaign covers, and why
    "hgld/__init__.py": "over the reader of runs",
    "hgld/cli/": "hands options on",
    "hgld/data/loader.py": "positions",
    "hgld/data/storage.py": "ranges of bytes, whatever they hold; tests/hgld/test_lying_servers.py",
    "hgld/data/streaming.py": "positions",
    "hgld/data/tar": "through open_dataset, stream, verify and index",
    "hgld/evaluation/metric.py": "the name of a metric",
    "hgld/evaluation/protocols/benchmark.py": "opens datasets",
    "hgld/evaluation/scores.py": "tensors",
    "hgld/losses/": "tensors",
    "hgld/plugins.py": "installed packages",
    "hgld/report_page/runs.py:read_runs": "over read_report",
    "hgld/samplers/": "positions",
    "hgld/settings.py": "options",
    "hgld/taxonomy/formats.py": "over read_taxonomy and read_levels, one format each",
    "pipelines/card.py": "files that hgld ships",
    "pipelines/check/verify.py:read_allowed": "over CsvText",
    "pipelines/hierarchy/encoders/": "files that hgld ships, or weights as read_weights reads them",
    "pipelines/hierarchy/evidence/e": "files of its own stages",
    "pipelines/hierarchy/groups/doubt.py": "files that hgld ships",
    "pipelines/hierarchy/levels/": "files that hgld ships",
    "pipelines/hierarchy/names/class": "files of its own stages, and over CsvText",
    "pipelines/hierarchy/names/languages.py": "files of its own stages",
    "pipelines/hierarchy/names/tree.py": "over read_taxonomy",
    "pipelines/hierarchy/provenance.py": "files of its own",
    "pipelines/hierarchy/review/decisions/classes_above.py": "files of its own stages",
    "pipelines/hierarchy/scrape/": "answers of wikis; tests/pipelines/test_wikidata.py",
    "pipelines/shards/build.py": "through the release of every source",
    "pipelines/shards/build_labels.py": "files of its own stages",
    "pipelines/shards/cards.py": "files that hgld ships",
    "pipelines/shards/examine.py": "bytes, whatever they hold",
    "pipelines/shards/output.py": "bytes, whatever they hold",
    "pipelines/shards/sources/release.py": "through the release of every source",
    "pipelines/shards/sources/taxonomies.py": "files that hgld ships",
    "pipelines/stage.py": "files of its own stages",
    "training/checkpoint.py": "through the reader of runs",
    "training/config.py": "through the reader of runs",
    "training/evaluation.py": "the text of an option",
    "training/inference/classification.py": "over read_checkpoint",
    "training/inference/embedder.py:read_images": "over the reader of images",
    "training/models/": "weights as read_weights reads them",
    "training/optimizers.py": "through the reader of runs",
    "training/recipes/": "files that hgld ships",
    "training/step.py": "tensors",
}


_DEFINED = re.compile(r"^(?:class (?P<of>\w+)|(?:async )?def (?P<function>\w+)|    def (?P<method>\w+))", re.MULTILINE)
_PARSES = re.compile(  # what makes values of bytes
    r"\b(read_(parquet\w*|csv|ndjson|index)|scan_(parquet|csv)|loadmat|safe_open|load_file|safe_load|imdecode|Unpickler"
    r"|ZipFile|decode_jpeg\w*|fromstring|frombuffer|literal_eval|BeautifulSoup|InferenceSession|ParquetFile"
    r"|(json|pickle|tomllib)\.loads?|(np|torch)\.load|csv\.(reader|DictReader)|tarfile\.open|Image\.open)\("
)
_QUOTES = re.compile(r"\{(?![A-Z_]+!)([^{}]*)!r\}")  # constants apart
OWN_FILES = {  # modules that parse, beside those of NOT_FROM_OUTSIDE, and why the campaign has no reader of theirs
    "hgld/label_audit/copies.py": "copies that it made itself",
    "hgld/data/decode.py": "over the reader of images",
    "hgld/distributed.py": "bytes of the other processes",
    "hgld/evaluation/evaluate_files.py": "the schema of a table that read_keys has read",
    "hgld/evaluation/running.py": "bytes of the other processes",
    "hgld/installation.py": "the file of hgld's own extras",
    "hgld/published/results.py": "a file that hgld ships",
    "hgld/tables.py": "through the readers of CSV",
    "pipelines/check/": "through verify and index",
    "pipelines/demo/dataset.py": "files that hgld ships, and its own",
    "pipelines/download.py": "a validator that it wrote itself; tests/hgld/test_lying_servers.py",
    "pipelines/hierarchy/assign.py": "files of its own stages",
    "pipelines/hierarchy/build.py": "files of its own stages",
    "pipelines/hierarchy/explain.py": "files of its own stages",
    "pipelines/hierarchy/groups/": "files of its own stages",
    "pipelines/hierarchy/report/": "files of its own stages, and one that hgld ships",
    "pipelines/hierarchy/review/learning/": "files of its own stages, and one that hgld ships",
    "pipelines/hierarchy/review/propose.py": "answers of a model; tests/pipelines/test_propose.py",
    "pipelines/hierarchy/review/review.py": "files of its own stages",
    "pipelines/hierarchy/review/server.py": "requests of the page; tests/pipelines/test_review_page_server.py",
    "pipelines/hierarchy/review/tables.py": "files of its own stages",
    "pipelines/hierarchy/sample/": "files that hgld ships",
    "pipelines/shards/card_files.py": "files of a build",
    "pipelines/shards/examine_stage.py": "files of its own stages",
    "pipelines/shards/finish.py": "files of its own stages",
    "pipelines/shards/image_facts.py": "over the reader of images",
    "pipelines/shards/order.py": "a digest of its own",
    "pipelines/shards/pack.py": "files of its own stages",
    "pipelines/shards/work.py": "files of its own stages",
    "training/inference/embedding": "files of its own, of the other processes and parts",
    "training/inference/export.py": "the network that it exports",
    "training/inference/hub_run.py": "the run that it pushes",
    "training/sweep.py": "files of its own runs",
}


@cache
def _modules() -> dict[str, str]:
    """The modules of the source, and their text."""
    found = {}
    for path in sorted(one for room in ("hgld", "pipelines", "training") for one in (ROOT / room).rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if not module.startswith(("hgld/pipelines/", "hgld/training/")):  # links
            found[module] = path.read_text(encoding="utf-8")
    return found


def functions() -> set[str]:
    """``module:name`` of every public function of the source that reads, by its name."""
    found = set()
    for module, text in _modules().items():
        of = ""
        for match in _DEFINED.finditer(text):
            if match["of"] or match["function"]:
                of = match["of"] or ""
            name = match["function"] or match["method"]
            if name and _NAME.search(name) and not of.startswith("_") and (of or match["function"]):
                found.add(f"{module}:{of}.{name}" if of else f"{module}:{name}")
    return found


def test_every_reader_is_in_the_campaign_or_says_why_not():
    covered = {name for reader in READERS.values() for name in reader.covers if ":" in name}
    known = functions()
    assert covered <= known
    missing = {name for name in known - covered if not name.startswith(tuple(NOT_FROM_OUTSIDE))}
    assert not missing, "register a reader of these in tests/faults/readers.py"
    unneeded = [one for one in NOT_FROM_OUTSIDE if not any(name.startswith(one) for name in known - covered)]
    assert not unneeded


def test_every_module_that_parses_is_read_by_the_campaign_or_says_why_not():
    """Readers by whatever name: the parsers that they call are known."""
    covered = {name.partition(":")[0] for reader in READERS.values() for name in reader.covers}
    parsing = {module for module, text in _modules().items() if _PARSES.search(text)}
    missing = {module for module in parsing - covered if not module.startswith((*NOT_FROM_OUTSIDE, *OWN_FILES))}
    assert not missing, "register a reader of these in tests/faults/readers.py"
    assert not [one for one in OWN_FILES if not any(module.startswith(one) for module in parsing - covered)]


def test_readers_show_values_from_outside_shortened():
    covered = {name.partition(":")[0] for reader in READERS.values() for name in reader.covers}
    found = {(module, shown[1]) for module in covered for shown in _QUOTES.finditer(_modules()[module])}
    whole = sorted(f"{module}: {value}" for module, value in found if "[:" not in value)
    assert not whole, "show them by quoted() or excerpt() of hgld.errors"


def test_cases_are_functions_of_their_number(tmp_path):
    samples = tmp_path / "sample"
    samples.mkdir()
    READERS["labels csv"].make(samples)
    some = [campaign.write_case("labels csv", n, samples, tmp_path / f"{n}").read_bytes() for n in range(9)]
    again = [campaign.write_case("labels csv", n, samples, tmp_path / f"again{n}").read_bytes() for n in range(9)]
    assert some == again
    assert len(set(some)) > 5


def test_faults_are_told(tmp_path, monkeypatch):
    def failing(folder: Path) -> None:
        raise KeyError(folder.name)

    monkeypatch.setitem(READERS, "labels csv", READERS["labels csv"].__class__(print, failing, ()))
    (tmp_path / "case").mkdir()
    verdict, detail = campaign.judge("labels csv", tmp_path / "case")
    assert verdict == "fault"
    assert "KeyError: 'case'" in detail


def _kept() -> list:
    """The kept cases; MATLAB files are read in a process of their own, which takes a second to begin."""
    slow = ("release-cars196", "release-imagenet")
    marks = {case: [pytest.mark.slow] if case.name.startswith(slow) else [] for case in campaign.KEPT.glob("*-*")}
    return [pytest.param(case, marks=marks[case], id=case.name) for case in sorted(marks)]


@pytest.mark.parametrize("case", _kept())
def test_cases_that_once_failed(case, tmp_path):
    reader = next(name for name in READERS if name.replace(" ", "-") == case.name.rpartition("-")[0])
    verdict, detail = campaign.judge(reader, case)
    assert verdict in ("refused", "read"), detail


@pytest.mark.slow
def test_the_campaign_in_its_short_form(tmp_path):
    outcomes = list(campaign.run(campaign.drawn(20 * len(READERS), 7), tmp_path))
    assert len(outcomes) == 20 * len(READERS)
    assert not [one for one in outcomes if one.failed]
