"""The expected number of wrong names per level and in the whole tree."""

import numpy as np
import polars as pl
import pytest

from hgld.pipelines.hierarchy.review.whole_tree import expected_errors
from tests.pipelines.test_learner import LABELS, Toy

COLUMNS = {"classes": pl.List(pl.String), "classes_by": pl.List(pl.String), "built": pl.List(pl.String)}
COLUMNS |= {"built_wrong": pl.List(pl.Float64)}


def table(classes, by, built=None, wrong=0.5, names=20):
    """Return the groups' table with one level above; ``names`` names in each group."""
    columns = zip(LABELS.values(), classes, by, built or classes, strict=True)
    rows = [(label, names, [c], [b], [o], [wrong]) for label, c, b, o in columns]
    schema = {"label": pl.String, "names": pl.Int64, **COLUMNS}
    return pl.DataFrame(rows, schema=schema, orient="row")


def estimated():
    return Toy(60, doubt=np.full(60, 0.4)).fit()


def test_level_without_two_classes_has_no_wrong_name_and_a_class_per_group_repeats_the_groups():
    now = estimated()
    names = now.still_wrong["names"]
    assert expected_errors(now, table(["a"] * 3, [None] * 3), []) == {**now.still_wrong, "levels": {}, "tree": names}
    one = expected_errors(now, table(["a"] * 3, ["given"] * 3), ["top"])
    assert one["levels"]["top"][0] < 1
    assert one["tree"] == pytest.approx(names, abs=0.1)
    each = expected_errors(now, table(["a", "b", "c"], ["given"] * 3), ["top"])
    assert each["levels"]["top"] == pytest.approx(names, abs=1.5)


def test_tree_has_the_errors_of_every_level_as_a_simulation_by_definition():
    now, random = estimated(), np.random.default_rng(1)
    groups = table(["a", "a", "b"], [None] * 3)
    found = expected_errors(now, groups, ["top"])
    level, tree = [], []
    for _ in range(4000):  # a name's group is wrong by 0.4, then any other group is right; a class is wrong by 0.5
        group = np.repeat([0, 1, 2], 20)
        is_class_wrong = (random.random(3) < 0.5)[group]
        moved = random.random(60) < 0.4
        right = np.where(moved, (group + random.integers(1, 3, 60)) % 3, group)
        apart = np.array([0, 0, 1])[right] != np.array([0, 0, 1])[group]
        level.append((is_class_wrong | (moved & apart)).sum())
        tree.append((is_class_wrong | moved).sum())
    assert found["levels"]["top"][0] == pytest.approx(np.mean(level), rel=0.12)
    assert found["tree"][0] == pytest.approx(np.mean(tree), rel=0.12)
    assert found["names"][0] < found["tree"][0] < 60
    undecided = expected_errors(now, table([None] * 3, [None] * 3, wrong=0.99), ["top"])
    assert undecided["levels"]["top"][0] > 55


def test_decisions_about_classes_lower_their_errors():
    now = estimated()
    classes = [f"class {i}" for i in range(3)]
    before = expected_errors(now, table(classes, [None] * 3), ["top"])["levels"]["top"]
    after = expected_errors(now, table(classes, ["ada"] * 3, built=["other"] * 3), ["top"])["levels"]["top"]
    assert after[0] < before[0]
