"""Curves, grades per rank and maps, against their definitions and the results of ``evaluate``."""

import base64
import json
import re
import zlib
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.scores import prepare_embeddings
from hgld.prediction.calibration import level_risk
from hgld.report_page import embedding_map, rankings
from hgld.report_page.changes import describe_changes
from hgld.report_page.curves import MeanCurves, precision_recall, reliability, severity
from hgld.report_page.embedding_map import describe_map, place_items
from hgld.report_page.figures import Figures
from hgld.report_page.mistakes import describe_mistakes
from hgld.report_page.rankings import first_ranks, gain_of
from hgld.report_page.runs import Evaluation, Items, Ranked
from tests.rows import each_row

METRICS = ("R@1", "AP", "H-AP")


def evaluation(seed=0, size=40, with_gallery=False, **options):
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 9, size)
    labels = np.stack([fine, fine // 3, fine // 6], axis=1)
    labels[rng.random(size) < 0.1] = -1
    embeddings = rng.normal(size=(size, 6)).astype(np.float32) + np.eye(9, 6, dtype=np.float32)[fine]
    query, gallery = Items(embeddings, labels, None), None
    given = (embeddings, labels)
    if with_gallery:
        query, gallery = Items(embeddings[:15], labels[:15], None), Items(embeddings[15:], labels[15:], None)
        given = (query.embeddings, query.labels, gallery.embeddings, gallery.labels)
    report = evaluate(*given, levels=("a", "b", "c"), options=EvaluationOptions(metrics=METRICS, **options))
    return Evaluation(report, None, Ranked(query, gallery, ({}, {}, {})))


class Ranking(NamedTuple):
    query: int
    items: np.ndarray
    grades: np.ndarray


def rank(ranked):
    """Return the gallery of every query, best first, without the query itself: one sort by score and grade."""
    sides = [prepare_embeddings(side.embeddings, "item") for side in (ranked.query, ranked.other_side)]
    rankings = []
    for query, scores in enumerate((sides[0] @ sides[1].T).numpy()):
        labels = ranked.query.labels[query]
        matches = (labels == ranked.other_side.labels) & (labels >= 0)
        grades = (matches * np.arange(len(labels), 0, -1)).max(axis=1)
        order = np.lexsort((grades, -scores))
        order = order[order != query] if ranked.gallery is None else order
        rankings.append(Ranking(query, order, grades[order]))
    return rankings


def slow_precision(grades, gains, recall):
    """Return the precision at a recall according to the definition, one rank at a time."""
    worth = [gains[g] for g in grades]
    found = 0.0
    for k in range(len(worth)):
        found += worth[k]
        if worth[k] > 0 and found / sum(worth) >= recall - 1e-9:
            return sum(min(worth[k], w) for w in worth[: k + 1]) / ((k + 1) * worth[k])
    return None


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.floats(0.01, 10), min_size=3, max_size=3),
    st.floats(0.001, 1),
)
def test_precision_at_a_recall_equals_the_definition(grades, worth, recall):
    gains = np.array([0.0, *sorted(worth)])
    curve = precision_recall(np.array(grades), gains, np.array([recall]))
    # the curve may have a step within rounding of this recall
    nearby = [slow_precision(grades, gains, min(1.0, max(1e-6, recall + d))) for d in (-1e-7, 0, 1e-7)]
    assert (curve is None) == (None in nearby)
    assert curve is None or any(curve[0] == pytest.approx(value) for value in nearby)


@each_row(
    ("options", "with_gallery"),
    [({"relevance": "weighted_ap"}, True), ({"alpha": 3.0}, False), ({"count_query": True}, False)],
)
def test_area_under_each_mean_curve_is_the_average_precision(options, with_gallery):
    """Some queries have no positive item; the curves and the metrics exclude them."""
    found = evaluation(with_gallery=with_gallery, **options)
    curves = MeanCurves(gain_of(found), 3)
    assert curves.means() == [None] * 4
    first_ranks(found.ranked, visit=curves.add)
    for curve, metric in zip(curves.means(), ("AP/a", "AP/b", "AP/c", "H-AP"), strict=True):
        assert curve.mean() == pytest.approx(found.report.values[metric], abs=1.5e-3)


