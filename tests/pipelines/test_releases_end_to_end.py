"""Every release is built into verified shards, which are read and evaluated by its protocol."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import hgld
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.errors import ConfigError
from hgld.evaluation.evaluate_files import evaluate_dataset_files
from hgld.evaluation.protocols import at_finest, protocol_of
from hgld.pipelines.check.index import rebuild_index
from hgld.pipelines.check.verify import verify
from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.shards.sources import OWN_DATA, SOURCES
from hgld.pipelines.stage import silent
from hgld.samplers import EpochSampler, PKSampler
from tests.fake_releases import gldv2
from tests.fake_releases.__main__ import maker

# three releases use the adapters of inat-full, dyml-vehicle and roxford
RELEASES = [name for name in SOURCES if name not in (*OWN_DATA, "inat-base", "dyml-animal", "rparis")]


def check(root: Path, *, rebuilds: bool) -> None:
    """Check that a dataset passes verify, that every image decodes, and, if asked, that its index can be rebuilt."""
    found = verify(root, decode=True, workers=1, progress=silent)
    assert found.findings.is_empty(), found.findings.rows()
    dataset = hgld.open_dataset(root)
    sampler = EpochSampler(len(dataset), 16, shuffle=False)
    seen = torch.cat([batch.labels for batch in Loader(dataset, sampler, TestView(size=16, resize=16))])
    assert torch.equal(seen, dataset.labels)
    if rebuilds:
        rebuild_index(root, force=True, progress=silent)
        assert hgld.open_dataset(root).frame.equals(dataset.frame)


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.usefixtures("mat_files_here")
def test_release_is_built_into_shards_that_pass_verify(name, tmp_path, monkeypatch):
    gldv2.leave_empty_tars_out(monkeypatch)
    (tmp_path / "release").mkdir()
    maker(name)(tmp_path / "release", 0)
    options = SourceConfig(distractors=name == "roxford")
    build_shards(name, tmp_path / "release", str(tmp_path / "shards"), options, ShardConfig(workers=1), silent)
    check(tmp_path / "shards", rebuilds=name in ("gldv2", "roxford", "dyml-vehicle"))
    follow_protocol(tmp_path / "shards", tmp_path / "perfect.npy")


def follow_protocol(root: Path, file: Path) -> None:
    """Evaluate embeddings that rank perfectly at every level: each class has an axis, longer at finer levels."""
    dataset = hgld.open_dataset(root)
    protocol = protocol_of(dataset.manifest.protocol)
    rows = []
    for level, labels in enumerate(dataset.labels.numpy().T):
        # each item of an unknown class gets its own class, so it matches nothing
        alone = np.where(labels < 0, labels.max() + 1 + np.arange(len(labels)), labels)
        rows.append(np.eye(alone.max() + 1, dtype=np.float32)[alone] / (level + 1))
    # noise avoids equal scores
    rows.append(np.random.default_rng(0).normal(scale=0.01, size=(len(dataset), 8)).astype(np.float32))
    np.save(file, np.concatenate(rows, axis=1))
    pl.DataFrame({"key": dataset.keys}).write_parquet(file.with_suffix(".labels.parquet"))
    if "top-1" in protocol.printed:
        with pytest.raises(ConfigError, match="which needs a classifier"):
            evaluate_dataset_files([file], str(root))
    else:
        report = evaluate_dataset_files([file], str(root))
        printed = {name: report.values[name] for name in report.settings["printed"]}
        assert list(printed) == [name for name in at_finest(protocol.printed, dataset.levels) if name in report.values]
        if protocol.tables != ("judgements",):
            # the relevance of H-AP may decrease with the grade, so a perfect ranking need not reach 1
            printed.pop("H-AP", None)
            best = {name: 4.0 if name == "N-S" else 1.0 for name in printed}
            assert printed == pytest.approx(best, abs=1e-6)


@pytest.mark.slow
def test_real_images_are_built_into_shards_that_pass_verify(tmp_path):
    """Real images of HGLD_DATA are built with class-disjoint splits and read in P x K batches."""
    if "HGLD_DATA" not in os.environ:
        pytest.skip("HGLD_DATA is not set: real images are missing")
    folder = Path(os.environ["HGLD_DATA"]) / "gldv2_washington"
    levels = ("fine", "supercategory", "hierarchical_label", "natural_or_human_made")
    rows = (folder / "labels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "labels.csv").write_text("".join(r for r in rows if "unclassified" not in r), encoding="utf-8")
    options = SourceConfig(images=folder, levels=levels, test_classes=0.5)
    build_shards("manifest", tmp_path / "labels.csv", str(tmp_path / "shards"), options, ShardConfig(workers=1), silent)
    train, test = (hgld.open_dataset(tmp_path / "shards", split) for split in ("train", "test"))
    assert len(train) + len(test) == 4425
    assert not set(train.labels[:, 0].tolist()) & set(test.labels[:, 0].tolist())
    for indices in PKSampler(train, 16, 4):
        classes, counts = train.labels[indices, 0].unique(return_counts=True)
        assert (counts % 4 == 0).all()
        # one Washington landmark has more groups of four than the epoch has batches, so it may repeat in a batch
        assert len(classes) >= 15
    check(tmp_path / "shards", rebuilds=True)
