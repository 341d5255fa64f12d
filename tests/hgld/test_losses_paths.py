"""The compiled implementations of the rank losses on large rows, and torch's checks of custom operators."""

import importlib.util
import json
import os

import pytest
import torch

from hgld.losses.kernels import operator
from hgld.losses.kernels.objectives import DiscountedGain, PrecisionMean, RecallMean, Sigmoid, SupStep
from hgld.losses.surrogate_losses import grade_counts
from hgld.relevance import GainFunction
from tests.interpreter import ROOT, python
from tests.rows import each_row

OBJECTIVES = {
    "precision": PrecisionMean(),
    "recall": RecallMean(),
    "clipped recall": RecallMean.of((1, 4, 16), (1.0, 8.0, 40.0), clip=True),
    "ndcg": DiscountedGain(),
}
SURROGATES = {
    "sup": SupStep(),
    "short delta": SupStep(delta=0.025),
    "long delta": SupStep(delta=0.5),
    "narrow": SupStep(0.002, 10.0, 0.01),
    "smooth": Sigmoid(),
    "wide": Sigmoid(0.2),
}


def ranking(num_queries, size, num_levels=3, share=0.3, spread=0.2, seed=0):
    """Return cosine-like scores with some exact ties, one row of equal scores, and one unranked item per row."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_queries, size, generator=generator) * spread
    scores[:, : size // 5] = (scores[:, : size // 5] * 64).round() / 64
    scores[0] = 0.25
    grades = torch.zeros(num_queries, size, dtype=torch.uint8)
    drawn = torch.rand(num_queries, size, generator=generator)
    for level in range(1, num_levels + 1):
        grades[drawn < share / 4 ** (level - 1)] = level
    scores[:, 3], grades[:, 3] = -torch.inf, 0
    counts = grade_counts(grades, num_levels)
    gains = GainFunction().of_counts(counts)
    return scores, grades, gains, (gains * counts).sum(dim=1)


def value_and_gradient(table, objective, surrogate, method):
    scores = table[0].clone().requires_grad_()
    grades, gains, norms = table[1:]
    values = operator.rank_metric(scores, grades, gains, norms, objective, surrogate, method)
    (gradient,) = torch.autograd.grad(values.sum(), scores)
    return values.detach(), gradient


def error(found, right):
    return float(((found.double() - right) / right.abs().clamp(min=1)).abs().max())


def check_float32(table, objective, surrogate, method):
    """Compare an implementation with the float64 reference implementation."""
    right = value_and_gradient((table[0].double(), *table[1:]), objective, surrogate, "eager")
    found = value_and_gradient(table, objective, surrogate, method)
    assert error(found[0], right[0]) < 1e-5
    assert error(found[1], right[1]) < 1e-4


METHODS = ("pair", "auto", "eager")
PAIRWISE = [  # all pairs of surrogate, objective and method occur
    (surrogate, objective, METHODS[(i + j) % len(METHODS)])
    for i, surrogate in enumerate(SURROGATES)
    for j, objective in enumerate(OBJECTIVES)
]


@each_row(("surrogate", "objective", "method"), PAIRWISE)
def test_float32_implementations_agree_with_float64(surrogate, objective, method):
    check_float32(ranking(3, 400), OBJECTIVES[objective], SURROGATES[surrogate], method)


@each_row(("surrogate", "size", "spread"), [("smooth", 5000, 0.2), ("sup", 2000, 15.0)])
def test_rounding_error_stays_bounded_for_large_galleries_and_wide_scores(surrogate, size, spread):
    table = ranking(2, size, share=0.02, spread=spread, seed=1)
    check_float32(table, PrecisionMean(), SURROGATES[surrogate], "pair")


def test_eager_pairs_in_chunks_equal_pairs_in_one_chunk(monkeypatch):
    table = ranking(5, 60)
    whole = value_and_gradient(table, PrecisionMean(), SupStep(), "eager")
    monkeypatch.setattr("hgld.losses.kernels.eager._MOST_PAIRS", 500)
    parts = value_and_gradient(table, PrecisionMean(), SupStep(), "eager")
    torch.testing.assert_close(parts, whole)


def test_number_of_blocks_and_threads_does_not_change_results(monkeypatch):
    table = ranking(23, 200)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = value_and_gradient(table, PrecisionMean(), SupStep(), "pair")
        monkeypatch.setattr("hgld.losses.kernels.native._MOST_ITEMS", 900)
        torch.set_num_threads(3)
        together = value_and_gradient(table, PrecisionMean(), SupStep(), "pair")
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(together, alone, rtol=0, atol=0)


@each_row("method", ["pair", "eager"])
def test_the_rank_operator_passes_torch_opcheck(method):
    scores, grades, gains, norms = ranking(3, 40)
    args = (scores.requires_grad_(), grades, gains, norms, "precision", [], [0.01, 100.0, 0.05, 1.5], method)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator._rank_metric, args, test_utils=checks)


def run_python(program, **environment):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "hgld")])
    return python("-W", "error", "-c", program, PYTHONPATH=path, **environment).stdout


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

INTERPRETED = """
import json, torch
from hgld.losses.kernels.eager import rank_metric_by_pairs
from hgld.losses.kernels import triton_pairs
from hgld.losses.kernels.objectives import Sigmoid, SupStep
from test_losses_paths import OBJECTIVES, ranking

GUARD, guarded = 100, []

def between_guards(allocate):
    def new(tensor, *args, **options):
        made = allocate(tensor, *args, **options)
        if not made.is_floating_point() or not made.numel():
            return made
        room = torch.full((made.numel() + 2 * GUARD,), torch.nan, dtype=made.dtype)
        guarded.append(room)
        return room[GUARD:-GUARD].view(made.shape).copy_(made)
    return new

