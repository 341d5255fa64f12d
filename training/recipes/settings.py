"""Datasets as the papers train on them; what a setting does not say is the default of ``training/config.py``.

Rates, weight decays, epochs and samplers of HAPPIER's settings are those of the authors' published configurations
(SupRank and HAPPIER on GitHub): the backbone is frozen for the first five epochs, the head moves at twice its rate and
the proxies, which are normalised and so indifferent to their length, at a rate of 10. Their cosine schedules end a
little above zero (1e-6 on iNaturalist, 0.1 for the proxies), ours at zero; their SGD on DyML has Nesterov's momentum,
ours the plain one.
"""

from training.config import TrainConfig
from training.config_files import with_fields
from training.recipes.recipe import Setting

_ONE_GPU = "one GPU, as the authors' commands have it; --chunk 64 where its memory is short"

_RANK_LOSSES = with_fields(
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

SOP = Setting(
    "sop",
    "Stanford Online Products",
    _ONE_GPU,
    with_fields(
        _RANK_LOSSES,
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
_INAT = with_fields(_RANK_LOSSES, {"metrics": ("R@1", "R@4", "R@16", "R@32", "AP", "H-AP", "NDCG", "ASI")})
INAT_BASE = Setting("inat-base", "iNaturalist 2018 with species and super-category", _ONE_GPU, _INAT)
INAT_FULL = Setting("inat-full", "iNaturalist 2018 with the seven levels of its taxonomy", _ONE_GPU, _INAT)
CUB = Setting(
    "cub",
    "CUB-200-2011 at 256 px",
    _ONE_GPU,
    with_fields(
        _RANK_LOSSES,
        {
            "pooling": "max",
            "size": 256,
            "resize": 292,
            "batch_size": 128,
            "lr": 1e-6,
            "lr_head": 2e-6,
            "epochs": 200,
            "metrics": ("R@1", "R@2", "R@4", "R@8", "mAP@R", "AP", "H-AP", "NDCG", "ASI"),
        },
    ),
)

_DYML = with_fields(
    _RANK_LOSSES,
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
DYML_VEHICLE = Setting("dyml-vehicle", "DyML-Vehicle, from scratch", _ONE_GPU, _DYML)
DYML_ANIMAL = Setting("dyml-animal", "DyML-Animal, from scratch", _ONE_GPU, _DYML)
DYML_PRODUCT = Setting(
    "dyml-product",
    "DyML-Product",
    _ONE_GPU,
    with_fields(
        _DYML,
        {
            "pretrained": "default",
            "freeze_batch_norm": True,
            "sync_batch_norm": False,
            "lr": 0.01,
            "lr_head": 0.02,
            "lr_proxies": 0.01,
            "frozen_epochs": 5,
            "epochs": 20,
            "evaluate_on": ("test",),
        },
    ),
)

_AP_LOSSES = with_fields(
    TrainConfig(),
    {
        "backbone": "torchvision:resnet50",
        "pooling": "avg",
        "layer_norm": False,
        "freeze_batch_norm": True,
        "dim": 512,
        "batch_size": 384,
        "images_per_class": 4,
        "optimizer": "adam",
        "lr": 1e-5,
        "lr_head": 1e-5,
        "weight_decay": 4e-4,
        "schedule": "constant",
        "epochs": 400,
        "evaluate_every": 5,
        "amp": "bf16",
        "best_by": "R@1",
    },
)
_AP_HARDWARE = "one or more GPUs that hold 384 images of a ResNet-50, or --chunk 96 on one"
SOP_384 = Setting(
    "sop",
    "Stanford Online Products in batches of 384",
    _AP_HARDWARE,
    with_fields(_AP_LOSSES, {"metrics": ("R@1", "R@10", "R@100", "AP")}),
)
INAT_384 = Setting(
    "inat-base",
    "iNaturalist 2018 in batches of 384",
    _AP_HARDWARE,
    with_fields(_AP_LOSSES, {"lr_head": 2e-5, "metrics": ("R@1", "R@4", "R@16", "R@32", "AP")}),
)
VEHICLEID = Setting(
    "vehicleid",
    "PKU VehicleID in batches of 384; test holds the large list, which holds the small and medium ones",
    _AP_HARDWARE,
    with_fields(_AP_LOSSES, {"metrics": ("R@1", "R@5", "AP")}),
)

IMAGENET = Setting(
    "manifest",
    "ImageNet-1k, or any classes without a hierarchy, by build-shards manifest; split val is evaluated",
    "several GPUs (the authors say that only this step gains from them)",
    with_fields(
        TrainConfig(),
        {
            "backbone": "torchvision:resnet50",
            "pretrained": "none",
            "pooling": "gem",
            "gem_p": 3.0,
            "gem_learned": False,
            "layer_norm": False,
            "dim": 0,
            "crop_min": 0.08,
            "jitter": 0.3,
            "lighting": 0.1,
            "batch_size": 510,
            "sampler": "repeated-augmentation",
            "repeats": 3,
            "optimizer": "sgd",
            "lr": 0.2,
            "lr_head": 0.2,
            "lr_proxies": 0.1,
            "weight_decay": 1e-4,
            "schedule": "step",
            "milestones": (30, 60, 90),
            "epochs": 120,
            "amp": "bf16",
            "evaluate_on": ("val",),
            "evaluate_every": 10,
            "metrics": ("R@1", "R@5", "AP"),
            "best_by": "R@1",
        },
    ),
)

LANDMARKS_CLEAN = Setting(
    "landmarks-clean",
    "Landmarks-clean at 800 px; --evaluate-on val,ROXFORD:query/gallery for revisited Oxford beside it",
    "one GPU of any size: 4,096 images of 800 px pass it in chunks of 16",
    with_fields(
        TrainConfig(),
        {
            "backbone": "torchvision:resnet101",
            "pooling": "gem",
            "gem_p": 3.0,
            "gem_learned": True,
            "layer_norm": False,
            "dim": 2048,
            "size": 800,
            "resize": 800,
            "batch_size": 4096,
            "chunk": 16,
            "sampler": "shuffled",
            "optimizer": "adam",
            "lr": 1e-4,
            "lr_head": 1e-4,
            "weight_decay": 1e-6,
            "schedule": "linear",
            "epochs": 20,
            "steps_per_epoch": 10,
            "amp": "bf16",
            "evaluate_on": ("val",),
            "evaluate_every": 5,
            "metrics": ("R@1", "R@10", "AP"),
            "best_by": "AP",
        },
    ),
)

H_GLDV2 = Setting(
    "h-gldv2",
    "Google Landmarks v2 with hierarchical labels",
    "a node of GPUs; --chunk 64 on one",
    with_fields(
        _RANK_LOSSES,
        {
            "backbone": "torchvision:resnet101",
            "pooling": "gem",
            "projection": "pca",
            "lr_head": 1e-5,
            "weight_decay": 1e-4,
            "frozen_epochs": 0,
            "epochs": 10,
            "steps_per_epoch": 5500,
            "evaluate_on": ("query/gallery",),
            "evaluate_every": 5,
            "metrics": ("mAP@100", "R@1", "AP", "H-AP", "NDCG", "ASI"),
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
        "lr": 1e-3,
        "lr_head": 1e-3,
        "lr_proxies": 1e-2,
        "epochs": 20,
        "evaluate_every": 5,
        "workers": 1,
    },
)
