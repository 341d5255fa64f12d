"""Metrics, searches, samplers and exported models give CPU results on a GPU, and the host seldom waits for the GPU.

The cases run in a separate process with a simulated GPU (:mod:`tests.computing_gpu`).
"""

import json
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hgld
from hgld.evaluation.evaluate import evaluate_judged, evaluate_labelled
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.metric import offered_names
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import expand_queries
from hgld.metrics import Retrieval, class_distances, ranking_metrics
from hgld.samplers import ClassBalanced, HierarchicalPKSampler, PKSampler
from hgld.training.inference.export import ImageEmbedder
from tests.computing_gpu import STALLS, computing_gpu
from tests.interpreter import python
from tests.training.untrained_run import small_model

N, LEVELS = 40, ("fine", "coarse")
NAMES = [name for name in offered_names() if not name.startswith("top-")]
OF_GRADES = [name for name in NAMES if not name.startswith(("dists", "NMI"))]

To = Callable[[Tensor], Tensor]


def embeddings(*, tied):
    drawn = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
    return drawn[:, :4].sign() if tied else drawn  # 16 distinct vectors give every query ties


def labels():
    fine = torch.arange(N) % 10
    found = torch.stack([fine, fine // 3], dim=1)
    found[5, 0] = -1
    return found


def evaluated(to, *, tied):
    items = to(embeddings(tied=tied)), to(labels())
    return hgld.evaluate(*items, levels=LEVELS, metrics=NAMES).values


def against_a_gallery(to, *, tied):
    items, of = to(embeddings(tied=tied)), to(labels())
    own = to(torch.arange(7))
    options = EvaluationOptions(metrics=tuple(NAMES))
    return evaluate_labelled((items[:7], of[:7]), (items, of), levels=LEVELS, self_index=own, options=options).values


def expanded(to, *, tied):
    options = EvaluationOptions(metrics=("AP",), query_expansion=(2.0, 3))
    return evaluate_labelled((to(embeddings(tied=tied)), to(labels())), levels=LEVELS, options=options).values


def judged(to, *, tied):
    relevant = [[np.array([i]), np.array([(i + 1) % N])] for i in range(N)]
    judgements = ListRelevance(N, relevant, [np.array([(i + 2) % N]) for i in range(N)])
    items = to(embeddings(tied=tied))
    options = EvaluationOptions(metrics=OF_GRADES)
    return evaluate_judged(items, items, judgements, levels=LEVELS, options=options).values


def ranked(to, *, tied):
    items, generator = embeddings(tied=tied), torch.Generator().manual_seed(1)
    grades, left_out = torch.randint(0, 3, (N, N), generator=generator), torch.rand(N, N, generator=generator) < 0.1
    return ranking_metrics(to(items @ items.T), to(grades), OF_GRADES, levels=LEVELS, left_out=to(left_out))


def over_batches(to, *, tied):
    """Evaluate in batches, as a custom validation loop does."""
    device = to(torch.zeros(1)).device
    metric = Retrieval(levels=LEVELS, metrics=NAMES, device=device)
    for batch in torch.arange(N).split(16):
        metric.update(to(embeddings(tied=tied)[batch]), to(labels()[batch]), to(batch))
    return metric.compute()


def nearest(to, *, tied):
    items = to(embeddings(tied=tied))
    return nearest_neighbors(items, items, 5, self_index=to(torch.arange(N)))


def others(to, *, tied):
    items = to(embeddings(tied=tied))
    distances = class_distances(items, to(labels()[:, 1]))
    return distances.intra, distances.inter, expand_queries(items, items, EvaluationOptions(query_expansion=(2.0, 3)))


def batches(to, *, tied):
    of = to(labels())
    samplers = (
        PKSampler(of, p=2, k=2),
        HierarchicalPKSampler(of, p=2, k=2),
        ClassBalanced(of, batch_size=4),
    )
    return [sampler.batch(1, step) for sampler in samplers for step in range(3)]


def classified(to, *, tied):
    """Run the exported module on the device."""
    model = small_model()
    module = ImageEmbedder(model).eval()
    for part in module.modules():
        for name, tensor in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            (part._buffers if name in part._buffers else part._parameters).pop(name)
            setattr(part, name, to(tensor.detach()))
    images = torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return module(to(images)).cpu()


# Each case has a limit for the number of times that the host waits for results; a wait per query would exceed it.
CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "evaluate": (evaluated, 17),
    "a gallery": (against_a_gallery, 23),
    "query expansion": (expanded, 30),
    "judged": (judged, 10),
    "scores": (ranked, 8),
    "Retrieval": (over_batches, 24),
    "neighbours": (nearest, 14),
    "distances, expansion": (others, 20),
    "samplers": (batches, 6),
    "the exported module": (classified, 2),
}
WAITS = (*STALLS, "a copy from the device", "aten::index")


def run(name, *, tied):
    """Return the results of a case on both devices as lists, and how often the host waits for the GPU."""
    try:
        with computing_gpu() as gpu:
            found = CASES[name][0](Tensor.cuda, tied=tied)
        expected = CASES[name][0](lambda tensor: tensor, tied=tied)
        waits = {told: count for told, count in gpu.waits.items() if told.startswith(WAITS)}
        return {"found": listed(found), "expected": listed(expected), "waits": waits, "ran": gpu.ran}
    except Exception:  # noqa: BLE001  # the test prints the traceback
        return {"fault": traceback.format_exc()}


def listed(result: Any) -> list[float]:
    if isinstance(result, dict):
        return [number for value in result.values() for number in listed(value)]
    if isinstance(result, list | tuple):
        return [number for value in result for number in listed(value)]
    return np.asarray(result, np.float64).reshape(-1).tolist()


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json.loads(python("-m", "tests.test_on_a_gpu").stdout.splitlines()[-1])


@pytest.mark.slow  # starts a separate process with all cases
@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
@pytest.mark.parametrize("name", CASES)
def test_gpu_results_equal_cpu_results_with_few_synchronizations(name, tied, results):
    result = results[f"{name}, {tied}"]
    assert "fault" not in result, result["fault"]
    assert result["expected"]
    np.testing.assert_allclose(result["found"], result["expected"], rtol=1e-6, atol=1e-6)
    assert sum(result["waits"].values()) <= CASES[name][1], result["waits"]
    assert result["ran"] > 0


if __name__ == "__main__":
    print(json.dumps({f"{name}, {tied}": run(name, tied=tied) for name in CASES for tied in (False, True)}))