@each_row("with_gallery", [False, True])
def test_first_ranks_equal_the_start_of_the_whole_rankings(with_gallery):
    whole = evaluation(size=60, with_gallery=with_gallery).ranked
    # with only four distinct points, ties extend beyond the last kept rank
    query, gallery = (
        side and Items(np.sign(side.embeddings[:, :2]), side.labels, None) for side in (whole.query, whole.gallery)
    )
    small = Items(query.embeddings[:7], query.labels[:7], None)
    for ranked in (whole, Ranked(query, gallery, whole.names), Ranked(small, None, whole.names)):
        visited = []
        first = first_ranks(ranked, visit=visited.append)
        every = rank(ranked)
        assert np.concatenate(visited).tolist() == [ranking.grades.tolist() for ranking in every]
        for ranking in every:
            assert first.items[ranking.query].tolist() == ranking.items[: rankings.FIRST_RANKS].tolist()
            assert first.grades[ranking.query].tolist() == ranking.grades[: rankings.FIRST_RANKS].tolist()
            assert first.findable[ranking.query] == (3 in ranking.grades)


def test_severity_counts_the_grade_of_the_first_item():
    found = evaluation()
    counted = severity(first_ranks(found.ranked), 3)
    firsts = [int(r.grades[0]) for r in rank(found.ranked) if 3 in r.grades]
    assert counted.queries == len(firsts)
    assert counted.shares == pytest.approx([firsts.count(grade) / len(firsts) for grade in (3, 2, 1, 0)])
    assert 1 - counted.mistakes == pytest.approx(found.report.values["R@1/a"])
    assert counted.mean == pytest.approx(np.mean([3 - g for g in firsts if g < 3]))
    assert counted.by_rank.sum(axis=1) == pytest.approx(1)


def test_mistakes_count_the_first_results_by_class_level_and_outcome():
    found = evaluation(size=60)
    first = first_ranks(found.ranked)
    made = describe_mistakes(found, first, lambda level, label: f"{'abc'[level]}{label}", "H-AP")
    labels, cases = found.ranked.query.labels, [r for r in rank(found.ranked) if 3 in r.grades]
    levels, worst = made["tree"]["levels"], {}
    for c, errors in enumerate(made["tree"]["measures"].values()):
        for name, error in zip(levels[c]["names"], errors[c], strict=True):
            wrong = [r.grades[0] < 3 - c for r in cases if labels[r.query, c] == int(name[1:])]
            assert error == pytest.approx(np.mean(wrong), abs=1e-4)
    for r in cases:
        worst[f"a{labels[r.query, 0]}"] = min(worst.get(f"a{labels[r.query, 0]}", 9), r.grades[0])
    assert len(made["worst"]) == len(worst)
    for strip, path in zip(made["worst"], made["tree"]["paths"], strict=True):
        assert strip.query.caption == levels[0]["names"][int(path.split()[0])]
        assert strip.ranked[0][1][0].frame == {3: 7, 2: 2, 1: 1, 0: 0}[worst[strip.query.caption]]
    pairs = [(labels[r.query, 1], labels[r.items[0], 1]) for r in cases]
    classes = [int(name.removeprefix(made["level"])) for name, _, _ in made["matrix"]]
    assert (made["level"], len(classes) > 1) == ("b", True)
    for own, (_, queries, counts) in zip(classes, made["matrix"], strict=True):
        assert queries == sum(one == own for one, _ in pairs)
        assert counts == [pairs.count((own, other)) for other in classes]
    for (row, column), strips in made["cells"].items():
        assert row != column
        assert 1 <= len(strips) == min(6, made["matrix"][row][2][column])
        for strip in strips:
            shown = [int(re.findall(r"b: b(\d+)", tile.says)[0]) for tile in (strip.query, *strip.ranked[0][1])]
            assert shown == [classes[row], classes[column]]
    assert len(made["cells"]) == len({pair for pair in pairs if pair[0] != pair[1] and {*pair} <= {*classes}})
    shares = [np.mean([r.grades[0] in of for r in cases]) for of in ({3}, {1, 2}, {0})]
    assert [share for share, _ in made["outcomes"]] == pytest.approx(shares)
    for (_, strips), frames in zip(made["outcomes"], ({7}, {1, 2}, {0}), strict=True):
        assert len(strips) == 2
        assert all(strip.ranked[0][1][0].frame in frames for strip in strips)


