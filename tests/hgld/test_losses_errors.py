"""Each invalid option or input of a loss raises an error that states what was found."""

import math
import operator

import pytest
import torch

from hgld import Hierarchy
from hgld.distributed import DistributedLoss
from hgld.errors import ConfigError, InputError
from hgld.losses import (
    CSL,
    HAPPIER,
    PNP,
    ROADMAP,
    BlackboxAP,
    CalibrationLoss,
    ClassWeighted,
    Composition,
    Contrastive,
    CrossBatchMemory,
    FastAP,
    Margin,
    MatryoshkaLoss,
    MultiGrain,
    NormSoftmax,
    SiMix,
    SmoothAP,
    SmoothRecall,
    SoftBinAP,
    SumOverLevels,
    SupAP,
    SupHAP,
    SupRecall,
    Triplet,
    blackbox_ap_loss,
    graded_ap_loss,
    pnp_loss,
    soft_bin_ap_loss,
    wrap,
)
from hgld.losses.kernels.objectives import SupStep
from tests.hgld.shared_losses import SHARED, WHOLE, model, step_input
from tests.rows import each_row, refused

EACH = {"reduction": "none"}
E, Y = torch.randn(3, 2), torch.zeros(3, 2, dtype=torch.int64)
TREE = Hierarchy.from_columns({"species": ["fox", "cat", "oak"], "kingdom": ["animal", "animal", "plant"]})
NOT_SUMMED = [
    *(CSL(TREE, 5), SiMix(SupHAP(normalize=False))),
    *(torch.compile(SupHAP(), backend="eager"), ROADMAP(level=1), SmoothAP(**EACH)),
]


