import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from hgld.errors import HgldError, StorageError
from hgld.pipelines.hierarchy import build as building
from hgld.pipelines.hierarchy.build import LOCK, build_hierarchy
from hgld.pipelines.hierarchy.config import (
    BuildConfig,
    ClusterConfig,
    EmbedConfig,
    EvidenceConfig,
    ReviewConfig,
)
from hgld.pipelines.hierarchy.sample import EXPECTED_GROUPS
from hgld.pipelines.stage import sha256_of, silent
from tests.rows import each_row

NAMES = ["church building", "stone bridge", "lake", "mountain", "wooden church", "railway bridge", "mountain lake"]


@pytest.fixture(scope="module")
def sample_config():
    return BuildConfig("sample", embed=EmbedConfig("lexical"))


@pytest.fixture(scope="module")
def sample_build(sample_config, module_path):
    return build_hierarchy(module_path / "out", sample_config, silent)


@pytest.fixture(scope="module")
def names_config(tmp_path_factory, sample_config):
    """Options of a build from small tables of names, for two splits."""
    folder, tables = tmp_path_factory.mktemp("tables"), []
    for split, count in (("index", 7), ("train", 14)):
        file = folder / f"{split}.csv"
        rows = [f"{i},http://commons.wikimedia.org/wiki/Category:L{i},{NAMES[i % len(NAMES)]}" for i in range(count)]
        file.write_text("\n".join(["landmark_id,category,supercategory", *rows, ""]))
        tables.append((split, file))
    return replace(sample_config, source="names", tables=tuple(tables))


@pytest.fixture(scope="module")
def names_build(names_config, tmp_path_factory):
    """Return the folder of a build of both splits, which no test changes."""
    return build_hierarchy(tmp_path_factory.mktemp("names") / "out", names_config, silent).directory


@pytest.fixture
def out(names_build, tmp_path):
    """Return a copy of the build of both splits."""
    return shutil.copytree(names_build, tmp_path / "out")


@pytest.fixture(scope="module")
def fewer(names_config):
    """Options of a build of one of the two splits."""
    return replace(names_config, tables=names_config.tables[1:])


@pytest.fixture(scope="module")
def expected(fewer, tmp_path_factory):
    """Return the contents of a build of one split in another folder, with batches of another size."""
    config = replace(fewer, embed=replace(fewer.embed, batch_size=3))
    return contents(build_hierarchy(tmp_path_factory.mktemp("fewer") / "out", config, silent).directory)


def contents(out):
    """Return the contents of all results of a build, without the times in the provenance."""
    found = {}
    for file in out.rglob("*"):
        name = file.relative_to(out).as_posix()
        if file.is_file() and not name.startswith("stages/"):
            found[name] = file.read_bytes()
    provenance = json.loads(found.pop("provenance.json"))
    del provenance["times"]
    return {**found, "provenance.json": json.dumps(provenance).encode()}


def test_build_of_the_sample_writes_all_documented_files(sample_build):
    out = sample_build.directory
    promised = {"train_label_to_hierarchical.csv", "index_label_to_hierarchical.csv", "raw_names.csv"}
    promised |= {
        "hierarchy.parquet",
        "dropped.parquet",
        "provenance.json",
        "README.md",
        "report.html",
    }
    assert promised <= set(sample_build.files)
    assert all(path.is_file() for path in sample_build.files.values())
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["outputs"] == {
        name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for name, path in sorted(sample_build.files.items())
        if name != "provenance.json"
    }
    assert list(provenance["stages"]) == list(sample_build.stages)[:-1]
    assert {entry["role"] for entry in provenance["inputs"]} == {"sample"}
    there = {path.name for path in out.iterdir()}
    assert there == {LOCK, "stages", *(name.split("/")[0] for name in sample_build.files)}


