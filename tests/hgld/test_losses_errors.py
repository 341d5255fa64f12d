"""Each invalid option or input of a loss raises an error that states what was found."""

import math
from typing import Any

import pytest
import torch

from hgld import Hierarchy, losses
from hgld.distributed import DistributedLoss
from hgld.errors import ConfigError, InputError
from hgld.losses import blackbox_ap_loss, graded_ap_loss, pnp_loss, soft_bin_ap_loss
from hgld.losses.kernels.objectives import SupStep
from tests.hgld.shared_losses import SHARED, WHOLE, model, step_input

BAD: Any = "bad"  # passes an argument of the wrong type without an error of the type checker
EACH: Any = {"reduction": "none"}
E, Y = torch.randn(3, 2), torch.zeros(3, 2, dtype=torch.int64)
TREE = Hierarchy.from_columns({"species": ["fox", "cat", "oak"], "kingdom": ["animal", "animal", "plant"]})
memory: Any = losses.CrossBatchMemory
prefixes: Any = losses.MatryoshkaLoss
weighted: Any = losses.ClassWeighted
NOT_SUMMED = [
    *(losses.CSL(TREE, 5), losses.SiMix(losses.SupHAP(normalize=False))),
    *(torch.compile(losses.SupHAP(), backend="eager"), losses.ROADMAP(level=1), losses.SmoothAP(**EACH)),
]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: losses.SupAP(tau=0.0), ConfigError, "tau is 0.0"),
        (lambda: losses.SupAP(delta=math.inf), ConfigError, "delta is inf"),
        (lambda: losses.SupAP(offset=-0.5), ConfigError, "offset is -0.5"),
        (lambda: losses.SupHAP(level=1), ConfigError, "reads all levels"),  # type: ignore[call-arg]
        (lambda: losses.SupAP(method=BAD), ConfigError, "auto, pair, eager"),
        (lambda: losses.SupAP(reduction=BAD), ConfigError, "mean, none"),
        (lambda: losses.SupAP(level=-1), ConfigError, "level is -1"),
        (lambda: losses.SupHAP(relevance="weighted_ap", weights=[1.0])(E, Y), ConfigError, "1 weights for 2"),
        (lambda: losses.SupRecall(k=()), ConfigError, "one or more"),
        (lambda: losses.SupRecall(k=(1, 2), temperature=(1.0,)), ConfigError, "temperature is (1.0,) for"),
        (lambda: losses.SupAP()(E, Y, E, Y, Y[:, 0] + 3), InputError, "self_index runs to 3"),
        (lambda: losses.SupAP(level=2)(E, Y), InputError, "2 levels and the loss reads level 2"),
        (lambda: losses.SupAP()(E[0], Y), InputError, "expected (N, D)"),
        (lambda: losses.SupAP()(E, Y[:2]), InputError, "one row of labels"),
        (lambda: losses.SupAP()(E, Y.bool()), InputError, "dtype torch.bool for 3 embeddings; expected one row"),
        (lambda: losses.SupAP()(E, Y, E), InputError, "got only ref_embeddings"),
        (lambda: losses.SupAP()(E, Y, E[:, :1], Y), InputError, "2 dimensions and ref_embeddings 1"),
        (lambda: losses.SupHAP()(E, Y, E, Y[:, :1]), InputError, "same levels"),
        (lambda: losses.SupAP()(E, Y, None, None, Y[:, 0]), InputError, "got self_index without"),
        (lambda: losses.SupAP()(E, Y, E, Y, Y), InputError, "self_index has shape"),
        (lambda: graded_ap_loss(E, Y + 2, 1, SupStep()), InputError, "grades run to 2"),
        (lambda: graded_ap_loss(E.double(), Y + 1, 1, SupStep(), method="pair"), ConfigError, "float32"),
        (lambda: losses.SoftBinAP(1), ConfigError, "bins is 1"),
        (lambda: losses.SoftBinAP(low=1.0), ConfigError, "low is 1.0"),
        (lambda: losses.FastAP(0), ConfigError, "bins is 0"),
        (lambda: losses.BlackboxAP(0.0), ConfigError, "lambda_ is 0.0"),
        (lambda: losses.BlackboxAP(margin=-1.0), ConfigError, "margin is -1.0"),
        (lambda: losses.PNP(alpha=math.nan), ConfigError, "alpha is nan"),
        (lambda: losses.CalibrationLoss(reduction=BAD), ConfigError, "mean, none, nonzero"),
        (lambda: losses.CalibrationLoss(alpha=math.nan), ConfigError, "alpha is nan"),
        (lambda: losses.Contrastive(0.0), ConfigError, "margin is 0.0"),
        (lambda: losses.Contrastive(1.0, variant="cosine"), ConfigError, "in [0, 1)"),
        (lambda: losses.Triplet(-1.0), ConfigError, "margin is -1.0"),
        (lambda: losses.Triplet(reduction="nonzero"), ConfigError, "mean, none"),
        (lambda: losses.Margin(0), ConfigError, "dim is 0"),
        (lambda: losses.Margin(8, cutoff=1.5), ConfigError, "cutoff is 1.5"),
        (lambda: losses.NormSoftmax(3, 2, 0.0), ConfigError, "temperature is 0.0"),
        (lambda: losses.NormSoftmax(0, 2), ConfigError, "num_classes is 0"),
        (lambda: losses.NormSoftmax(3, 2)(E, Y[:, 0] + 5), InputError, "label 5 has no proxy"),
        (lambda: losses.NormSoftmax(3, 5)(E, Y), InputError, "embeddings have shape (3, 2)"),
        (lambda: losses.CSL(TREE.restrict(["species"]), 2), ConfigError, "margins are None for 1 levels"),
        (lambda: losses.CSL(TREE, 2, scale=-1.0), ConfigError, "scale is -1.0"),
        (lambda: losses.MultiGrain(3, 2, lambda_=1.5), ConfigError, "lambda_ is 1.5"),
        (lambda: losses.HAPPIER(), ConfigError, "num_classes and dim"),
        (lambda: losses.ROADMAP(lambda_=2), ConfigError, "lambda_ is 2"),
        (lambda: losses.Composition(losses.SupAP(**EACH), losses.CalibrationLoss()), ConfigError, "reduction='none'"),
        (lambda: losses.ROADMAP(**EACH).terms(E, Y), ConfigError, "reduction='none'"),
        (lambda: losses.SiMix(losses.SmoothRecall()), ConfigError, "normalize=False"),
        (lambda: weighted(losses.SoftBinAP(), "balanced"), ConfigError, "reduction='mean'"),
        (lambda: weighted(losses.SoftBinAP(**EACH), torch.tensor([1.0, -1.0])), ConfigError, "finite numbers >= 0"),
        (lambda: weighted(losses.SoftBinAP(**EACH), BAD), ConfigError, "weights are 'bad'"),
        (lambda: weighted(losses.SoftBinAP(**EACH), torch.ones(2))(E, Y + 2), InputError, "label 2 has no weight"),
        (lambda: prefixes(losses.SupAP(), (2, 1)), ConfigError, "ascending"),
        (lambda: prefixes(losses.SupAP(), (1, 2), (1.0,)), ConfigError, "1 weights"),
        (lambda: prefixes(losses.SupAP(), (1, 2), (1.0, 0.0)), ConfigError, "above 0"),
        (lambda: prefixes(losses.SupAP(**EACH), (1, 2)), ConfigError, "one number per dimension"),
        (lambda: prefixes(losses.SupAP(), (2, 6))(E, Y), InputError, "have 2 dimensions"),
        (lambda: memory(losses.FastAP(), 0, 4), ConfigError, "size is 0"),
        (lambda: memory(losses.FastAP(), 8, 4, warmup=-1), ConfigError, "warmup is -1"),
        (lambda: memory(losses.FastAP(), 8, 4, weight=-1.0), ConfigError, "weight is -1.0"),
        (lambda: memory(losses.FastAP(**EACH), 8, 4), ConfigError, "each must be one number"),
        (lambda: memory(losses.FastAP(), 8, 2).enqueue(E, Y), InputError, "the memory expects"),
        (lambda: losses.wrap(torch.nn.Identity(), level=3)(E, Y), InputError, "reads level 3"),
        (lambda: DistributedLoss(losses.SupAP(**EACH)), ConfigError, "need a loss that returns one number"),
        (lambda: DistributedLoss(losses.SupAP())(E, ["a", "a", "b"]), InputError, "labels are list; expected a tensor"),
        (losses.SumOverLevels, ConfigError, "one binary loss"),
        *((lambda w=wrong: losses.SumOverLevels(w), ConfigError, "") for wrong in NOT_SUMMED),
        (lambda: losses.SumOverLevels(*[losses.SmoothAP()] * 3)(E, Y), ConfigError, "3 losses for 2 levels"),
    ],
)
def test_wrong_options_and_input_are_refused_with_what_was_found(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)


