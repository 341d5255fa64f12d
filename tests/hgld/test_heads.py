"""First ranks: one pass over the gallery and whole rows of scores give bit-identical metrics."""

import numpy as np
import pytest
import torch

from hgld.evaluation import evaluate as evaluation
from hgld.evaluation import scores
from hgld.evaluation.evaluate import evaluate, evaluate_judged, evaluate_labelled, ranking_metrics
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.options import EvaluationOptions

METRICS = ("R@1", "R@10", "mAP@20", "NDCG@10", "H-P@10", "mAP@R/level0", "severity", "HD@3", "P@7")


def ranked(query, labels, gallery, others, self_index):
    options = EvaluationOptions(metrics=METRICS)
    return evaluate_labelled((query, labels), (gallery, others), self_index=self_index, options=options).per_query


def table(kind, seed=0, size=5000):
    rng = np.random.default_rng(seed)
    gallery = rng.standard_normal((size, 8)).astype(np.float16)
    if kind == "ties":
        gallery = np.round(gallery) + np.float16(0.25)
    elif kind == "one point":
        gallery[:] = gallery[0]
    fine = rng.integers(-1, 500, size)
    middle = np.where(fine >= 0, fine % 60, rng.integers(-1, 60, size))
    coarse = np.where(middle >= 0, middle % 5, rng.integers(-1, 5, size))
    index = rng.permutation(size)[:21]
    self_index = np.where(rng.random(21) < 0.7, index, -1)
    return gallery, np.stack([fine, middle, coarse], axis=1), index, self_index


@pytest.mark.parametrize("kind", ["shuffled", "ties", "one point"])
def test_first_ranks_and_whole_rows_give_equal_metrics(kind, monkeypatch):
    gallery, labels, index, self_index = table(kind)
    asked = gallery[index].astype(np.float32), labels[index], gallery, labels
    passed, heads = [], evaluation.ranking_heads
    monkeypatch.setattr(evaluation, "ranking_heads", lambda *args: passed.append(1) or heads(*args))
    by_heads = ranked(*asked, self_index)
    assert passed
    monkeypatch.setattr(evaluation, "worth_heads", lambda depth, size: False)
    assert by_heads.equals(ranked(*asked, self_index))


def test_first_ranks_of_judged_lists_exclude_junk(monkeypatch):
    gallery, _, index, _ = table("ties", size=4000)
    rng = np.random.default_rng(1)
    lists = [np.split(rng.permutation(4000)[:90], (20, 50)) for _ in index]
    judged = ListRelevance(4000, [(easy, hard) for easy, hard, _ in lists], [junk for *_, junk in lists])
    options = EvaluationOptions(metrics=("R@1", "mAP@10", "NDCG@5"))
    asked = gallery[index], gallery, judged
    by_heads = evaluate_judged(*asked, levels=("b", "a"), options=options).per_query
    monkeypatch.setattr(evaluation, "worth_heads", lambda depth, size: False)
    assert by_heads.equals(evaluate_judged(*asked, levels=("b", "a"), options=options).per_query)


@pytest.mark.parametrize("limit", ["_SHARE_PREPARED", "_CACHED_NUMBERS"])
def test_gallery_prepared_in_parts_gives_equal_metrics(tmp_path, monkeypatch, limit):
    gallery, labels, index, _ = table("shuffled", size=4500)
    np.save(tmp_path / "gallery.npy", gallery)
    metrics = ("R@1", "AP", "H-AP", "mAP@10")
    asked = gallery[index].astype(np.float64), labels[index]
    in_memory = evaluate(*asked, gallery, labels, metrics=metrics).per_query
    monkeypatch.setattr(scores, limit, 0)
    mapped = np.load(tmp_path / "gallery.npy", mmap_mode="r")
    assert isinstance(scores.open_embeddings(mapped, "gallery"), scores.Rows)
    assert in_memory.equals(evaluate(*asked, mapped, labels, metrics=metrics).per_query)


def test_row_of_small_norm_does_not_change_rounding_of_other_rows():
    rows = np.random.default_rng(0).standard_normal((3000, 8), np.float32)
    rows[0] *= 1e-35
    prepared = scores.Rows(rows, "gallery")
    torch.testing.assert_close(prepared[2000:2100], prepared[:][2000:2100], rtol=0, atol=0)


def test_native_and_torch_backends_agree_on_long_rows():
    """The rows have ties, excluded items, and most scores in a narrow range."""
    generator = torch.Generator().manual_seed(0)
    size = 140_000
    table = torch.randn(3, size, generator=generator)
    table[1] = (table[1] * 50).round() / 50
    table[2] = torch.where(torch.rand(size, generator=generator) < 0.9, 0.5, table[2] * 1e-6)
    table[2, 0] = 1e6
    grades = torch.randint(0, 4, table.shape, generator=generator)
    left_out = torch.rand(table.shape, generator=generator) < 0.01
    options = {"levels": ("c", "b", "a"), "left_out": left_out}
    names = ["AP", "H-AP", "NDCG", "ASI"]
    native = ranking_metrics(table, grades, names, backend="native", **options)
    by_torch = ranking_metrics(table, grades, names, backend="torch", **options)
    for name, values in native.items():
        np.testing.assert_allclose(values, by_torch[name], rtol=1e-12, err_msg=name)
