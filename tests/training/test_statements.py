"""Statements of papers: recipes follow them or give a reason, and ``--show`` prints both."""

import re
from dataclasses import replace

import yaml

from hgld.published import PAPERS
from hgld.published.experiments import all_experiments
from hgld.published.statements import Statement, all_statements
from hgld.training.config import TrainConfig, flat, with_fields
from hgld.training.recipes import RECIPES
from tests.interpreter import ROOT
from tests.rows import each_row


@each_row("name", RECIPES)
def test_recipe_follows_its_paper_or_gives_a_reason(name):
    recipe = RECIPES[name]
    found = recipe.statements(recipe())
    assert not [one.text for one in found if not one.is_followed and not one.because]
    assert found or not recipe.setting.paper
    plain = [(one.key, one.where) for one in found]
    assert len(set(plain)) == len(plain), "two statements of one key and place"


def test_statement_without_a_reason_fails_where_the_recipe_differs():
    """The check above notices a changed recipe: another rate than the paper's differs, without a reason."""
    recipe = RECIPES["happier-sop"]
    changed = [one for one in recipe.statements(with_fields(recipe(), {"lr": 1e-3})) if not one.is_followed]
    assert [(one.key, one.ours, one.because) for one in changed if one.key == "lr"] == [
        ("lr", "0.001", "--lr was given")
    ]


def test_every_statement_names_its_section_and_applies_to_something():
    applied = {(one.paper, one.subject, one.key) for r in RECIPES.values() for one in r.statements(r())}
    tables: dict[str, list[str]] = {}
    for made in all_experiments():
        tables.setdefault(made.paper, []).append(f"table:{made.table}")
    fields = flat(TrainConfig())
    for one in all_statements():
        assert one.paper in PAPERS
        assert bool(one.where) == bool(one.says), one
        assert one.says or one.code or one.ours or one.because, one
        assert not (one.because and not one.ours) or one.key in fields, f"{one} does not say what hgld does"
        assert not one.ours or one.key not in fields, f"{one}: the config has the value"
        elsewhere = one.applies_to(tables.get(one.paper, []))
        assert (one.paper, one.subject, one.key) in applied or elsewhere, f"{one} applies to nothing"


REVIEWED = """
smooth-ap: weight_decay, batch_size, lr, size, batch of the sweep of tau, batch, identities evaluated, train_crop
smooth-ap: approximation error of AP, share of pairs in the operating region
pnp: train_crop, dists@intra and dists@inter, dataset, toy of the losses' gradients
listwise: dim, scales, descriptors that are expanded, rows GeM (CL) and R-MAC (TL), R-MAC and CroW
multigrain: steps_per_epoch, p*, reach, pairs of a batch, NASNet-A-Mobile, toy of the repeated augmentation
suprank: loss of the sweep of rho, sweep of lambda, datasets, lr_floor, groups
"""


def test_every_difference_that_a_review_found_has_its_statement():
    stated = {(one.paper, one.key) for one in all_statements()}
    for paper, _, keys in (line.partition(": ") for line in REVIEWED.strip().splitlines()):
        assert {(paper, key) for key in re.split(r", (?!share of pairs)", keys)} <= stated


def test_statement_text_says_paper_code_ours_and_reason():
    one = Statement("smooth-ap", "Table 2", "*", "lr", "1e-5", "1e-4 (main.py)", "2e-5", "of a reason")
    assert one.text == (
        "lr (Table 2): the paper says 1e-5; its code does 1e-4 (main.py); we do 2e-5, because of a reason."
    )
    followed = replace(one, ours="1.0e-05", because="")
    assert followed.text == "lr (Table 2): the paper says 1e-5; its code does 1e-4 (main.py); we do as the paper."
    assert (one.is_followed, followed.is_followed, followed.is_plain) == (False, True, False)
    unsaid = replace(one, where="", says="")
    assert not unsaid.is_followed, "without a statement the released code is the measure"
    assert not replace(one, subject="multigrain* !*-aa").applies_to(["multigrain-aa"])


def test_levels_in_statements_equal_the_levels_of_the_data_cards():
    found = [one for one in all_statements() if one.key == "levels"]
    for one in found:
        for card in (ROOT / "data_cards").glob("*.md"):
            if one.applies_to([f"data:{card.stem}"]):
                facts = yaml.safe_load(card.read_text(encoding="utf-8").split("---")[1])["hgld"]
                assert len(facts["levels"]) == int(one.says), (card.name, one)
    assert len(found) == 5
