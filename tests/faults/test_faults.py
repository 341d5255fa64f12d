"""The campaign in its short form, the cases that once failed, and the list of readers held to the source."""

import ast
import re
from pathlib import Path

import pytest

from tests.faults import campaign
from tests.faults.readers import READERS

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"^(read|load|parse|open)_|^from_(json|parquet|file|bytes)$|^(read|load|parse)$")
NOT_FROM_OUTSIDE = {  # what no reader of the campaign covers, and why
    "hgld/__init__.py": "over the reader of runs",
    "hgld/answers/": "JSON of hgld calibrate, to be added: its tests have damaged files of their own",
    "hgld/cli/": "hands options on",
    "hgld/data/loader.py": "positions",
    "hgld/data/storage.py": "ranges of bytes, whatever they hold; tests/hgld/test_lying_servers.py",
    "hgld/data/streaming.py": "positions",
    "hgld/data/tar": "through open_dataset, stream, verify and index",
    "hgld/evaluation/metric.py": "the name of a metric",
    "hgld/evaluation/protocols/benchmark.py": "opens datasets",
    "hgld/evaluation/protocols/in_shop.py": "line by line, as the lists of releases",
    "hgld/evaluation/protocols/revisited.py": "over read_pickled_data",
    "hgld/evaluation/protocols/trapezoid.py": "line by line, as the lists of releases",
    "hgld/evaluation/protocols/vehicle_id.py": "line by line, as the lists of releases",
    "hgld/evaluation/scores.py": "tensors",
    "hgld/hierarchy.py": "over read_taxonomy",
    "hgld/losses/": "tensors",
    "hgld/plugins.py": "installed packages",
    "hgld/report_page/runs.py:read_runs": "over read_report",
    "hgld/samplers/": "positions",
    "hgld/settings.py": "options",
    "hgld/taxonomy/formats/": "over read_taxonomy and read_levels, one format each",
    "pipelines/card.py": "files that hgld ships",
    "pipelines/check/verify.py:read_allowed": "over CsvText",
    "pipelines/hierarchy/comparison/label_tables.py": "over CsvText and polars",
    "pipelines/hierarchy/encoders/": "files that hgld ships, or weights as read_weights reads them",
    "pipelines/hierarchy/evidence/e": "files of its own stages",
    "pipelines/hierarchy/groups/doubt.py": "files that hgld ships",
    "pipelines/hierarchy/landmark_images.py": "over the reader of images",
    "pipelines/hierarchy/levels/": "files that hgld ships",
    "pipelines/hierarchy/names/class": "files of its own stages, and over CsvText",
    "pipelines/hierarchy/names/clean.py": "rules that a user writes, as YAML of their own",
    "pipelines/hierarchy/names/languages.py": "files of its own stages",
    "pipelines/hierarchy/names/name_tables.py": "over CsvText",
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
    "training/inference/search_index.py": "sealed: one of somebody else is made anew",
    "training/models/": "weights as read_weights reads them",
    "training/optimizers.py": "through the reader of runs",
    "training/recipes/": "files that hgld ships",
    "training/step.py": "tensors",
}


def functions() -> set[str]:
    """``module:name`` of every public function of the source that reads, by its name."""
    found = set()
    for path in sorted(one for room in ("hgld", "pipelines", "training") for one in (ROOT / room).rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if module.startswith(("hgld/pipelines/", "hgld/training/")):  # links
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and _NAME.search(node.name):
                found.add(f"{module}:{node.name}")
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
                found |= {f"{module}:{node.name}.{name}" for name in methods if _NAME.search(name)}
    return found


def test_every_reader_is_in_the_campaign_or_says_why_not():
    covered = {name for reader in READERS.values() for name in reader.covers}
    known = functions()
    assert covered <= known
    missing = {name for name in known - covered if not name.startswith(tuple(NOT_FROM_OUTSIDE))}
    assert not missing, "register a reader of these in tests/faults/readers.py"
    unneeded = [one for one in NOT_FROM_OUTSIDE if not any(name.startswith(one) for name in known - covered)]
    assert not unneeded


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


@pytest.mark.parametrize("case", sorted(campaign.KEPT.glob("*-*")), ids=lambda case: case.name)
def test_cases_that_once_failed(case, tmp_path):
    reader = next(name for name in READERS if name.replace(" ", "-") == case.name.rpartition("-")[0])
    verdict, detail = campaign.judge(reader, case)
    assert verdict in ("refused", "read"), detail


@pytest.mark.slow
def test_the_campaign_in_its_short_form(tmp_path):
    outcomes = list(campaign.run(campaign.drawn(20 * len(READERS), 7), tmp_path))
    assert len(outcomes) == 20 * len(READERS)
    assert not [one for one in outcomes if one.failed]
