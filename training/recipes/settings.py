"""Datasets as HAPPIER's papers train on them; what a setting does not say is the default of ``training/config.py``.

Source: the authors' published configurations, ``suprank/config`` of elias-ramzi/SupRank (99041e8) and
``happier/config`` of elias-ramzi/HAPPIER, with the commands of their READMEs: ``optimizer/{sop,inat,cub,dyml,
dyml_product}.yaml``, ``dataset/*.yaml``, ``model/*.yaml``, ``loss/*.yaml``. The backbone is frozen for the first five
epochs (``warmup_step=5``), the head moves at twice its rate and the proxies, which are normalised and so indifferent to
their length, at a rate of 10; on DyML they move as the head does.

What differs: their cosine schedules end a little above zero (1e-6 on iNaturalist, 0.1 for the proxies), ours at zero;
their SGD on DyML has Nesterov's momentum, ours the plain one; their surrogate of the step function jumps at delta to a
constant (``offset``: 1.44, on iNaturalist 1.0), ours is continuous there, as the paper has it.
"""

from hgld.training.config import TrainConfig, with_fields
from hgld.training.recipes.recipe import Setting

_ONE_GPU = "one GPU (commands in the README of elias-ramzi/{}); --chunk 64 where its memory is short"
_SUPRANK = _ONE_GPU.format("SupRank")

RANK_LOSSES = with_fields(
    TrainConfig(),
    {
        "backbone": "torchvision:resnet50",
        "pooling": "avg",
        "layer_norm": True,
        "freeze_batch_norm": True,
        "dim": 512,
        "batch_size": 256,
        "images_per_class": 4,
        "optimizer": "adam",
        "lr": 1e-5,
        "lr_head": 2e-5,
        "lr_proxies": 10.0,
        "weight_decay": 4e-4,
        "schedule": "cosine",
        "frozen_epochs": 5,
        "epochs": 100,
        "amp": "bf16",
    },
)
"""What the settings of HAPPIER's papers have in common."""

SOP = Setting(
    "sop",
    "Stanford Online Products",
    _SUPRANK,
    with_fields(
        RANK_LOSSES,
        {
            "sampler": "hierarchical-pk",
            "super_classes": 2,
            "lr": 5e-5,
            "lr_head": 1e-4,
            "weight_decay": 1e-4,
            "metrics": ("R@1", "R@10", "R@100", "AP", "H-AP", "NDCG", "ASI"),
        },
    ),
)
_INAT = with_fields(RANK_LOSSES, {"metrics": ("R@1", "R@4", "R@16", "R@32", "AP", "H-AP", "NDCG", "ASI")})
INAT_BASE = Setting("inat-base", "iNaturalist 2018 with species and super-category", _SUPRANK, _INAT)
INAT_FULL = Setting("inat-full", "iNaturalist 2018 with the seven levels of its taxonomy", _SUPRANK, _INAT)
CUB = Setting(
    "cub",
    "CUB-200-2011 at 256 px",
    _ONE_GPU.format("ROADMAP"),
    with_fields(
        RANK_LOSSES,
        {
            "pooling": "max",
            "size": 256,
            "resize": 288,
            "lr": 1e-6,
            "lr_head": 2e-6,
            "epochs": 200,
            "metrics": ("R@1", "R@2", "R@4", "R@8", "mAP@R", "AP", "H-AP", "NDCG", "ASI"),
        },
    ),
)

_DYML = with_fields(
    RANK_LOSSES,
    {
        "backbone": "torchvision:resnet34",
        "pretrained": "none",
        "freeze_batch_norm": False,
        "optimizer": "sgd",
        "lr": 0.1,
        "lr_head": 0.1,
        "lr_proxies": 0.1,
        "weight_decay": 1e-4,
        "frozen_epochs": 0,
        "sync_batch_norm": True,
        "evaluate_on": ("query_fine/gallery_fine", "query_middle/gallery_middle", "query_coarse/gallery_coarse"),
        "metrics": ("R@1", "R@10", "R@20", "AP", "ASI"),
        "best_by": "AP",
    },
)
_DYML_GPU = "one GPU (commands in the README of elias-ramzi/SupRank); batch norm learns, so no --chunk"
DYML_VEHICLE = Setting("dyml-vehicle", "DyML-Vehicle, from scratch", _DYML_GPU, _DYML)
DYML_ANIMAL = Setting("dyml-animal", "DyML-Animal, from scratch", _DYML_GPU, _DYML)
DYML_PRODUCT = Setting(
    "dyml-product",
    "DyML-Product",
    _SUPRANK,
    with_fields(
        _DYML,
        {
            "pretrained": "default",
            "freeze_batch_norm": True,
            "sync_batch_norm": False,
            "lr": 0.01,
            "lr_head": 0.02,
            "lr_proxies": 0.02,
            "frozen_epochs": 5,
            "epochs": 20,
            "evaluate_on": ("test",),
        },
    ),
)

SMALL = with_fields(
    TrainConfig(),
    {
        "backbone": "small",
        "pretrained": "none",
        "pooling": "avg",
        "dim": 128,
        "size": 48,
        "resize": 48,
        "crop_min": 0.5,
        "batch_size": 64,
        "images_per_class": 4,
        "lr": 2e-3,
        "lr_head": 2e-3,
        "lr_proxies": 1e-2,
        "warmup_steps": 30,  # without, the first steps of Adam at this rate end in one vector for all images
        "epochs": 20,
        "evaluate_every": 5,
        "workers": 1,
    },
)
