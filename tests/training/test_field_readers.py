"""Options without effect in a run are rejected, and accepted in runs that read them."""

import pytest

from hgld.errors import ConfigError
from hgld.training.config import TrainConfig, flag_of, flat, with_fields
from hgld.training.config_checks import READERS, check_config

PAIR = {"loss": "ROADMAP"}
MEMORY = {"loss": "SupAP", "memory": 64}
STEP = {"schedule": "step", "milestones": (3, 9)}
VIEWS = {"loss": "MultiGrain", "sampler": "repeated-augmentation"}
UNIFORM = {"loss": "MultiGrain", "sampler": "shuffled"}
WEIGHTED = {"loss": "SoftBinAP", "class_weights": True}
BLACKBOX = {"loss": "BlackboxAP"}
# Of every field of the table: a value, what reads it, and what does not.
CASES = {
    "gem_p": (5.0, {"pooling": "gem"}, {"pooling": "avg"}),
    "gem_learned": (False, {"pooling": "gem"}, {"pooling": "max"}),
    "classifier": ("pretrained", {**UNIFORM, "lambda_": 1.0}, {"loss": "NormSoftmax"}),
    "projection": ("pca", {"dim": 8}, {"dim": 0}),
    "coverage": ("classes", {}, {"stream": True}),
    "merge_classes": (3, {}, {"stream": True}),
    "images_per_class": (8, {"sampler": "hierarchical-pk"}, {"sampler": "shuffled"}),
    "super_level": ("genus", {"sampler": "hierarchical-pk"}, {}),
    "super_classes": (4, {"sampler": "hierarchical-pk"}, {}),
    "repeats": (4, {"sampler": "repeated-augmentation"}, {}),
    "alpha": (3.0, {}, {"relevance": "exponential"}),
    "pnp_b": (2.0, {"loss": "PNP", "pnp": "Ib"}, {"loss": "PNP", "pnp": "O"}),
    "pair_positive": (0.8, PAIR, {"loss": "HAPPIER"}),
    "pair_negative": (0.5, {"loss": "CalibrationLoss"}, {**PAIR, "decomposability": "proxy"}),
    "proxy_temperature": (0.1, {"loss": "NormSoftmax"}, PAIR),
    "memory_from_epoch": (1, MEMORY, {"loss": "SupAP"}),
    "lr_floor": (1e-6, {}, {"schedule": "constant"}),
    "lr_floor_proxies": (1e-6, {}, {"schedule": "constant"}),
    "lr_beta": (0.1, {"loss": "Margin"}, {"loss": "NormSoftmax"}),
    "weight_decay_proxies": (0.1, {"loss": "NormSoftmax"}, {"loss": "Margin"}),
    "blend": (0.5, {"evaluate_start": True}, {"evaluate_start": True, "ema": 0.9}),
    "nesterov": (True, {"optimizer": "sgd"}, {}),
    "milestones": ((3,), {"schedule": "step"}, {"schedule": "cosine"}),
    "gamma": (0.5, {"schedule": "step", "milestones": (3,)}, {"schedule": "constant"}),
}


def test_every_conditional_field_has_a_test_case():
    assert CASES.keys() == READERS.keys()


@pytest.mark.parametrize("field", CASES)
def test_value_without_effect_is_rejected_with_a_hint(field):
    value, read, unread = CASES[field]
    check_config(with_fields(TrainConfig(), {**read, field: value}))
    check_config(with_fields(TrainConfig(), unread))
    said = rf"^{flag_of(field)} is .*, but only .* reads? it; .*leave it at "
    with pytest.raises(ConfigError, match=said) as refused:
        check_config(with_fields(TrainConfig(), {**unread, field: value}))
    assert str(refused.value).endswith(f"at {flat(TrainConfig())[field]!r}.")


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ({"frozen_epochs": 2, "epochs": 2}, {"frozen_epochs": 3, "epochs": 2}, "never move; lower it, to 2 where"),
        ({**MEMORY, "epochs": 6}, {**MEMORY, "epochs": 5}, "memory would never be used"),
        ({**STEP, "gamma": 1.0}, {**STEP, "gamma": -1.0}, "gamma is -1.0; expected more than 0"),
        ({**STEP, "gamma": 0.5}, {**STEP, "gamma": 1.5}, "gamma is 1.5; expected 1 at most"),
        ({**VIEWS, "repeats": 2}, {**VIEWS, "repeats": 1}, "repeats is 1, so that no image has another view"),
        ({**VIEWS, "repeats": 1, "lambda_": 1.0}, {**VIEWS, "repeats": 1}, "or --lambda 1 for the classification"),
        ({**UNIFORM, "lambda_": 1.0}, UNIFORM, "sampler shuffled gives no views of one image"),
    ],
)
def test_options_that_could_never_take_effect_are_rejected(good, bad, message):
    check_config(with_fields(TrainConfig(), good))
    with pytest.raises(ConfigError, match=message):
        check_config(with_fields(TrainConfig(), bad))


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ({**WEIGHTED, "sampler": "shuffled"}, WEIGHTED, "would outweigh the others. Take --sampler shuffled"),
        (
            {**WEIGHTED, "sampler": "repeated-augmentation", "repeats": 2},
            {**WEIGHTED, "sampler": "class-balanced"},
            "sampler class-balanced draws by class already",
        ),
        ({**BLACKBOX, "amp": "bf16"}, {**BLACKBOX, "amp": "fp16"}, "would multiply --blackbox-lambda.*take --amp bf16"),
        ({"loss": "SmoothAP", "amp": "fp16"}, {**BLACKBOX, "amp": "fp16"}, "take --amp bf16"),
    ],
)
def test_options_with_a_changed_meaning_are_rejected(good, bad, message):
    check_config(with_fields(TrainConfig(), good))
    with pytest.raises(ConfigError, match=message):
        check_config(with_fields(TrainConfig(), bad))


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"loss": "SupAP"}, True),
        ({"loss": "Margin"}, True),
        (PAIR, True),
        ({"loss": "Triplet", "sampler": "hierarchical-pk"}, True),
        ({"loss": "SupAP", "sum_levels": True}, False),  # positives of coarser levels
        ({"loss": "SupAP", "level": "genus"}, False),
        ({"loss": "SupHAP"}, False),
        ({"loss": "SupAP", "memory": 64}, False),  # positives of earlier batches
        ({"loss": "NormSoftmax"}, False),  # a proxy is a positive
        ({"loss": "CSL"}, False),
        ({"loss": "RODRecall"}, False),
    ],
)
def test_single_image_per_class_is_rejected_if_loss_needs_pairs(fields, refused):
    config = with_fields(TrainConfig(), {**fields, "images_per_class": 1})
    if refused:
        with pytest.raises(ConfigError, match="--images-per-class is 1, so that no image has a positive"):
            check_config(config)
    else:
        check_config(config)