# The kernels' outputs lie between NaNs: no kernel may write to these or read them.
for name in ("new_zeros", "new_empty"):
    setattr(torch.Tensor, name, between_guards(getattr(torch.Tensor, name)))
triton_pairs.torch.empty_like = between_guards(torch.empty_like)

def tables():
    steps = torch.linspace(-0.3, 0.3, 140)[torch.randperm(140, generator=torch.Generator().manual_seed(0))]
    tied = {"ties of 5": (steps * 140 / 3).round() / 64, "ties of all grades": steps.sign() / 8}
    yield "one block", ranking(1, 40, 1)
    for scores, row in {"one tie": None, "distinct": steps, **tied}.items():
        table = ranking(1, 140, 3)
        if row is not None:
            table[0][0] = row
            table[0][0, 3] = -torch.inf
        yield scores, table
    for share in (0.02, 0.3):
        yield f"shared items, {share:.0%} positives", ranking(2, 250, share=share, spread=0.1)

def relative(found, right):  # values below 1e-9 are the far tail of a sigmoid, which multiplies the error of a rank
    return float((found.double() - right).abs().max() / right.abs().max().clamp(min=1e-9))

rows = []
for name, surrogate in {"sup": SupStep(), "offset": SupStep(offset=1.44), "smooth": Sigmoid()}.items():
    for objective in OBJECTIVES:
        for scores, table in tables():
            triton_pairs._ITEMS_PER_PROGRAM = 64 if scores.startswith("shared") else 4096
            found = triton_pairs.triton_rank_metric(*table, OBJECTIVES[objective], surrogate)
            right = rank_metric_by_pairs(table[0].double(), *table[1:], OBJECTIVES[objective], surrogate)
            rows.append((name, objective, scores, *map(relative, found, right)))
assert guarded and all(torch.cat([room[:GUARD], room[-GUARD:]]).isnan().all() for room in guarded)
print(json.dumps(rows))
"""


@needs_triton
@pytest.mark.slow
@pytest.mark.long
def test_triton_kernels_agree_with_the_float64_reference():
    """The child prints the relative errors of values and gradients; gradients are relative to the row's largest one."""
    rows = json.loads(run_python(INTERPRETED, TRITON_INTERPRET="1", OMP_NUM_THREADS="1"))
    for surrogate, objective, scores, of_value, of_gradient in rows:
        print(f"{surrogate:7} {objective:15} {scores:29} value {of_value:.1e} gradient {of_gradient:.1e}")
    assert len(rows) == 3 * len(OBJECTIVES) * 7
    assert all(of_value < 1e-6 and of_gradient < 1e-5 for *_, of_value, of_gradient in rows)


@needs_triton
@pytest.mark.slow
@pytest.mark.long
def test_triton_kernels_compile_for_other_gpus_without_spilling(tmp_path):
    """The test prints the registers per thread and the shared memory per block."""
    python("benchmarks/gpu.py", "--part", "kernels", "--out", tmp_path, TRITON_DEFAULT_FP_FUSION="1")
    cases = list(map(json.loads, (tmp_path / "gpu.jsonl").read_text().split("\n")[1:]))
    assert len(cases) == 3 * 7
    for one in cases:
        # Two blocks of 128 threads fit a multiprocessor with 65,536 registers and about 100 KB of shared memory.
        assert 0 < one["values"]["registers"] <= 255
        assert one["values"]["shared_bytes"] <= 49_152
        assert one["values"]["spilled_bytes"] == 0


@needs_triton
@each_row(("queries", "items"), [(2, 4_132_914), (70, 32_768)])
def test_triton_launches_cover_all_queries_within_32_bits(queries, items, monkeypatch):
    from hgld.losses.kernels import triton_pairs

    launches = []

    class Recorder:
        def __getitem__(self, grid):
            return lambda scores, *_, **options: launches.append((*grid, scores.numel()))

    for kernel in ("_rank_positives", "_sum_parts", "_reach_items"):
        monkeypatch.setattr(triton_pairs, kernel, Recorder())
    table = torch.empty(queries, items, device="meta")
    gains = torch.empty(queries, 4, dtype=torch.float64, device="meta")
    triton_pairs.triton_rank_metric(table, table.to(torch.uint8), gains, gains[:, 0], PrecisionMean(), SupStep())
    positives, rows = triton_pairs._BLOCK_POSITIVES, triton_pairs._BLOCK_ITEMS
    for kernel, (results, block) in enumerate(((1, positives), (4, positives), (1, rows))):
        # one grid axis only, because the other axes of CUDA allow just 65,535 programs
        programs, scores = zip(*launches[kernel::3], strict=True)
        assert sum(programs) == results * queries * -(-items // block)
        # More queries make more launches, not larger ones: programs and offsets stay below 2^31.
        assert len(scores) == 2
        assert max(scores) <= results * max(items + block, 1 << 21)


MEMORY = """
import resource, torch, hgld.losses
torch.set_num_threads(2)
generator = torch.Generator().manual_seed(0)
queries = torch.randn(256, 128, generator=generator).requires_grad_()
labels = torch.arange(60_000) // 5
labels = torch.stack([labels, labels // 50, labels // 500], dim=1)
memory = torch.randn(60_000, 128, generator=generator)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hgld.losses.SupHAP()(queries, labels[:256], memory, labels).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024**2)
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_large_gallery_takes_less_than_one_gigabyte():
    assert float(run_python(MEMORY)) < 1.0
