"""Clustering metrics, which have one value for the whole gallery: their values, and their place in reports."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld import RetrievalReport
from hgld.errors import InputError
from hgld.evaluation import scores, statistics
from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.protocols import is_per_cent, lower_is_better
from hgld.evaluation.report import compare
from hgld.metrics import class_distances, clustering_nmi

LEVELS = ("fine", "middle", "coarse")
OF_SET = ["dists@intra", "dists@inter", "NMI"]


def blobs(classes=4, size=10, spread=0.05):
    generator = torch.Generator().manual_seed(0)
    centers = torch.eye(8)[:classes].repeat_interleave(size, dim=0)
    labels = torch.arange(classes).repeat_interleave(size)
    return centers + spread * torch.randn(centers.shape, generator=generator), labels


@given(st.lists(st.integers(-1, 3), min_size=2, max_size=12), st.integers(0, 100))
def test_class_distances_equal_the_definition_of_roth(labels, seed):
    if max(labels) < 0:
        return
    embeddings = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed))
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1).numpy()
    classes = [unit[np.array(labels) == one] for one in sorted({*labels} - {-1})]
    centers = [rows.mean(0) / np.linalg.norm(rows.mean(0)) for rows in classes]
    intra = [np.mean([1 - a @ b for a, b in itertools.combinations(rows, 2)]) for rows in classes if len(rows) > 1]
    inter = [1 - a @ b for a, b in itertools.combinations(centers, 2)]
    found = class_distances(embeddings, np.array(labels))
    np.testing.assert_allclose(found.intra, np.mean(intra) if intra else np.nan, atol=1e-6)
    np.testing.assert_allclose(found.inter, np.mean(inter) if inter else np.nan, atol=1e-6)


def test_nmi_is_1_for_separate_classes_and_low_for_shuffled_ones():
    embeddings, labels = blobs()
    assert clustering_nmi(embeddings, labels) == pytest.approx(1.0)
    assert clustering_nmi(embeddings, labels.roll(5) % 2) < 0.9
    assert clustering_nmi(embeddings, torch.zeros(40, dtype=torch.int64)) == 1.0


@pytest.mark.slow
def test_large_tables_are_clustered_by_blocks_or_skipped_and_the_report_says_so(monkeypatch):
    embeddings, labels = blobs(size=50)
    columns = labels[:, None].repeat(1, 3)
    options = EvaluationOptions(metrics=OF_SET, share=SimpleNamespace(rank=lambda rank, count: rank(range(count))))

    def report():
        return evaluate(embeddings, columns, levels=LEVELS, options=options)

    whole = report()
    assert "clustering" not in whole.settings
    monkeypatch.setattr(scores, "_CACHED_NUMBERS", 0)  # rows are prepared block by block
    monkeypatch.setattr(statistics, "_ROWS_AT_ONCE", 7)
    assert report().values == whole.values
    monkeypatch.setattr(statistics, "_MOST_PRODUCTS", 0)
    in_passes = report()
    assert in_passes.values == pytest.approx(whole.values)
    assert in_passes.values == report().values
    assert in_passes.settings["clustering"]["NMI/fine"] == "mini-batch k-means, two passes"
    monkeypatch.setattr(statistics, "_MOST_PRODUCTS_IN_PASSES", 0)
    skipped = report()
    assert np.isnan(skipped.values["NMI/fine"])
    assert skipped.values["dists@intra/fine"] == whole.values["dists@intra/fine"]
    assert skipped.settings["clustering"]["NMI/fine"] == "skipped: too many items and classes"


def test_class_distances_refuse_unusable_labels():
    embeddings, labels = blobs()
    with pytest.raises(InputError, match="one level"):
        class_distances(embeddings, labels[:, None])
    with pytest.raises(InputError, match="no item has a known label"):
        class_distances(embeddings, -torch.ones(40).long())


def small(seed=0, size=48):
    fine = np.arange(size) // 4
    labels = np.stack([fine, fine // 3, fine // 6], axis=1)
    embeddings = np.random.default_rng(seed).normal(size=(12, 6))[fine]
    return embeddings + np.random.default_rng(seed + 1).normal(size=(size, 6)), labels


def test_clustering_metrics_have_values_but_no_column_per_query(tmp_path):
    embeddings, labels = small()
    report = evaluate(embeddings, labels, levels=LEVELS, metrics=[*OF_SET, "R@1/fine"])
    assert report.query_metrics == ["R@1/fine"]
    for column, level in enumerate(LEVELS):
        apart = class_distances(embeddings, labels[:, column])
        assert report.values[f"dists@intra/{level}"] == pytest.approx(apart.intra, abs=1e-6)
        assert report.values[f"dists@inter/{level}"] == pytest.approx(apart.inter, abs=1e-6)
        assert report.values[f"NMI/{level}"] == pytest.approx(clustering_nmi(embeddings, labels[:, column]))
    report.save_json(tmp_path / "r.json")
    again = RetrievalReport.load_json(tmp_path / "r.json")
    assert again.values == report.values
    assert compare({"a": report, "b": again})["metric"].unique().to_list() == ["R@1/fine"]


def test_clustering_metrics_use_only_the_gallery():
    embeddings, labels = small()
    how = {"levels": LEVELS, "metrics": ["NMI/fine"]}
    whole = evaluate(embeddings[:8], labels[:8], embeddings[8:], labels[8:], **how)
    assert whole.values["NMI/fine"] == pytest.approx(clustering_nmi(embeddings[8:], labels[8:, 0]))
    labels[:, 0] = -1  # without any known class, NMI is undefined
    alone = evaluate(embeddings, labels, **how)
    assert np.isnan(alone.values["NMI/fine"])
    assert (len(alone.per_query), alone.query_metrics) == (48, [])


def test_unit_and_direction_follow_from_the_metric_name():
    assert is_per_cent("R@1/fine")
    assert not is_per_cent("HD@5")
    assert is_per_cent("a benchmark's own")
    assert lower_is_better("severity")
    assert not lower_is_better("NMI/fine")