FUNCTIONS = [
    lambda s, g, left_out=None: graded_ap_loss(s, g, 1, SupStep(), left_out=left_out),
    soft_bin_ap_loss,
    blackbox_ap_loss,
    pnp_loss,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_scores_and_grades_refuse_other_shapes_and_dtypes(function):
    scores, grades = torch.rand(3, 4), torch.ones(3, 4, dtype=torch.int64)
    for wrong in ((scores, grades[:2]), (scores[0], grades[0]), (scores.long(), grades), (scores, grades.float())):
        with pytest.raises(InputError, match=r"\(Q, G\) tables|grades have dtype"):
            function(*wrong)
    with pytest.raises(InputError, match="left_out has shape"):
        function(scores, grades, left_out=torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_scores_and_grades_compute_in_float32(function):
    torch.manual_seed(0)
    scores, grades = torch.rand(3, 40).half(), torch.randint(0, 2, (3, 40))
    values, _ = function(scores, grades)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, function(scores.float(), grades)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", [*SHARED, *WHOLE])
def test_loss_or_gradient_is_not_finite_if_and_only_if_an_embedding_is_not(name):
    embed = model()
    images, labels, instances = step_input(0)
    others = {"instances": instances} if name == "MultiGrain" else {}
    for dtype, wrong in ((torch.float64, None), (torch.float32, math.nan), (torch.bfloat16, math.inf)):
        embeddings = embed(images).detach().to(dtype)
        if wrong is not None:
            embeddings[3, 1] = wrong
        value = {**SHARED, **WHOLE}[name]()(embeddings.requires_grad_(), labels, **others).mean()
        value.backward()
        assert embeddings.grad is not None
        is_finite = bool(value.isfinite() and embeddings.grad.isfinite().all())
        assert is_finite is (wrong is None), (dtype, wrong)
