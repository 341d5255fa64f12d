"""Metrics of labels and of the set: kNN predictions, distances of classes, clusters, and their place in reports."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld import RetrievalReport, evaluate
from hgld.errors import ConfigError, SchemaError
from hgld.evaluation.protocols import is_per_cent, lower_is_better
from hgld.evaluation.report import compare
from hgld.metrics import class_distances, clustering_nmi, ranking_metrics
from hgld.report_page.curves import severity
from hgld.report_page.rankings import first_ranks
from hgld.report_page.runs import Items, Ranked
from tests import reference

LEVELS = ("fine", "middle", "coarse")
KNN = ["kNN-hP", "kNN-hR", "kNN-hF1", "kNN-consistency"]
OF_SET = ["dists@intra", "dists@inter", "NMI"]


@st.composite
def tasks(draw):
    """Scores with ties, and labels of a tree with holes in them."""
    size, queries = draw(st.integers(2, 10)), draw(st.integers(1, 3))
    fine = np.array(draw(st.lists(st.integers(0, 7), min_size=size + queries, max_size=size + queries)))
    labels = np.stack([fine, fine // 2, fine // 4], axis=1)
    known = draw(st.lists(st.integers(0, 7), min_size=len(fine), max_size=len(fine)))
    labels[(np.array(known)[:, None] >> np.arange(3)) & 1 == 1] = -1
    scores = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=size, max_size=size), min_size=queries, max_size=queries)
    )
    return np.array(scores, np.float64), labels[:queries], labels[queries:]


def listed(scores, own, gallery):
    """The gallery's labels by descending score, then ascending grade, then by themselves, as a plain sort has them."""
    grade = [max((3 - c for c in range(3) if own[c] == label[c] >= 0), default=0) for label in gallery]
    order = sorted(range(len(scores)), key=lambda j: (-scores[j], grade[j], gallery[j].tolist()))
    return [gallery[j].tolist() for j in order]


@given(tasks(), st.integers(1, 6))
def test_votes_equal_their_twins(task, k):
    scores, own, gallery = task
    items = np.eye(len(gallery))  # scores of unnormalised queries against unit vectors are the queries themselves
    names = [f"{name}@{k}" for name in KNN]
    found = evaluate(scores, own, items, gallery, levels=LEVELS, metrics=names, normalize=False, backend="torch")
    everyone = np.concatenate([own, gallery]).tolist()
    for row in range(len(own)):
        first = listed(scores[row], own[row], gallery)[:k]
        for name in names:
            expected = reference.knn(name[4 : name.index("@")], own[row].tolist(), first, everyone)
            np.testing.assert_allclose(found.per_query[name][row], expected, rtol=1e-12, err_msg=name)
    turned = evaluate(
        scores[:, ::-1].copy(), own, items, gallery[::-1].copy(), levels=LEVELS, metrics=names, normalize=False
    )
    assert turned.per_query.equals(found.per_query, null_equal=True)


def small(seed=0, size=48):
    fine = np.arange(size) // 4
    labels = np.stack([fine, fine // 3, fine // 6], axis=1)
    embeddings = np.random.default_rng(seed).normal(size=(12, 6))[fine]
    return embeddings + np.random.default_rng(seed + 1).normal(size=(size, 6)), labels


def test_with_all_labels_known_one_neighbour_shares_as_many_classes_as_its_grade_says():
    embeddings, labels = small()
    found = evaluate(embeddings, labels, levels=LEVELS, metrics=["kNN-hP@1", "kNN-hR@1", "HD@1", "severity"]).per_query
    np.testing.assert_allclose(found["kNN-hP@1"], found["kNN-hR@1"])
    np.testing.assert_allclose(found["kNN-hP@1"], 1 - found["HD@1"] / 3)
    mistakes = found.filter(found["HD@1"] > 0)
    np.testing.assert_array_equal(mistakes["severity"], mistakes["HD@1"])
    assert found["severity"].is_nan().sum() == len(found) - len(mistakes) > 0


def test_a_report_and_its_page_have_the_same_severity():
    embeddings, labels = small()
    items = Items(embeddings, labels, None)
    on_page = severity(first_ranks(Ranked(items, None, ())), 3)
    assert evaluate(embeddings, labels, levels=LEVELS, metrics=["severity"]).values["severity"] == pytest.approx(
        on_page.mean
    )


def test_votes_of_levels_may_contradict_the_tree():
    # fine 0, 1 under middle 0; fine 2 under middle 1: the fine vote is 2 (twice), the middle vote is 0 (three times)
    gallery = np.array([[2, 1, 0], [2, 1, 0], [0, 0, 0], [1, 0, 0], [-1, 0, 0]])
    scores = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]])
    options = {"levels": LEVELS, "normalize": False, "metrics": ["kNN-consistency@5", "kNN-consistency@2", "kNN-hP@5"]}
    found = evaluate(scores, np.array([[0, 0, 0]]), np.eye(5), gallery, **options).values
    assert found["kNN-consistency@5"] == 0
    assert found["kNN-consistency@2"] == 1
    assert found["kNN-hP@5"] == pytest.approx(1 / 3)  # class 2, under middle 1 and coarse 0: the coarse one is right


def test_judged_items_cannot_vote_and_make_no_clusters():
    with pytest.raises(ConfigError, match=r"kNN-hP@2, NMI/only: .*have no classes"):
        ranking_metrics(torch.rand(1, 3), torch.tensor([[0, 1, 0]]), ["kNN-hP@2", "NMI"], levels=["only"])


def test_metrics_of_the_set_are_values_without_a_column(tmp_path):
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
    assert again.per_query.equals(report.per_query)
    assert compare({"a": report, "b": again}).frame["metric"].unique().to_list() == ["R@1/fine"]
    kept = json.loads((tmp_path / "r.json").read_text())
    kept["settings"]["of_set"] = ["other"]
    (tmp_path / "r.json").write_text(json.dumps(kept))
    with pytest.raises(SchemaError, match="of_set"):
        RetrievalReport.load_json(tmp_path / "r.json")


def test_the_set_is_what_is_searched_and_belongs_to_the_first_of_several_processes():
    embeddings, labels = small()
    options = {"levels": LEVELS, "metrics": ["NMI/fine", "R@1/fine"]}
    whole = evaluate(embeddings[:8], labels[:8], embeddings[8:], labels[8:], **options)
    assert whole.values["NMI/fine"] == pytest.approx(clustering_nmi(embeddings[8:], labels[8:, 0]))
    parts = [evaluate(embeddings, labels, part=part, **options) for part in (range(24), range(24, 48))]
    assert ["NMI/fine" in part.values for part in parts] == [True, False]
    alone = evaluate(embeddings, labels, levels=LEVELS, metrics=["NMI/fine"])
    assert (len(alone.per_query), alone.query_metrics) == (48, [])


def test_a_set_without_a_class_has_no_value():
    embeddings, labels = small()
    labels[:, 0] = -1
    assert math.isnan(evaluate(embeddings, labels, levels=LEVELS, metrics=["NMI/fine"]).values["NMI/fine"])


def test_units_and_directions_are_known_by_name():
    assert is_per_cent("R@1/fine")
    assert not is_per_cent("HD@5")
    assert is_per_cent("a benchmark's own")
    assert lower_is_better("severity")
    assert not lower_is_better("NMI/fine")
    report = RetrievalReport.from_columns({"HD@1": np.array([1.5]), "H-AP": np.array([0.5])}, {})
    assert report.to_latex_row("x") == r"x & 1.5 & 50.0 \\"
