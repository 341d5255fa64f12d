"""Predictions: votes and confidences against reference implementations, thresholds, and calibration."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hgld.errors import ConfigError, InputError
from hgld.prediction import Calibration, calibrate, predict
from hgld.prediction.calibration import (
    Cases,
    LevelScaling,
    calibration_error,
    level_risk,
    risk_coverage,
)
from hgld.prediction.votes import complete_labels, count_votes
from tests import reference
from tests.rows import refused

LEVELS = ("fine", "middle", "coarse")


@st.composite
def neighborhoods(draw):
    """Draw the scores of some queries' neighbours, with ties and padding, and tree labels of which some are unknown."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 7)))
    fine = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 5)))
    labels = np.stack([fine, fine // 2, fine // 4], axis=-1)
    labels[draw(hnp.arrays(np.bool_, labels.shape))] = -1
    scores = -np.sort(-draw(hnp.arrays(np.int64, shape, elements=st.integers(-4, 8)))) / 8
    scores[0, draw(st.integers(1, shape[1])) :] = -np.inf
    return scores, labels


@given(neighborhoods(), st.sampled_from([0.02, 0.1, 1.0]))
def test_votes_equal_reference_and_do_not_decrease_from_fine_to_coarse(found, temperature):
    scores, labels = found
    votes = count_votes(scores, labels, temperature)
    for row in range(len(scores)):
        path, shares, *others = reference.votes(scores[row].tolist(), labels[row].tolist(), temperature)
        assert votes.labels[row].tolist() == path
        np.testing.assert_allclose(votes.shares[row], shares, rtol=1e-9, atol=1e-12)
        supports = votes.supports[row][np.isfinite(scores[row])]
        assert [votes.nearest[row].tolist(), votes.rival[row].tolist(), supports.tolist()] == others
    assert (np.diff(votes.shares, axis=1) >= 0).all()


# -- predict ----------------------------------------------------------------------------------------------------------


@st.composite
def galleries(draw):
    """Draw queries and a gallery with distinct scores, and labels of a tree."""
    size = draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    fine = rng.integers(0, 6, size)
    labels = np.stack([fine, fine // 2, fine // 4], axis=1)
    labels[rng.random(labels.shape) < 0.2] = -1
    return rng.normal(size=(3, 4)), rng.normal(size=(size, 4)), labels, rng.permutation(size)


@given(galleries(), st.floats(0, 1.1), st.booleans())
def test_predictions_obey_threshold_and_do_not_depend_on_gallery_order(task, bound, calibrated):
    queries, gallery, labels, order = task
    scalings = tuple(LevelScaling((0.5 + c, 2.0 - 3 * c, 1.0), -0.2) for c in range(3))
    calibration = Calibration(LEVELS, scalings, neighbors=5) if calibrated else None
    ask = {"levels": LEVELS, "calibration": calibration, "min_confidence": bound}
    found = predict(queries, gallery, labels, **ask)
    assert (np.diff(found.confidences, axis=1) >= 0).all()
    assert found.calibrated == calibrated
    for answer, path in zip(found, found.paths, strict=True):
        voted = dict(zip(LEVELS, path.tolist(), strict=True))
        column = 3 if answer.level is None else LEVELS.index(answer.level)
        assert all(answer.confidences[level] < bound or voted[level] < 0 for level in LEVELS[:column])
        assert answer.path == {level: voted[level] for level in LEVELS[column:] if voted[level] >= 0}
        assert bool(answer.neighbors) == (answer.level is not None)
        if answer.level is not None:
            assert answer.confidence >= bound
            known = complete_labels(labels)[list(answer.neighbors), column]
            assert set(known.tolist()) <= {answer.path[answer.level], -1}
    turned = predict(queries, gallery[order], labels[order], **ask)
    np.testing.assert_array_equal(turned.paths, found.paths)
    np.testing.assert_array_equal(turned.column, found.column)
    np.testing.assert_array_equal(order[turned.neighbors], found.neighbors)


GALLERY = np.array([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
TREE = np.array([[0, 0], [0, 0], [1, 1], [2, 1], [-1, 1]])
KINDS = {"item": ["rose", "rose", "oak", "elm", None], "kind": ["flower", "flower", "tree", "tree", "tree"]}


def test_within_restricts_the_search_and_the_class_has_confidence_1():
    query = np.array([[1.0, 0.05, 0.0]])
    (answer,) = predict(query, GALLERY, TREE, within={"level1": 1}, min_confidence=0.0)
    assert answer.path["level1"] == 1
    assert answer.confidences["level1"] == 1
    assert set(answer.neighbors) <= {2, 3, 4}
    (answer,) = predict(query, GALLERY, KINDS, within={"item": ["oak", "elm"]}, min_confidence=0.99)
    assert set(answer.neighbors) == {2, 3}
    assert answer.level == "kind"


def test_class_names_as_labels_give_class_names_as_predictions():
    query = np.array([[1.0, 0.05, 0.0], [0.05, 1.0, 0.0]])
    by_id, by_name = predict(query, GALLERY, TREE, min_confidence=0), predict(query, GALLERY, KINDS, min_confidence=0)
    paths = [answer.path for answer in by_name]
    assert paths == [{"item": "rose", "kind": "flower"}, {"item": "oak", "kind": "tree"}]
    np.testing.assert_array_equal(by_name.confidences, by_id.confidences)
    assert (len(by_name), by_name[-1].path, [a.path for a in by_name[:1]]) == (2, paths[1], paths[:1])
    assert predict(query, GALLERY, KINDS, levels=["kind"])[0].path == {"kind": "flower"}


def test_level_and_self_index_restrict_predictions():
    (answer,) = predict(GALLERY[:1], GALLERY, TREE, level="level1")
    assert (answer.level, dict(answer.path)) == ("level1", {"level1": 0})
    own = {"self_index": np.array([0]), "min_confidence": 0}
    (answer,) = predict(GALLERY[:1], GALLERY, TREE, **own)
    assert 0 not in answer.neighbors
    (answer,) = predict(GALLERY[:1], GALLERY, TREE, within={"level1": 1}, **own)
    assert answer.neighbors[0] == 3


test_predict_refuses_invalid_arguments = refused(
    lambda labels, wrong: predict(GALLERY[:3], GALLERY, labels, **wrong),
    [
        (TREE, {"level": "kind"}, ConfigError, "level is 'kind'"),
        (TREE, {"min_confidence": float("nan")}, ConfigError, "min_confidence is nan"),
        (TREE, {"self_index": np.array([9, 0, 0])}, InputError, "self_index"),
        (TREE, {"calibration": Calibration(("a", "b"), (LevelScaling((0, 0, 0), 0),) * 2)}, InputError, "levels a, b"),
        (TREE, {"within": {"kind": 9}}, ConfigError, "within kind=9: unknown level; the levels are level0, level1"),
        (TREE, {"within": {"level0": "rose"}}, InputError, "classes of level0 have ids"),
        (KINDS, {"within": {"item": [1]}}, InputError, "classes of item have names"),
        (np.arange(5), {"self_index": np.arange(3), "within": {"level0": 0}}, InputError, "only one gallery item"),
    ],
)


def test_unknown_coarse_labels_are_filled_from_the_same_fine_class():
    labels = np.array([[0, -1, 7], [0, 3, -1], [1, -1, -1], [-1, 3, -1]])
    assert complete_labels(labels).tolist() == [[0, 3, 7], [0, 3, 7], [1, -1, -1], [-1, 3, 7]]


# -- calibration ------------------------------------------------------------------------------------------------------


def clusters(seed, classes=24):
    """Return embeddings of classes in four groups, 12 items each, and their labels."""
    rng = np.random.default_rng(seed)
    groups = 1.5 * rng.normal(size=(4, 8))
    centres = groups[np.arange(classes) % 4] + 0.8 * rng.normal(size=(classes, 8))
    fine = np.repeat(np.arange(classes), 12)
    return centres[fine] + 0.55 * rng.normal(size=(len(fine), 8)), np.stack([fine, fine % 4], axis=1)


@pytest.fixture(scope="module")
def calibration():
    return calibrate(*clusters(0), facts={"dataset": "made", "items": 288})


def test_confidences_are_calibrated_and_drop_for_classes_absent_from_gallery(calibration):
    rows, labels = clusters(1)
    measured = calibration.measured(Cases(rows, labels), "test")
    assert set(measured.risks) == {"val", "test"}
    assert max(risk.ece for risk in measured.risks["val"]) < 0.05
    assert max(risk.ece for risk in measured.risks["test"]) < 0.1
    own = np.arange(0, len(rows), 5)
    known = predict(rows[own], rows, labels, calibration=calibration, self_index=own)
    absent = np.isin(labels[own, 0], [4, 5, 6, 7])
    rest = ~np.isin(labels[:, 0], [4, 5, 6, 7])
    lacking = predict(rows[own][absent], rows[rest], labels[rest], calibration=calibration)
    assert lacking.confidences[:, 0].mean() < known.confidences[absent, 0].mean() - 0.2
    assert (lacking.column == 0).mean() < (known.column[absent] == 0).mean() - 0.3


def test_calibrate_accepts_a_gallery_with_or_without_the_queries(calibration):
    rows, labels = clusters(0)
    own = np.arange(len(rows))
    assert calibrate(rows, labels, rows, labels, self_index=own, facts=calibration.facts) == calibration
    split = own % 3 > 0
    gallery = rows[split], labels[split]
    apart = calibrate(rows[~split], labels[~split], *gallery)
    mixed = calibrate(rows, labels, *gallery, self_index=np.where(split, np.cumsum(split) - 1, -1))
    assert apart.risks["val"][0].queries * 3 == mixed.risks["val"][0].queries


def test_excluded_class_includes_items_with_unknown_coarse_label():
    rows, labels = clusters(0)
    holes = labels.copy()
    holes[1::2, 1] = -1  # unknown, but other items of the same fine class have the coarse label
    cases = Cases(rows, labels, rows, labels).votes_of(20, 0.05, 0.5)
    told = Cases(rows, labels, rows, holes).votes_of(20, 0.05, 0.5)
    np.testing.assert_array_equal(told.right, cases.right)


def test_saved_calibration_is_read_back_unchanged(calibration, tmp_path):
    path = tmp_path / "made" / "calibration.json"
    calibration.save(path)
    assert Calibration.load(path) == calibration
    rows, labels = clusters(1)
    by_file, by_object = (predict(rows[:9], rows, labels, calibration=one) for one in (path, calibration))
    np.testing.assert_array_equal(by_file.confidences, by_object.confidences)


def with_risk(**change):
    return lambda found: found["risks"]["val"][0].update(change)


def load_changed(change, *, calibration, tmp_path):
    path = tmp_path / "c.json"
    found = json.loads(json.dumps(calibration.to_dict()))
    change(found) if callable(change) else found.update(change)
    path.write_text(json.dumps(found))
    Calibration.load(path)


test_invalid_calibration_file_is_refused = refused(
    load_changed,
    [
        {"schema_version": 9},
        {"levels": ["fine", "fine"]},
        {"scalings": [{"weights": [1, 2], "intercept": 0}] * 2},
        {"neighbors": 10**9},
        {"temperature": 0},
        {"facts": None},
        with_risk(coverage=[0.1] * 500),
        with_risk(ece=-1),
        with_risk(level="x"),
    ],
    InputError,
    r"not what hgld calibrate writes|this hgld reads 2",
)


def test_calibrate_refuses_few_classes_and_numbers_out_of_range():
    rows, labels = clusters(0, classes=9)
    with pytest.raises(InputError, match="9 classes at the level level0; a calibration needs at least 10"):
        calibrate(rows, labels)
    with pytest.raises(InputError, match="are missing; pass both"):
        calibrate(rows, labels, rows)
    wrong: dict[str, Any]
    for wrong in ({"neighbors": 0}, {"temperature": 0.0}, {"unknown": 1.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .*; expected"):
            calibrate(rows, labels, **wrong)


def test_level_without_labels_has_the_confidence_of_the_next_finer_level():
    rows, labels = clusters(0)
    unknown = np.stack([labels[:, 0], np.full(len(labels), -1)], axis=1)
    made = calibrate(rows, unknown, rows, labels, self_index=np.arange(len(rows)))
    assert made.risks["val"][1].queries == 0
    confidences = predict(rows[::9], rows, labels, calibration=made).confidences
    np.testing.assert_array_equal(confidences[:, 1], confidences[:, 0])


# -- risk -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.integers(1, 4)), min_size=1, max_size=30))
def test_risk_and_calibration_error_equal_reference(cases):
    steps, right, weights = map(np.array, zip(*cases, strict=True))
    confidences = steps / 20
    coverage, risk, bound = risk_coverage(confidences, right, weights)
    np.testing.assert_allclose(
        calibration_error(confidences, right, weights), reference.calibration_error(cases, 20), atol=1e-12
    )
    assert bound.tolist() == sorted(set(confidences.tolist()), reverse=True)
    for *found, at in zip(coverage, risk, bound, strict=True):
        np.testing.assert_allclose(found, reference.risk_at(cases, at * 20), atol=1e-12)
    kept = level_risk("fine", confidences, right, weights)
    assert kept.coverage[-1] == 1
    assert kept.risk[-1] == pytest.approx(1 - kept.accuracy, abs=1e-5)
