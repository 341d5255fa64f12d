"""The learner (against a slow reference), the tree of names, and the queue of review screens."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

from hgld.pipelines.hierarchy.groups.regression import STRENGTH
from hgld.pipelines.hierarchy.review.decisions import Accept, Decision, Drop, Entry, Merge, Move, New, Refuse
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.hierarchy.review.learner import Learner
from hgld.pipelines.hierarchy.review.queue import MOST_LINKED, SCREEN, NameTree, Order, Queue
from hgld.pipelines.hierarchy.unit_rows import unit

START = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = {0: "church", 1: "castle", 2: "lake"}


class Toy:
    """A build: names around three centres, and its groups. Every fifth name is in a wrong group.

    Attributes: ``names``; their ``rows``; ``place`` and ``truth``, the group of the build and the right group by name.
    """

    def __init__(self, n=24, **given):
        rng = np.random.default_rng(0)
        centres, truth = unit(rng.normal(size=(3, 6))), np.arange(n) % 3
        self.rows = unit(centres[truth] + 0.35 * rng.normal(size=(n, 6)))
        self.names = [f"n{i:02}" for i in range(n)]
        self.truth = dict(zip(self.names, truth.tolist(), strict=True))
        self.place = {name: (self.truth[name] + (i % 5 == 0)) % 3 for i, name in enumerate(self.names)}
        self.learner = Learner(self.names, self.rows, given.pop("items", np.ones(n)), self.place, **given)

    def fit(self, *decisions):
        return self.learner.fit(decided(self.place, decisions))

    def accept(self, names, second=0):
        """Return the decisions that accept names in the build's groups."""
        groups = {self.place[name] for name in names}
        of = {g: tuple(name for name in names if self.place[name] == g) for g in groups}
        return [said(Accept, second, names=of[g], group=LABELS[g]) for g in groups]


def decided(place, decisions):
    grouping = Grouping.of({**place}, LABELS, {})
    for number, decision in enumerate(decisions, 1):
        grouping.apply(Entry(decision, Path("ada.yaml"), number))
    assert not grouping.unmatched
    return grouping


def said(action: type[Decision], second: int = 0, **fields) -> Decision:
    return action(who="ada", when=START + timedelta(seconds=second), **fields)


def slow_shares(toy, answers, seeds):
    """Return the probabilities in float64 by definition: minimised regression times the square root of the prior."""
    examples = [toy.rows[toy.names.index(name)] for name in answers] + [seeds[g] for g in LABELS]
    x, y = np.array(examples, dtype=np.float64), [*answers.values(), *LABELS]

    def loss(flat):
        weights, constants = flat[:-3].reshape(3, -1), flat[-3:]
        scores = x @ weights.T + constants
        fit = sum(np.log(np.exp(s - s[k]).sum()) for s, k in zip(scores, y, strict=True))
        return STRENGTH * fit + (weights**2).sum() / 2

    best = minimize(loss, np.zeros(3 * (x.shape[1] + 1)), tol=1e-9).x
    table = np.exp(toy.rows @ best[:-3].reshape(3, -1).T + best[-3:])
    table /= table.sum(axis=1, keepdims=True)
    for row, name in zip(table, toy.names, strict=True):
        # Without stated probabilities, the prior of the build's own group is 0.75; the two other groups share the rest.
        row *= [np.sqrt(0.75 if g == toy.place[name] else 0.125) for g in LABELS]
    return table / table.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("are_given", [True, False], ids=["predefined groups", "clustered groups"])
def test_probabilities_match_the_slow_reference(are_given):
    seeds = {g: unit(np.random.default_rng(g).normal(size=(1, 6)))[0] for g in LABELS}
    toy = Toy(examples=(np.array([*LABELS]), np.stack([*seeds.values()])) if are_given else None)
    answers = {name: toy.truth[name] for name in toy.names[:9]}
    estimates = toy.fit(*(said(Move, i, names=(n,), to=LABELS[g]) for i, (n, g) in enumerate(answers.items())))
    own = np.array([*toy.place.values()])
    means = {g: unit(toy.rows[own == g].sum(axis=0, keepdims=True))[0] for g in LABELS}
    slow = slow_shares(toy, answers, seeds if are_given else means)
    assert estimates.shares == pytest.approx(slow, abs=0.01)
    stands, wrong = slow.argmax(axis=1)[9:], 1 - slow.max(axis=1)[9:]
    assert estimates.standing[9:].tolist() == stands.tolist()
    stays, odds = stands == own[9:24], estimates.odds[9:]
    assert odds[~stays] == pytest.approx(logit(wrong[~stays]), abs=0.1)
    # names that stay have the build's mean probability, .5
    assert expit(odds[stays]).mean() == pytest.approx(0.5)
    assert np.diff(odds[stays] - logit((wrong[stays] + 0.5) / 2)) == pytest.approx(0, abs=0.1)


