"""Audit of the hierarchy and of copies: features equal reference implementations, and planted errors are found."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from scipy.stats import t as student

from hgld.errors import InputError
from hgld.label_audit import AuditOptions, silent
from hgld.label_audit.audit import audit
from hgld.label_audit.class_faults import (
    apartness,
    find_class_faults,
    mixture_posterior,
    share_of_faults,
)
from hgld.label_audit.copies import ImageCopies, decoy_posterior
from tests.rows import each_row


def classes_of(seed):
    """Return embeddings, classes and ancestors; classes are well separated, and nearer to their siblings."""
    rng = np.random.default_rng(seed)
    above = np.arange(40) % 5
    centres = rng.standard_normal((5, 24))[above] + 0.7 * rng.standard_normal((40, 24))
    classes = np.repeat(np.arange(40), 12)
    rows = centres[classes] + 0.3 * rng.standard_normal((len(classes), 24))
    return rows, classes, np.stack([np.arange(40), above], 1)


def listed(rows: np.ndarray, classes: np.ndarray, ancestors: np.ndarray) -> set[tuple[str, int, int]]:
    faults = find_class_faults(rows, classes, ancestors)
    return {(fault.kind, fault.label, fault.other) for fault in faults if fault.level == 0 and fault.probability >= 0.5}


def test_correct_hierarchy_has_no_findings():
    assert listed(*classes_of(0)) == set()


def test_class_split_in_two_is_found():
    rows, classes, ancestors = classes_of(1)
    classes[np.flatnonzero(classes == 7)[::2]] = 40
    assert listed(rows, classes, np.concatenate([ancestors, [[40, 2]]])) == {("one", 7, 40)}


def test_class_under_wrong_parent_is_found_with_its_true_parent():
    rows, classes, ancestors = classes_of(3)
    ancestors[8, 1] = 1
    assert listed(rows, classes, ancestors) == {("parent", 8, 3)}


@given(st.integers(0, 1000), st.integers(5, 12))
def test_two_sample_separation_equals_reference(seed, count):
    rng = np.random.default_rng(seed)
    items, second = rng.standard_normal((count, 2)), rng.permutation(np.arange(count) % 2 == 0)
    distances = np.square(items[:, None] - items).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    own = (second[np.argsort(distances, axis=1)[:, :3]] == second[:, None]).mean()
    sizes = np.bincount(second)
    expected = (sizes * (sizes - 1)).sum() / (count * (count - 1))
    assert apartness(items, second) == pytest.approx((own - expected) / (1 - expected))


# -- probabilities ----------------------------------------------------------------------------------------------------


def test_mixture_probabilities_equal_their_formula():
    rng = np.random.default_rng(0)
    planted, found = rng.standard_normal(50) + 6, np.append(rng.standard_normal(90), rng.standard_normal(10) + 6)
    chances = mixture_posterior(found, planted, 0.3)
    share = share_of_faults(found, planted)
    assert 0.04 < share < 0.13
    for score, chance in zip(found.tolist(), chances.tolist(), strict=True):
        sound, fault = (
            student.pdf(score, 15, np.median(sample), 1.4826 * np.median(side[side >= 0]))
            for sample, side in ((found, found - np.median(found)), (planted, np.median(planted) - planted))
        )
        expected = share * fault / (share * fault + (1 - share) * sound) if score > np.median(found) else 0.0
        if score < 8:  # above a score of 8 the densities cross again, but hgld does not let the probability fall
            assert chance == pytest.approx(expected, abs=1e-9)


def test_decoys_lower_probability_of_similar_scores():
    rng = np.random.default_rng(0)
    decoys = rng.normal(0.5, 0.1, 500)
    found = np.concatenate([rng.normal(0.5, 0.1, 450), rng.normal(0.97, 0.01, 50)])
    chances = decoy_posterior(found, decoys)
    assert chances[450:].min() > 0.9
    assert (chances[:450] > 0.5).mean() < 0.02
    assert np.isnan(decoy_posterior(found, np.empty(0))).all()
    # without true copies, the highest score must rarely look certain
    assert np.mean([decoy_posterior(*both).max() >= 0.8 for both in rng.normal(0.5, 0.1, (40, 2, 300))]) < 0.2


# -- images -----------------------------------------------------------------------------------------------------------


def make_image(seed):
    values = np.random.default_rng(seed).integers(0, 256, (80, 96, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(values).filter(ImageFilter.GaussianBlur(4)), np.float64)
    return Image.fromarray(np.clip((smooth - 128) * 5 + 128, 0, 255).astype(np.uint8))


def encoded(shown):
    out = io.BytesIO()
    shown.save(out, "JPEG", quality=50)
    return Image.open(out)


@each_row(
    "change",
    [
        lambda shown: shown.resize((48, 40)),
        lambda shown: shown.crop((5, 4, 96, 80)),
        lambda shown: shown.crop((3, 1, 94, 77)),
    ],
)
def test_changed_copies_are_similar_and_other_images_are_not(change):
    shown = [make_image(seed) for seed in range(12)] + [encoded(change(make_image(3)))]
    compared = ImageCopies(shown.__getitem__, len(shown), silent)
    assert compared.nearest(np.array([12]), np.arange(12), 1).tolist() == [[3]]
    alike = compared.alike(np.array([[12, item] for item in range(12)]))
    assert alike[3] > 0.97
    assert np.delete(alike, 3).max() < 0.85
    np.testing.assert_allclose(compared.alike(np.array([[3, 12]])), alike[[3]], atol=1e-6)


def test_blank_and_unreadable_images_have_no_similar_images():
    def opened(item):
        if item == 2:
            raise InputError("item 2: truncated")
        return Image.new("RGB", (40, 40), "white") if item < 2 else make_image(0)

    compared = ImageCopies(opened, 4, silent)
    assert compared.alike(np.array([[0, 1], [2, 3], [0, 3], [3, 3]])).round(5).tolist() == [0, 0, 0, 1]
    assert compared.unreadable == ["item 2: truncated"]
    assert compared.nearest(np.array([3]), np.array([3]), 5).shape == (1, 0)
    assert len(compared.of_copies(np.arange(4))) == 1


@pytest.mark.slow
def test_pair_less_similar_than_synthetic_copies_is_not_a_copy():
    shown = [make_image(seed) for seed in range(60)]
    blend = Image.blend(shown[2], shown[40], 0.3)  # more similar to image 2 than any other image of another class
    shown += [blend, encoded(shown[5].crop((5, 4, 96, 80)))]
    compared = ImageCopies(shown.__getitem__, len(shown), silent)
    assert compared.of_copies(np.arange(60)).min() > 0.97 > compared.alike(np.array([[2, 60]]))[0] > 0.7
    labels = np.append(np.arange(60), [60, 61])[:, None] // 2
    splits = ["train"] * 40 + ["test"] * 22
    vectors = np.random.default_rng(0).standard_normal((62, 8))
    options = AuditOptions(probability=0.01)
    found = audit(vectors, labels, levels=["fine"], splits=splits, images=compared, options=options).copies
    assert found.select("item", "other").rows() == [(61, 5)]
