"""Releases and real images are built into shards that pass verify and can be read."""

import pytest
import torch

import hgld
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.pipelines.check.index import rebuild_index
from hgld.pipelines.check.verify import verify
from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent
from hgld.samplers import EpochSampler, PKSampler
from tests.fake_releases import gldv2
from tests.fake_releases.__main__ import maker

# tars and unscored queries; rotated images; unknown labels; lists of queries; boxes and judgements
RELEASES = ("gldv2", "cub", "dyml-vehicle", "vehicleid", "roxford")


def check(root, *, rebuilds):
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


@pytest.mark.slow
def test_real_images_are_built_into_shards_that_pass_verify(real_data, tmp_path):
    """Real images are built with class-disjoint splits and read in P x K batches."""
    folder = real_data / "gldv2_washington"
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