def test_changes_per_class_equal_the_means_of_its_queries_with_resampled_intervals():
    one, other = evaluation(seed=0, size=150), evaluation(seed=0, size=150)
    worse = other.report.per_query["H-AP"].to_numpy() - 0.1 * (one.ranked.query.labels[:, 0] % 3)
    table = other.report.per_query.with_columns(pl.Series("H-AP", worse))
    other = replace(other, report=replace(other.report, per_query=table))
    runs, name_of = {"one": one, "other": other}, lambda level, label: f"{'abc'[level]}{label}"
    ranks = {name: first_ranks(run.ranked) for name, run in runs.items()}
    made = describe_changes(runs, ranks, dict.fromkeys(runs, name_of), "one", "H-AP")
    before, labels = one.report.per_query["H-AP"].to_numpy(), one.ranked.query.labels
    assert [level for level, _ in made["levels"]] == ["c", "b", "a"]
    for level, rows in made["levels"]:
        c = "abc".index(level)
        assert {row.name for row in rows} == {f"{level}{label}" for label in labels[:, c] if label >= 0}
        assert [row.after - row.before for row in rows] == sorted([row.after - row.before for row in rows])[::-1]
        for row in rows:
            of = np.flatnonzero((labels[:, c] == int(row.name[1:])) & ~np.isnan(before))
            assert row.queries == len(of)
            assert [row.before, row.after] == pytest.approx([before[of].mean(), worse[of].mean()])
            units = [[q] for q in of] if c == 0 else [of[labels[of, 0] == k] for k in np.unique(labels[of, 0])]
            assert np.isnan(row.low) == (len(units) < 5)
            if len(units) >= 5:  # the reference draws each resample separately, from different random numbers
                drawn = np.random.default_rng(1).integers(0, len(units), (500, len(units)))
                means = [(worse - before)[np.concatenate([units[i] for i in one])].mean() for one in drawn]
                assert [row.low, row.high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)
            assert row.change == ("up" if row.low > 0 else "down" if row.high < 0 else "")
    assert {row.change for _, rows in made["levels"] for row in rows} == {"", "down"}
    other.report.settings["labels_sha256"] = "of other queries"
    assert describe_changes(runs, ranks, dict.fromkeys(runs, name_of), "one", "H-AP") is None


def test_reliability_of_tenths_equals_their_means():
    confidence, draws = np.random.default_rng(0).random((2, 100))
    confidence.sort()
    right = draws < confidence
    shown, accuracy = reliability(level_risk("a", confidence, right, np.ones(100)))
    assert accuracy == pytest.approx(right.reshape(10, 10).mean(axis=1), abs=1e-5)
    assert shown == pytest.approx(confidence.reshape(10, 10).mean(axis=1), abs=0.02)


def test_map_places_a_sample_by_tsne_and_each_other_item_among_its_nearest_of_the_sample(monkeypatch):
    monkeypatch.setattr(embedding_map, "_MOST_ANCHORS", 20)
    monkeypatch.setattr(embedding_map, "MOST_POINTS", 90)
    monkeypatch.setattr(embedding_map, "tsne", lambda points: 3 * points[:, :2])
    items = evaluation(size=120).ranked.query
    rows, places, anchors, reason = place_items(items)
    assert (len(rows), len(set(rows.tolist())), len(anchors), reason) == (90, 90, 20, "")
    assert (np.diff(items.labels[rows, 0]) >= 0).all()
    unit = items.embeddings / np.linalg.norm(items.embeddings, axis=1, keepdims=True)
    fixed = unit[rows[anchors]]
    for at, row in enumerate(rows):
        cosines = (fixed @ unit[row]).astype(np.float64)
        nearest = np.argsort(-cosines)[:5]
        weights = np.exp(cosines[nearest] / 0.05)
        expected = 3 * (weights @ fixed[nearest, :2]) / weights.sum()
        if at in anchors:
            expected = 3 * fixed[list(anchors).index(at), :2]
        assert places[at] == pytest.approx(expected, abs=1e-4)


def test_map_of_the_page_has_every_item_with_its_classes_and_key():
    items = replace(evaluation(size=60).ranked.query, keys=[f"key {i}" for i in range(60)])
    placed, name_of = place_items(items), lambda c, label: f"{'abc'[c]}{label}"
    made, reason = describe_map(Figures(), items, placed, ("a", "b", "c"), name_of, "run", "test")
    assert reason == ""
    data = json.loads(zlib.decompress(base64.b64decode(made["packed"])))
    assert sorted(data["keys"]) == sorted(items.keys or [])
    assert {0, 4095} <= {*data["x"], *data["y"]} <= set(range(4096))
    for i, key in enumerate(data["keys"]):
        own = [level["names"][level["classes"][i]] for level in data["levels"]]
        labels = items.labels[int(key.removeprefix("key "))]
        assert own == [f"{'abc'[c]}{label}" for c, label in enumerate(labels)]
    assert len(made["pictured"]) == 40
    for point, key, name in made["pictured"]:
        assert data["keys"][point] == key
        assert data["levels"][0]["names"][data["levels"][0]["classes"][point]] == name