test_invalid_options_are_refused = refused(
    operator.call,
    [
        (lambda: SupAP(tau=0.0), "tau is 0.0"),
        (lambda: SupAP(delta=math.inf), "delta is inf"),
        (lambda: SupAP(offset=-0.5), "offset is -0.5"),
        (lambda: SupHAP(level=1), "reads all levels"),
        (lambda: SupAP(method="bad"), "auto, pair, eager"),
        (lambda: SupAP(reduction="bad"), "mean, none"),
        (lambda: SupAP(level=-1), "level is -1"),
        (lambda: SupHAP(relevance="weighted_ap", weights=[1.0])(E, Y), "1 weights for 2"),
        (lambda: SupRecall(k=()), "one or more"),
        (lambda: SupRecall(k=(1, 2), temperature=(1.0,)), "temperature is (1.0,) for"),
        (lambda: graded_ap_loss(E.double(), Y + 1, 1, SupStep(), method="pair"), "float32"),
        (lambda: SoftBinAP(1), "bins is 1"),
        (lambda: SoftBinAP(low=1.0), "low is 1.0"),
        (lambda: BlackboxAP(0.0), "lambda_ is 0.0"),
        (lambda: BlackboxAP(margin=-1.0), "margin is -1.0"),
        (lambda: PNP(alpha=math.nan), "alpha is nan"),
        (lambda: CalibrationLoss(alpha=math.nan), "alpha is nan"),
        (lambda: Contrastive(1.0, variant="cosine"), "in [0, 1)"),
        (lambda: Triplet(reduction="nonzero"), "mean, none"),
        (lambda: Margin(0), "dim is 0"),
        (lambda: Margin(8, cutoff=1.5), "cutoff is 1.5"),
        (lambda: NormSoftmax(0, 2), "num_classes is 0"),
        (lambda: CSL(TREE.restrict(["species"]), 2), "margins are None for 1 levels"),
        (lambda: CSL(TREE, 2, scale=-1.0), "scale is -1.0"),
        (lambda: MultiGrain(3, 2, lambda_=1.5), "lambda_ is 1.5"),
        (lambda: HAPPIER(), "num_classes and dim"),
        (lambda: ROADMAP(lambda_=2), "lambda_ is 2"),
        (lambda: Composition(SupAP(**EACH), CalibrationLoss()), "reduction='none'"),
        (lambda: ROADMAP(**EACH).terms(E, Y), "reduction='none'"),
        (lambda: SiMix(SmoothRecall()), "normalize=False"),
        (lambda: ClassWeighted(SoftBinAP(), "balanced"), "reduction='mean'"),
        (lambda: ClassWeighted(SoftBinAP(**EACH), torch.tensor([1.0, -1.0])), "finite numbers >= 0"),
        (lambda: ClassWeighted(SoftBinAP(**EACH), "bad"), "weights are 'bad'"),
        (lambda: MatryoshkaLoss(SupAP(), (2, 1)), "ascending"),
        (lambda: MatryoshkaLoss(SupAP(), (1, 2), (1.0,)), "1 weights"),
        (lambda: MatryoshkaLoss(SupAP(), (1, 2), (1.0, 0.0)), "above 0"),
        (lambda: MatryoshkaLoss(SupAP(**EACH), (1, 2)), "one number per dimension"),
        (lambda: CrossBatchMemory(FastAP(), 0, 4), "size is 0"),
        (lambda: CrossBatchMemory(FastAP(), 8, 4, warmup=-1), "warmup is -1"),
        (lambda: CrossBatchMemory(FastAP(), 8, 4, weight=-1.0), "weight is -1.0"),
        (lambda: CrossBatchMemory(FastAP(**EACH), 8, 4), "each must be one number"),
        (lambda: DistributedLoss(SupAP(**EACH)), "need a loss that returns one number"),
        (SumOverLevels, "one binary loss"),
        (lambda: wrap(3), "wrap(NTXentLoss())"),  # pyright: ignore[reportArgumentType]
        (lambda: SumOverLevels(*[SmoothAP()] * 3)(E, Y), "3 losses for 2 levels"),
        *((lambda w=wrong: SumOverLevels(w), "one binary loss|one number per level") for wrong in NOT_SUMMED),
    ],
    ConfigError,
)
test_invalid_input_is_refused = refused(
    operator.call,
    [
        (lambda: SupAP()(E, Y, E, Y, Y[:, 0] + 3), "self_index runs to 3"),
        (lambda: SupAP(level=2)(E, Y), "2 levels and the loss reads level 2"),
        (lambda: SupAP()(E[0], Y), "expected (N, D)"),
        (lambda: SupAP()(E.numpy(), Y), "torch.as_tensor"),
        (lambda: SupAP()(E, Y[:2]), "one row of labels"),
        (lambda: SupAP()(E, Y.bool()), "dtype torch.bool for 3 embeddings; expected one row"),
        (lambda: SupAP()(E, Y, E), "got only ref_embeddings"),
        (lambda: SupAP()(E, Y, E[:, :1], Y), "2 dimensions and ref_embeddings 1"),
        (lambda: SupHAP()(E, Y, E, Y[:, :1]), "same levels"),
        (lambda: SupAP()(E, Y, None, None, Y[:, 0]), "got self_index without"),
        (lambda: SupAP()(E, Y, E, Y, Y), "self_index has shape"),
        (lambda: graded_ap_loss(E, Y + 2, 1, SupStep()), "grades run to 2"),
        (lambda: NormSoftmax(3, 2)(E, Y[:, 0] + 5), "label 5 has no proxy"),
        (lambda: NormSoftmax(3, 5)(E, Y), "embeddings have shape (3, 2)"),
        (lambda: ClassWeighted(SoftBinAP(**EACH), torch.ones(2))(E, Y + 2), "label 2 has no weight"),
        (lambda: MatryoshkaLoss(SupAP(), (2, 6))(E, Y), "have 2 dimensions"),
        (lambda: CrossBatchMemory(FastAP(), 8, 2).enqueue(E, Y), "the memory expects"),
        (lambda: wrap(torch.nn.Identity(), level=3)(E, Y), "reads level 3"),
        (lambda: DistributedLoss(SupAP())(E, ["a", "a", "b"]), "labels are list; expected a tensor"),
    ],
    InputError,
)


FUNCTIONS = [
    lambda s, g, left_out=None: graded_ap_loss(s, g, 1, SupStep(), left_out=left_out),
    soft_bin_ap_loss,
    blackbox_ap_loss,
    pnp_loss,
]


@each_row("function", FUNCTIONS)
def test_functions_of_scores_and_grades_refuse_other_shapes_and_dtypes(function):
    scores, grades = torch.rand(3, 4), torch.ones(3, 4, dtype=torch.int64)
    for wrong in ((scores, grades[:2]), (scores[0], grades[0]), (scores.long(), grades), (scores, grades.float())):
        with pytest.raises(InputError, match=r"\(Q, G\) tables|grades have dtype"):
            function(*wrong)
    with pytest.raises(InputError, match="left_out has shape"):
        function(scores, grades, left_out=torch.zeros(2, dtype=torch.int64))


@each_row("function", FUNCTIONS)
def test_functions_of_scores_and_grades_compute_in_float32(function):
    torch.manual_seed(0)
    scores, grades = torch.rand(3, 40).half(), torch.randint(0, 2, (3, 40))
    values, _ = function(scores, grades)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, function(scores.float(), grades)[0], rtol=0, atol=0)


@each_row("name", [*SHARED, *WHOLE])
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
        is_finite = bool(value.isfinite() and embeddings.grad.isfinite().all())
        assert is_finite is (wrong is None), (dtype, wrong)
