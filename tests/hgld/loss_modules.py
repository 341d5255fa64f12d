"""All losses as modules, and a comparison of a loss with its reference, for the tests of losses."""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from hgld import Hierarchy
from hgld.losses.binned import FastAP, SoftBinAP
from hgld.losses.blackbox_ap import BlackboxAP
from hgld.losses.compositions import HAPPIER, ROADMAP, RODNDCG, RODRecall
from hgld.losses.pairs import CalibrationLoss, Contrastive, Margin, Triplet
from hgld.losses.proxies import CSL, NormSoftmax, ProxyNCApp
from hgld.losses.surrogate_losses import (
    PNP,
    SmoothAP,
    SmoothHAP,
    SmoothRecall,
    SupAP,
    SupHAP,
    SupNDCG,
    SupRecall,
    Variant,
)

Make = Callable[..., nn.Module]
_WIDE: dict[str, Any] = {"tau": 0.1, "rho": 10.0, "delta": 0.3}  # gives non-zero gradients on small batches
SURROGATE: dict[str, Make] = {
    **{kind.__name__: partial(kind, tau=0.1) for kind in (SmoothAP, SmoothRecall, SmoothHAP)},
    **{kind.__name__: partial(kind, **_WIDE) for kind in (SupAP, SupRecall, SupHAP, SupNDCG)},
}
RANK: dict[str, Make] = {
    **SURROGATE,
    "SoftBinAP": SoftBinAP,
    "SoftBinAP, relaxed": partial(SoftBinAP, ties="relaxed"),
    "SoftBinAP, integral": partial(SoftBinAP, ties="integral"),
    "FastAP": FastAP,
    "BlackboxAP": BlackboxAP,
    **{f"PNP, {variant}": partial(PNP, variant, tau=0.1) for variant in get_args(Variant)},
    "CalibrationLoss": CalibrationLoss,
    "Contrastive": Contrastive,
    "Contrastive, cosine": partial(Contrastive, 0.5, variant="cosine"),
}


def sampled_losses(dim: int) -> dict[str, Make]:
    """Return pair and triplet losses that are not a mean over queries, or that sample negatives."""
    nonzero = {"CalibrationLoss, nonzero": CalibrationLoss, "Margin, nonzero": partial(Margin, dim)}
    return {
        "Triplet": Triplet,
        "Margin": partial(Margin, dim),
        **{name: partial(make, reduction="nonzero") for name, make in nonzero.items()},
    }


def proxy_losses(dim: int, tree: Hierarchy) -> dict[str, Make]:
    size = (tree.num_classes[0], dim)
    return {
        "NormSoftmax": partial(NormSoftmax, *size),
        "ProxyNCApp": partial(ProxyNCApp, *size),
        "CSL": partial(CSL, tree, dim),
        "ROADMAP": ROADMAP,
        "RODRecall": partial(RODRecall, *size),
        "ROADMAP, proxy": partial(ROADMAP, *size, decomposability="proxy"),
        "HAPPIER": partial(HAPPIER, *size),
        "HAPPIER, pair": partial(HAPPIER, decomposability="pair"),
        "RODNDCG": partial(RODNDCG, *size),
    }


@st.composite
def rankings(draw, spacing: float = 1 / 64):
    """Draw binary grades and scores (Q, G); the scores are on a grid of exact numbers, which gives ties."""
    shape, steps = (draw(st.integers(1, 2)), draw(st.integers(1, 9))), round(1 / spacing)
    cell = st.integers(-steps, steps) | st.sampled_from([-steps, 0, steps])
    scores = torch.from_numpy(draw(hnp.arrays(np.int64, shape, elements=cell)))
    return scores.double() * spacing, torch.from_numpy(draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, 1))))


def check_rows(fast, reference, case: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    """Compare a loss with its reference for each row of a case; errors are relative to max(1, |x|)."""
    scores, grades = case
    value_error, slope_error = (1e-9, 1e-9) if dtype == torch.float64 else (1e-5, 1e-4)
    leaf = scores.to(dtype).requires_grad_()
    values, valid = fast(leaf, grades)
    values.sum().backward()
    for row in range(len(scores)):
        slow = leaf.detach()[row].double().requires_grad_()
        expected = reference(slow, grades[row].tolist()) if valid[row] else torch.zeros(())
        # the loss of a row without negatives is constant; adding 0 keeps it differentiable
        (expected + 0 * slow.sum()).backward()
        assert abs(values[row].item() - expected.item()) <= value_error * max(1.0, abs(expected.item()))
        assert (leaf.grad[row].double() - slow.grad).abs().max() <= slope_error * max(1.0, slow.grad.abs().max().item())