def test_without_decisions_no_name_moves_and_the_second_choice_is_the_nearest_other_group():
    toy = Toy(30)
    estimates, own = toy.fit(), np.array([*toy.place.values()])
    assert estimates.place == toy.place
    assert estimates.undecided.all()
    assert 0 < estimates.errors.min() <= estimates.errors.max() < 1
    centres = unit(np.stack([toy.rows[own == g].sum(axis=0) for g in LABELS]))
    near, shares = toy.rows @ centres.T, estimates.shares.copy()
    for table in (near, shares):
        table[range(30), own] = -1
    assert np.mean(near.argmax(axis=1) == shares.argmax(axis=1)) > 0.9


def test_decision_moves_only_similar_names():
    names = ["oak", "oak tree", "old oak", "pine", "mosque"]
    rows = unit(np.array([[1, 0.1, 0], [1, 0.12, 0], [1, 0.05, 0.05], [0.3, 1, 0], [0, 0, 1]]))
    place = dict.fromkeys(names, 0)
    learner = Learner(names, rows, np.ones(5), place)
    after = learner.fit(decided(place, [said(New, names=("oak", "old oak"), to="tree")]))
    assert after.place == {"oak": "tree", "oak tree": "tree", "old oak": "tree", "pine": 0, "mosque": 0}
    assert learner.fit(decided(place, [])).place == place  # an undone decision has no effect on the learner


def test_order_of_decisions_does_not_change_the_estimates():
    toy = Toy(15)
    decisions = [said(Move, i, names=(n,), to=LABELS[toy.truth[n]]) for i, n in enumerate(toy.names[:11])]
    decisions.append(said(New, 11, names=("n12", "n14"), to="tower"))
    one, partner, again = (toy.fit(*some) for some in (decisions, decisions[1:], decisions[::-1]))
    assert np.array_equal(again.shares, one.shares)
    assert again.place == one.place
    assert not np.array_equal(partner.shares, one.shares)


def test_refused_group_gets_no_name_and_merged_group_keeps_its_names():
    toy = Toy()
    there = [name for name in toy.names if toy.place[name] == 0][:2]
    refused = toy.fit(said(Refuse, names=(there[0],), group="church"))
    assert refused.place[there[0]] in {1, 2}
    assert refused.place[there[1]] == 0
    merged = toy.fit(said(Merge, groups=("church", "castle"), to="castle"))
    assert set(merged.groups) == {1, 2}
    assert all(merged.place[name] == 1 for name in there)
    gone = toy.fit(said(Drop, group="church"))
    assert all(gone.place[name] is None for name in there)
    assert not gone.undecided[[toy.names.index(name) for name in there]].any()


def test_names_accepted_without_reading_may_be_wrong_and_corrected_names_are_right():
    toy = Toy(100, doubt=np.full(100, 0.4))
    right = [n for n in toy.names if toy.place[n] == toy.truth[n]]
    corrected = [said(Move, 1, names=(n,), to=LABELS[toy.truth[n]]) for n in toy.names if n not in right]
    before, first = (toy.fit(*some).still_wrong["names"] for some in ([], corrected[:1]))
    assert before[1] < before[0] < before[2]
    assert first[0] == pytest.approx(before[0], rel=0.25)  # one decision changes little
    blind = toy.fit(*toy.accept(toy.names)).still_wrong
    careful = toy.fit(*toy.accept(right), *corrected).still_wrong
    assert (blind["unread"], careful["unread"]) == (True, False)
    assert blind["names"][0] > 5
    assert blind["names"][2] >= 20
    assert careful["names"][1] == 0
    assert careful["names"][0] < blind["names"][0] / 2