def test_groups_of_the_sample_agree_with_groups_made_by_hand(sample_build):
    names = pl.read_parquet(sample_build.stages["review"].path("names.parquet"))
    both = names.join(pl.read_csv(EXPECTED_GROUPS), on="name")
    assert len(both) == len(names) >= 60
    assert adjusted_rand_score(both["group"], both["label"]) > 0.45
    assert normalized_mutual_info_score(both["group"], both["label"]) > 0.75
    tops = pl.read_parquet(sample_build.stages["review"].path("groups.parquet")).select("label", "top")
    decided = both.join(tops, on="label").drop_nulls("top")
    assert len(decided) > 0.9 * len(both)
    assert (decided["top"] == decided["natural_or_human_made"]).sum() > 0.95 * len(decided)


def test_changed_or_missing_results_are_restored_and_unrelated_files_kept(tmp_path, out, names_config):
    victim, before = tmp_path / "victim.csv", contents(out)
    (out / "raw_names.csv").write_text("changed")
    (out / "report.html").unlink()
    again = build_hierarchy(out, names_config, silent)
    assert not any(stage.was_run for stage in again.stages.values())
    assert contents(out) == before
    assert all(path.is_file() for path in again.files.values())
    victim.write_text("precious")
    (out / ".bashrc").write_text("precious")
    provenance = json.loads((out / "provenance.json").read_text())
    provenance["outputs"] |= {"../victim.csv": {}, str(victim): {}, ".bashrc": {}, "pictures/../../victim.csv": {}}
    (out / "provenance.json").write_text(json.dumps(provenance))
    build_hierarchy(out, names_config, silent)
    assert victim.read_text() == (out / ".bashrc").read_text() == "precious"


def test_build_after_a_full_disk_restores_all_files_and_removes_outdated_files(out, fewer, expected, monkeypatch):
    (out / "my_label_to_hierarchical.csv").write_text("mine")
    real = shutil.copyfile
    for room in (0, 5):
        copied = []

        def copy(source, target, copied=copied, room=room):
            if len(copied) == room:
                raise OSError(errno.ENOSPC, "No space left on device")
            copied.append(real(source, target))

        monkeypatch.setattr(building.shutil, "copyfile", copy)
        with pytest.raises(StorageError, match=r"No space left on device\. Free space, then run the same command"):
            build_hierarchy(out, fewer, silent)
        assert len(copied) == room
        assert not (out / "provenance.json").exists()
    monkeypatch.setattr(building.shutil, "copyfile", real)
    build_hierarchy(out, fewer, silent)
    assert contents(out) == expected | {"my_label_to_hierarchical.csv": b"mine"}


ONE, TWO = ("train", Path("a.csv")), ("train", Path("b.csv"))


@each_row(
    ("options", "error"),
    [
        ({"source": "sample", "tables": (ONE,)}, "'sample' was given 1 tables; expected none"),
        ({"source": "names", "tables": ()}, "'names' was given 0 tables"),
        ({"source": "names", "tables": (ONE, TWO)}, "expected one table per split"),
        *(({"tables": ((split, Path("x.csv")),)}, "cannot be part of a file name") for split in ("../a", "-x", "é")),
        ({"embed": EmbedConfig("sbert:/nowhere")}, "No such file or directory"),
        ({"embed": EmbedConfig("lexicon")}, "--encoder is 'lexicon'; expected one of"),
        ({"cluster": ClusterConfig(groups=-1)}, "--groups is -1"),
        ({"evidence": EvidenceConfig(("smell",))}, "expected a list of one of 'wording'"),
        ({"evidence": EvidenceConfig(("none", "classes"))}, "--evidence none cannot be combined"),
        ({"review": ReviewConfig((Path("none.yaml"),))}, r"none\.yaml: the decisions cannot be read"),
    ],
)
def test_invalid_options_are_refused_before_the_scrape(tmp_path, names_config, options, error):
    with pytest.raises(HgldError, match=error):
        build_hierarchy(tmp_path / "out", replace(names_config, **{"source": "landmarks", **options}), silent)
    assert not (tmp_path / "out").exists()
