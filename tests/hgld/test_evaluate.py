"""Evaluation of embeddings with labels or judgement lists, against reference implementations of the metrics."""

import operator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld import shared_levels
from hgld.errors import ConfigError, HierarchyError, InputError
from hgld.evaluation.evaluate import evaluate, evaluate_judged, evaluate_labelled
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.metric import resolve
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import quantize_embeddings
from hgld.evaluation.protocols.benchmark import Benchmark, EmbeddedSplit
from hgld.evaluation.protocols.by_labels import rank_by_labels
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.scores import block_rows, prepare_embeddings, score_blocks
from tests import reference
from tests.rows import each_row, refused

NAMES = ["R@1", "TR@3", "P@3", "AP", "mAP@R", "mAP@5", "H-AP", "H-R@3", "H-P@3", "NDCG", "NDCG@3", "ASI", "wAP"]
LEVELS = ("fine", "middle", "coarse")


def ranked(query, labels, gallery=None, others=None, *, self_index=None, levels=LEVELS, **options):
    sides = ((query, labels), None if gallery is None else (gallery, others))
    return evaluate_labelled(*sides, levels=levels, self_index=self_index, options=EvaluationOptions(**options))


def tree_labels(size, seed=0, unknown=0.0):
    generator = torch.Generator().manual_seed(seed)
    fine = torch.randint(0, 18, (size,), generator=generator)
    labels = torch.stack([fine, fine // 3, fine // 9], dim=1)
    return labels.masked_fill(torch.rand(size, 3, generator=generator) < unknown, -1)


def vectors(size, seed=0):
    """Return embeddings of small integers: products are exact in any order of summation, and ties are common."""
    return torch.randint(-2, 3, (size, 6), generator=torch.Generator().manual_seed(seed)).float()


def expected(query, labels, gallery, others, own, count_query=False):
    scores, grades = (query.double() @ gallery.double().T).tolist(), shared_levels(labels, others).tolist()
    spelled = [str(metric) for metric in resolve(NAMES, LEVELS)]
    rows = []
    for row in range(len(query)):
        kept = [j for j in range(len(gallery)) if j != own[row]]
        one, two = [scores[row][j] for j in kept], [grades[row][j] for j in kept]
        rows.append({n: reference.metric(n, one, two, LEVELS, count_query=count_query) for n in spelled})
    return {name: np.array([row[name] for row in rows]) for name in spelled}


def check(report, wanted):
    assert set(report.values) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(report.per_query[name].to_numpy(), values, rtol=1e-10, atol=1e-12, err_msg=name)
        defined = values[~np.isnan(values)]
        assert report.undefined[name] == len(values) - len(defined)
        np.testing.assert_allclose(report.values[name], defined.mean() if len(defined) else np.nan, rtol=1e-10)


@contextmanager
def torch_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@each_row(("unknown", "chunk_size", "threads"), [(0.0, None, 1), (0.3, 1, 1), (0.3, 7, 3)])
def test_leave_one_out_metrics_equal_reference(unknown, chunk_size, threads):
    query, labels = vectors(29), tree_labels(29, unknown=unknown)
    for count_query in (True, False):
        with torch_threads(threads):
            found = ranked(
                query, labels, metrics=NAMES, normalize=False, chunk_size=chunk_size, count_query=count_query
            )
        check(found, expected(query, labels, query, labels, np.arange(29), count_query=count_query))


def test_gallery_metrics_equal_reference_with_and_without_self_index():
    query, gallery = vectors(9, seed=1), vectors(23, seed=2)
    labels, others = tree_labels(9, seed=1), tree_labels(23, seed=2, unknown=0.2)
    sides = query, labels, gallery, others
    for own in (np.full(9, -1), np.where(np.arange(9) % 2, np.arange(9), -1)):
        found = ranked(*sides, self_index=own, metrics=NAMES, normalize=False)
        check(found, expected(*sides, own))


def test_tasks_of_one_item_have_perfect_or_undefined_values():
    item = vectors(1) + 0.5, torch.zeros(1, 3).long()
    report = evaluate(*item, *item, levels=LEVELS, metrics=["AP", "R@5", "H-AP", "NDCG@9"])
    assert set(report.values.values()) == {1.0}
    alone = evaluate(*item, levels=LEVELS, metrics=["AP", "H-AP", "ASI"])
    assert all(np.isnan(value) for value in alone.values.values())
    assert set(alone.undefined.values()) == {1}


def test_keywords_override_options():
    options = EvaluationOptions(metrics=("AP",), alpha=2.0, relevance="total")
    report = evaluate(vectors(9) + 1, tree_labels(9), levels=LEVELS, metrics=("H-AP",), options=options)
    assert list(report.values) == ["H-AP"]
    assert (report.settings["relevance"], report.settings["alpha"]) == ("total", 2.0)


def test_gpu_block_size_includes_unused_memory_of_the_allocator(monkeypatch):
    """During training the driver reports almost no free memory, because torch's allocator keeps unused memory."""
    given = {"mem_get_info": (1 << 20, 80 << 30), "memory_reserved": 9 << 30, "memory_allocated": 8 << 30}
    for name, found in given.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, found=found: found)
    rows = block_rows(10**6, 1000, torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 40 << 30)
    assert block_rows(10**6, 1000, torch.device("cuda", 0)) > 30 * rows


@each_row("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_float_dtype_gives_the_values_of_float32(dtype):
    torch.set_float32_matmul_precision("medium")
    try:
        report = evaluate(vectors(20).to(dtype) + 1, tree_labels(20), levels=LEVELS, metrics=NAMES)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    wanted = evaluate(vectors(20).numpy() + 1, tree_labels(20).numpy(), levels=LEVELS, metrics=NAMES)
    np.testing.assert_allclose(list(report.values.values()), list(wanted.values.values()), rtol=1e-12)
    assert report.settings["scores"] == "float32, TF32 off"
    assert report.settings["embedding_dtype"] == str(dtype).removeprefix("torch.")


@each_row(("dim", "threads"), [(17, 1), (512, 2)])
@given(data=st.data())
@settings(max_examples=8)
def test_score_depends_on_neither_block_nor_gallery_index(dim, threads, data):
    # The products of random vectors depend on the order of summation, which depends on the kernel that BLAS chooses.
    size = data.draw(st.integers(1, 70) | st.integers(2040, 2130) | st.integers(4090, 4110), label="gallery")
    queries, rows = data.draw(st.integers(1, 40), label="queries"), data.draw(st.integers(1, 40), label="rows")
    rng = np.random.default_rng(size)
    kinds = rng.integers(0, 5, size)
    query = prepare_embeddings(rng.standard_normal((queries, dim)), "query")
    gallery = prepare_embeddings(rng.standard_normal((5, dim))[kinds], "gallery")
    shuffled = torch.from_numpy(rng.permutation(size))

    def scored(*given):
        return torch.cat([block.clone() for *_, block in score_blocks(query, *given)])

    with torch_threads(threads):
        found, moved = scored(gallery, rows), scored(gallery[shuffled], 9)
        part = scored(gallery, 2, range(queries // 2, queries))
    for kind in range(5):
        same = found[:, kinds == kind]
        assert torch.equal(same, same[:, :1].expand_as(same))
    assert torch.equal(moved, found[:, shuffled])
    assert torch.equal(part, found[queries // 2 :])


@each_row(("cuts", "gallery"), [((0, 1, 29), None), ((0, 9, 11, 28, 29), 23)])
def test_ranking_split_between_processes_equals_one_ranking_bit_for_bit(cuts, gallery):
    generator = torch.Generator().manual_seed(3)
    query, others = (torch.randn(n, 40, generator=generator) for n in (29, 23))
    sides = (query, tree_labels(29)) + (() if gallery is None else (others, tree_labels(23, 1)))
    whole = ranked(*sides, metrics=NAMES)

    def share(rank, count):
        parts = [rank(range(*cut)) for cut in pairwise(cuts)]
        assert count == 29
        assert all(part.settings == whole.settings for part in parts)
        table = pl.concat([part.per_query for part in parts]).drop("query")
        return RetrievalReport.from_columns({name: table[name].to_numpy() for name in table.columns}, {})

    together = ranked(*sides, metrics=NAMES, chunk_size=5, share=SimpleNamespace(rank=share))
    assert together.per_query.equals(whole.per_query, null_equal=True)


GOOD = torch.eye(3)
LABELS = torch.zeros(3, 3).long()


def known_levels(query, gallery, options):
    def split(vectors, labels):
        return EmbeddedSplit(vectors, pl.Series([""] * len(vectors)), labels)

    return rank_by_labels(Benchmark("here", LEVELS, {}), split(*query), gallery and split(*gallery), options)


@each_row("gallery", [False, True])
def test_truncated_and_quantized_values_equal_evaluation_of_changed_embeddings(gallery):
    rng = np.random.default_rng(0)
    query, labels = rng.standard_normal((20, 10)), tree_labels(20).numpy()
    sides = ((query, labels), (rng.standard_normal((30, 10)), tree_labels(30, 1).numpy()) if gallery else None)
    options = EvaluationOptions(metrics=("AP", "H-AP", "NMI"), truncate_dim=(3,), quantize=("int8", "binary"))
    report = known_levels(*sides, options)

    def measured(change, **how):
        changed: list[Any] = [None if side is None else (change(side[0]), side[1]) for side in sides]
        plain = EvaluationOptions(metrics=("AP", "H-AP"), **how)
        return pytest.approx(evaluate_labelled(*changed, levels=LEVELS, options=plain).values)

    assert report.settings["truncate_dim"]["3"] == measured(lambda table: table[:, :3])
    assert report.settings["quantize"]["int8"] == measured(
        lambda table: np.array([reference.int8_code(row) for row in table], float)
    )
    assert report.settings["quantize"]["binary"] == measured(
        lambda table: np.where(table >= 0, 1.0, -1.0), normalize=False
    )


def small(**options):
    return known_levels((GOOD, LABELS.numpy()), None, EvaluationOptions(**options))


PAIR = (GOOD, LABELS)
FIRST = np.array([0])
JUDGED = ListRelevance(3, [[FIRST]] * 3)


test_evaluation_refuses_invalid_arguments = refused(
    operator.call,
    [
        (lambda: ranked(GOOD * float("nan"), LABELS), InputError, "query embeddings: row 0 holds NaN or Inf"),
        (lambda: ranked(np.diag([1, 1e200, 1]), LABELS), InputError, "row 1 has a norm beyond float64"),
        (lambda: ranked(np.diag([1, 1e100, 1]), LABELS, normalize=False), InputError, "row 1 has norm"),
        (lambda: ranked(GOOD[0], LABELS), InputError, r"shape \(3,\)"),
        (lambda: ranked(GOOD.long(), LABELS), InputError, "int64.*whether they are labels"),
        (lambda: ranked(GOOD[:0], LABELS[:0]), InputError, "non-empty"),
        (lambda: ranked(GOOD, LABELS.float()), InputError, "query labels have dtype float32"),
        (lambda: ranked(GOOD, LABELS[:2]), InputError, r"\(2, 3\) for 3 embeddings"),
        (lambda: ranked(GOOD, np.full((3, 3), 2**63, np.uint64)), InputError, "below 2"),
        (lambda: ranked(*PAIR, GOOD, LABELS[:, :1]), InputError, "3 levels and gallery labels 1"),
        (lambda: ranked(*PAIR, GOOD[:, :2] + 1, LABELS), InputError, "3 dimensions, gallery embeddings 2"),
        (
            lambda: ranked(GOOD, torch.tensor([[0, 0, 0], [0, 1, 0], [1, 1, 0]])),
            HierarchyError,
            "1 classes of level 'fine'.*: 0 under 0, 1.*go from fine to coarse",
        ),
        (
            lambda: ranked(GOOD, torch.tensor([[0, -1, 0], [0, -1, 1], [1, 1, 1]])),
            HierarchyError,
            "'fine'.*'coarse'",
        ),
        (lambda: ranked(*PAIR, levels=["a"]), ConfigError, "3 columns"),
        (lambda: ranked(*PAIR, levels=["a", "a", "b"]), ConfigError, "distinct"),
        (lambda: ranked(*PAIR, levels="abc"), ConfigError, "distinct"),
        (lambda: ranked(*PAIR, chunk_size=0), ConfigError, "chunk_size"),
        (lambda: ranked(*PAIR, normalize=False, query_expansion=(2.0, 3)), ConfigError, "unit vectors"),
        (lambda: ranked(*PAIR, quantize=("int8",), query_expansion=(2.0, 3)), ConfigError, "whole vectors"),
        (lambda: ranked(*PAIR, self_index=np.arange(3)), ConfigError, "self_index"),
        (lambda: ranked(*PAIR, *PAIR, self_index=np.arange(2)), InputError, "self_index has shape"),
        (lambda: ranked(*PAIR, *PAIR, self_index=np.array([0, 1, 3])), InputError, "3 is not a gallery index"),
        (lambda: evaluate(*PAIR, GOOD), InputError, "are missing; pass both"),
        (lambda: ListRelevance(3, [[FIRST - 1]]), InputError, "-1 is not a gallery index"),
        (lambda: ListRelevance(3, [[FIRST]], [FIRST]), InputError, "twice"),
        (
            lambda: evaluate_judged(GOOD, GOOD[:2], JUDGED, options=EvaluationOptions()),
            InputError,
            "judgements have 3 queries, 3 gallery items",
        ),
        (
            lambda: evaluate_judged(GOOD, GOOD, JUDGED, options=EvaluationOptions(metrics=("NMI",))),
            ConfigError,
            r"NMI/relevant need classes, but judged lists have none",
        ),
        (lambda: small(truncate_dim=(2, 9)), ConfigError, "have 3 dimensions; expected at most 3"),
        (lambda: small(truncate_dim=(2, 1)), ConfigError, "ascending"),
        (lambda: small(quantize=("int4",)), ConfigError, "'int4'; expected int8, binary"),
        (lambda: small(truncate_dim=(1,)), InputError, "truncate_dim 1: query embeddings: row 1 is a zero vector"),
    ],
)


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=5), min_size=1, max_size=6))
def test_int8_embeddings_equal_reference_and_are_rounded_by_half_a_step_at_most(rows):
    table = np.array(rows)
    decoded = quantize_embeddings(table, "int8", normalize=False)
    for row, code, read in zip(table, quantize_embeddings(table, "int8"), decoded, strict=True):
        assert code.tolist() == (reference.int8_code(row) if row.any() else [0] * 5)
        step = np.abs(row).max() / 127
        np.testing.assert_allclose(read, code * step, rtol=1e-6)
        np.testing.assert_allclose(read, row, atol=0.5001 * step)