def test_accepted_names_are_asked_again_and_different_answers_count_as_mistakes():
    toy = Toy(400, doubt=np.full(400, 0.05))
    accepted = toy.accept(toy.names)
    once = toy.fit(*accepted)
    again = [n for n, is_asked in zip(toy.names, once.again, strict=True) if is_asked]
    assert 5 < len(again) < 60
    same = toy.fit(*accepted, *toy.accept(again, 1))
    moved = [said(Move, 1, names=(n,), to=LABELS[(toy.place[n] + 1) % 3]) for n in again[1:]]
    other = toy.fit(*accepted, *moved, said(Refuse, 1, names=(again[0],), group=LABELS[toy.place[again[0]]]))
    assert not (same.again | other.again).any()
    assert same.belief.repeated == (len(again), 0)
    assert other.belief.repeated == (0, len(again))
    assert other.still_wrong["names"][0] > same.still_wrong["names"][0]
    screen = Queue(toy.learner.rows).screens(once)[0]
    assert screen.again
    assert {*screen.names} <= {*again}


def test_expected_number_of_wrong_items_weights_each_name_by_its_items():
    items = np.arange(60) + 1
    weighted = Toy(60, items=items).fit()
    assert weighted.still_wrong["items"][0] == pytest.approx(float(weighted.errors @ items), rel=0.15)


# -- the tree ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 37, MOST_LINKED + 500], ids=str)
def test_nodes_of_the_name_tree_are_nested_and_sum_over_their_names(n):
    rows = unit(np.random.default_rng(n).normal(size=(n, 8)))
    tree = NameTree.of(rows)
    assert sorted(tree.order.tolist()) == list(range(n))
    sums = tree.sums(rows)
    for node in range(0, len(tree.starts), max(1, len(tree.starts) // 50)):
        assert sums[node] == pytest.approx(rows[tree.members(node)].sum(axis=0))
        start, stop = tree.starts[node], tree.stops[node]
        is_inside = (tree.starts >= start) & (tree.stops <= stop)
        is_around = (tree.starts <= start) & (tree.stops >= stop)
        assert (is_inside | is_around | (tree.stops <= start) | (tree.starts >= stop)).all()
    equal = NameTree.of(unit(np.ones((n, 3))))
    assert sorted(equal.order.tolist()) == list(range(n))


# -- the queue -----------------------------------------------------------------------------------------------------


def screens(by: Order = "items", items: np.ndarray | None = None):
    toy = Toy(100, items=np.ones(100) if items is None else items)
    return toy.names, Queue(toy.learner.rows, by=by).screens(toy.fit())


def test_queue_screens_are_small_disjoint_and_sorted_by_item_count():
    names, found = screens()
    shown = [name for screen in found for name in screen.names]
    assert [screen.items for screen in found] == sorted((screen.items for screen in found), reverse=True)
    assert len(found) > 1
    assert len(set(shown)) == len(shown)
    for screen in found:
        assert len(screen.names) == len(screen.near) <= SCREEN
        assert len(screen.names) == 1 or screen.blocks[0][:2] == (0, len(screen.names))
        assert all(0 <= start < stop - 1 < len(screen.names) for start, stop, _ in screen.blocks)
    heavy = np.where(np.isin(names, found[-1].names), 1000, 1)
    assert {*screens(items=heavy)[1][0].names} & {*found[-1].names}
    assert screens("names", heavy)[1] == found


def test_targets_of_a_screen_are_the_most_probable_groups_that_its_names_are_not_in():
    toy = Toy(60)
    now = toy.fit(said(Move, names=(toy.names[0],), to="lake"))
    shown = Queue(toy.learner.rows).screens(now)
    for screen in shown:
        rows = [toy.names.index(name) for name in screen.names]
        shares = now.shares[rows][:, [now.labels.index(label) for label in screen.targets]]
        for groups, part in [
            *zip(screen.near, shares, strict=True),
            *((groups, shares[start:stop].sum(axis=0)) for start, stop, groups in screen.blocks),
        ]:
            assert list(part[list(groups)]) == sorted(part, reverse=True)[: len(groups)]
        moved = now.shares[rows]
        moved[np.arange(len(rows)), now.standing[rows]] = 0
        total = dict(zip(now.labels, moved.sum(axis=0).tolist(), strict=True))
        assert list(screen.targets) == sorted(total, key=lambda label: -total[label])
    assert len({screen.targets for screen in shown}) > 1
