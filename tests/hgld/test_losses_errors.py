"""What the rank losses refuse, and how they say it."""

import functools
import math
from typing import Any

import pytest
import torch

from hgld import losses
from hgld.errors import ConfigError, InputError
from hgld.losses import blackbox_ap_loss, graded_ap_loss, pnp_loss, soft_bin_ap_loss
from hgld.losses.surrogates import SupStep
from hgld.losses.wrappers import ClassWeighted

BAD: Any = "bad"  # for arguments that a type checker would refuse
E, Y = torch.randn(3, 2), torch.zeros(3, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: losses.SupAP(tau=0.0), ConfigError, "tau is 0.0"),
        (lambda: losses.SupAP(rho=-1.0), ConfigError, "rho is -1.0"),
        (lambda: losses.SupAP(delta=math.inf), ConfigError, "delta is inf"),
        (lambda: losses.SupAP(offset=math.nan), ConfigError, "offset is nan"),
        (lambda: losses.SupAP(offset=-0.5), ConfigError, "offset is -0.5"),
        (lambda: losses.SupHAP(level=1), ConfigError, "reads all levels"),  # type: ignore[call-arg]
        (lambda: losses.SupAP(method=BAD), ConfigError, "auto, pair, eager"),
        (lambda: losses.SupAP(reduction=BAD), ConfigError, "mean, none"),
        (lambda: losses.SupAP(level=-1), ConfigError, "level is -1"),
        (lambda: losses.SupHAP(alpha=-1.0), ConfigError, "alpha is -1.0"),
        (lambda: losses.SupHAP(relevance=BAD), ConfigError, "population"),
        (lambda: losses.SupHAP(relevance="weighted_ap", weights=[1.0])(E, Y), ConfigError, "1 weights for 2"),
        (lambda: losses.SupRecall(k=()), ConfigError, "at least one"),
        (lambda: losses.SupRecall(temperature=0.0), ConfigError, "temperature is (0.0"),
        (lambda: losses.SupRecall(k=(1, 2), temperature=(1.0,)), ConfigError, "temperature is (1.0,) for"),
        (lambda: losses.SupAP()(E, Y, E, Y, Y[:, 0] + 3), InputError, "self_index runs to 3"),
        (lambda: losses.SupAP(level=2)(E, Y), InputError, "2 levels and the loss reads level 2"),
        (lambda: losses.NormSoftmax(3, 2, level=2)(E, Y), InputError, "level 2"),
        (lambda: losses.SupAP()(E[0], Y), InputError, "expected (N, D)"),
        (lambda: losses.SupAP()(E, Y[:2]), InputError, "one row of labels"),
        (lambda: losses.SupAP()(E, Y.float()), InputError, "integer"),
        (lambda: losses.SupAP()(E, Y.bool()), InputError, "dtype torch.bool for 3 embeddings; expected one row"),
        (lambda: losses.NormSoftmax(2, 2)(E, Y.bool()), InputError, "dtype torch.bool for 3 embeddings"),
        (lambda: losses.SupAP()(E, Y, E), InputError, "ref_embeddings came alone"),
        (lambda: losses.SupAP()(E, Y, None, Y), InputError, "ref_labels came alone"),
        (lambda: losses.SupAP()(E, Y, E[:, :1], Y), InputError, "2 dimensions and ref_embeddings 1"),
        (lambda: losses.SupHAP()(E, Y, E, Y[:, :1]), InputError, "same levels"),
        (lambda: losses.SupAP()(E, Y, None, None, Y[:, 0]), InputError, "self_index came without"),
        (lambda: losses.SupAP()(E, Y, E, Y, Y), InputError, "self_index has shape"),
        (lambda: graded_ap_loss(E, Y.float(), 1, SupStep()), InputError, "grades have dtype"),
        (lambda: graded_ap_loss(E, Y[:2], 1, SupStep()), InputError, "two (Q, G) tables"),
        (lambda: graded_ap_loss(E, Y + 2, 1, SupStep()), InputError, "grades run to 2"),
        (lambda: graded_ap_loss(E, Y - 1, 1, SupStep()), InputError, "expected 0..1"),
        (lambda: graded_ap_loss(E, Y, 1, SupStep(), left_out=Y), InputError, "left_out has shape"),
        (lambda: graded_ap_loss(E.double(), Y + 1, 1, SupStep(), method="pair"), ConfigError, "float32"),
    ],
)
def test_errors_say_what_was_found_and_expected(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: losses.SoftBinAP(1),
        lambda: losses.SoftBinAP(low=1.0),
        lambda: losses.SoftBinAP(ties=BAD),
        lambda: ClassWeighted(losses.SoftBinAP(), "balanced"),
        lambda: ClassWeighted(losses.SoftBinAP(reduction="none"), torch.tensor([1.0, -1.0])),
        lambda: ClassWeighted(losses.SoftBinAP(reduction="none"), BAD),
        lambda: losses.FastAP(0),
        lambda: losses.BlackboxAP(0.0),
        lambda: losses.BlackboxAP(margin=-1.0),
        lambda: losses.PNP(BAD),
        lambda: losses.PNP(tau=0.0),
        lambda: losses.PNP(alpha=math.nan),
        lambda: losses.CalibrationLoss(reduction=BAD),
        lambda: losses.CalibrationLoss(alpha=math.nan),
        lambda: losses.Contrastive(0.0),
        lambda: losses.Contrastive(1.0, variant="cosine"),
        lambda: losses.Contrastive(-0.1, variant="cosine"),
        lambda: losses.Contrastive(variant=BAD),
        lambda: losses.Triplet(-1.0),
        lambda: losses.Margin(0),
        lambda: losses.Margin(8, cutoff=1.5),
        lambda: losses.Margin(8, reduction=BAD),
        *(
            functools.partial(losses.NormSoftmax, **{"num_classes": 3, "dim": 2, **wrong})
            for wrong in ({"temperature": 0.0}, {"num_classes": 0}, {"dim": 0}, {"level": -1}, {"reduction": "sum"})
        ),
        *(
            functools.partial(losses.CrossBatchMemory, losses.FastAP(), **{"size": 8, "dim": 4, **wrong})
            for wrong in ({"size": 0}, {"dim": 0}, {"warmup": -1}, {"weight": -1.0})
        ),
        lambda: losses.CrossBatchMemory(losses.FastAP(reduction="none"), 8, 4),
    ],
)
def test_wrong_options_are_refused(make):
    with pytest.raises(ConfigError):
        make()


FUNCTIONS = [
    lambda s, g, left_out=None: graded_ap_loss(s, g, 1, SupStep(), left_out=left_out),
    soft_bin_ap_loss,
    blackbox_ap_loss,
    pnp_loss,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_scores_and_grades_refuse_what_is_no_table(function):
    scores, grades = torch.rand(3, 4), torch.ones(3, 4, dtype=torch.int64)
    for wrong in ((scores, grades[:2]), (scores[0], grades[0]), (scores.long(), grades), (scores, grades.float())):
        with pytest.raises(InputError, match=r"\(Q, G\) tables|grades have dtype"):
            function(*wrong)
    with pytest.raises(InputError, match="left_out has shape"):
        function(scores, grades, left_out=torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_functions_of_scores_and_grades_compute_in_float32(function, dtype):
    torch.manual_seed(0)
    scores, grades = torch.rand(3, 40).to(dtype), torch.randint(0, 2, (3, 40))
    values, _ = function(scores, grades)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, function(scores.float(), grades)[0], rtol=0, atol=0)
