"""The table of recipes: losses, and the settings that each is trained in, by family.

A recipe is named LOSS-SETTING. A new one is one line: another setting in a row, or a row for a loss of :data:`LOSSES`.
The figures that a paper reports for it stand in ``published``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hgld.training.recipes import settings as on
from hgld.training.recipes.published import published_of
from hgld.training.recipes.recipe import Recipe, Setting

_PAIR, _PROXY = ({"loss": "ROADMAP", "decomposability": second} for second in ("pair", "proxy"))

LOSSES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "happier": (
        "HAPPIER on {}: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1.",
        {"loss": "HAPPIER"},
    ),
    "happier-f": ("HAPPIER_F on {}: alpha {alpha:g} weighs the finest level more.", {"loss": "HAPPIER"}),
    "sup-ndcg": ("Sup-NDCG on {}: NDCG's upper bound alone.", {"loss": "SupNDCG"}),
    "rod-ndcg": ("ROD-NDCG on {}: NDCG's upper bound and a proxy loss.", {"loss": "RODNDCG"}),
    "sup-h-ap": ("Sup-H-AP alone on {}: HAPPIER without its proxy loss.", {"loss": "SupHAP"}),
    "sigmoid-h-ap": ("H-AP on {} by a sigmoid in place of the upper bound.", {"loss": "SmoothHAP"}),
    "weighted-ap": (
        "Weighted AP on {}: HAPPIER with the relevance under which H-AP is the weighted mean of the levels' APs.",
        {"loss": "HAPPIER", "relevance": "weighted_ap"},
    ),
    "sup-ap": ("Sup-AP on {}: AP's upper bound alone.", {"loss": "SupAP"}),
    "roadmap-pair": ("ROADMAP on {} with the pair loss, as it was first published.", _PAIR),
    "roadmap-proxy": ("ROADMAP on {} with the proxy loss, as the later paper mostly reports it.", _PROXY),
    "roadmap-xbm": (
        "ROADMAP on {} with GeM and a memory of the whole training set from epoch 5 on.",
        _PROXY | {"pooling": "gem", "memory": -1},
    ),
    "roadmap-deit": ("ROADMAP on {} with DeiT-S and its own 384 dimensions.", _PAIR),
    "roadmap-vit": ("ROADMAP on {} with ViT-B projected to 512 dimensions.", _PROXY),
    "smooth-recall": ("Smooth-R@k on {}: ranks by a sigmoid.", {"loss": "SmoothRecall"}),
    "smooth-recall-large": ("Smooth-R@k on {} in batches of 4,000, without SiMix.", {"loss": "SmoothRecall"}),
    "smooth-recall-simix": (
        "Smooth-R@k on {} in batches of 4,000 with SiMix.",
        {"loss": "SmoothRecall", "simix": True},
    ),
    "sup-recall": ("Sup-R@k on {}: ranks by their upper bound.", {"loss": "SupRecall"}),
    "sup-recall-simix": ("Sup-R@k on {} with SiMix.", {"loss": "SupRecall", "simix": True}),
    "rod-recall": ("ROD-R@k on {}: recall's upper bound and a proxy loss.", {"loss": "RODRecall", "lambda_": 0.5}),
    "rod-recall-simix": ("ROD-R@k on {} with SiMix.", {"loss": "RODRecall", "lambda_": 0.5, "simix": True}),
    "smooth-ap": ("Smooth-AP on {}.", {"loss": "SmoothAP"}),
    "softbin-ap": ("SoftBin-AP on {} with 20 bins.", {"loss": "SoftBinAP"}),
    "fast-ap": ("FastAP on {} with 20 bins.", {"loss": "FastAP"}),
    "blackbox-ap": ("Blackbox AP on {}, lambda 4 and margin 0.02.", {"loss": "BlackboxAP"}),
    "pnp-o": ("PNP-O on {}: the number of negatives before a positive.", {"loss": "PNP", "pnp": "O"}),
    "pnp-iu": ("PNP-I_u on {}: the slope grows without bound.", {"loss": "PNP", "pnp": "Iu"}),
    "pnp-ib": ("PNP-I_b on {}: the slope grows up to 1 / b.", {"loss": "PNP", "pnp": "Ib", "pnp_b": 4.0}),
    "pnp-ds": ("PNP-D_s on {}: the slope falls slowly.", {"loss": "PNP", "pnp": "Ds"}),
    "pnp-dq": (
        "PNP-D_q on {}: the slope falls quickly; the paper's best.",
        {"loss": "PNP", "pnp": "Dq", "alpha": 4.0},
    ),
    "norm-softmax": ("NormSoftmax on {}'s finest level.", {"loss": "NormSoftmax"}),
    "norm-softmax-sigma": ("NormSoftmax on {}, summed over the levels.", {"loss": "NormSoftmax", "sum_levels": True}),
    "proxy-nca": (
        "ProxyNCA++ on {}'s finest level, temperature 1/9.",
        {"loss": "ProxyNCApp", "proxy_temperature": 1 / 9},
    ),
    "proxy-nca-sigma": (
        "ProxyNCA++ on {}, summed over the levels.",
        {"loss": "ProxyNCApp", "proxy_temperature": 1 / 9, "sum_levels": True},
    ),
    "csl": ("Cross-scale learning on {}, scale 32 and the margins of its number of levels.", {"loss": "CSL"}),
    "triplet": ("Triplets with semi-hard negatives (SH) on {}'s finest level.", {"loss": "Triplet", "margin": 0.1}),
    "triplet-sigma": (
        "Triplets with semi-hard negatives (SH) on {}, summed over the levels.",
        {"loss": "Triplet", "margin": 0.1, "sum_levels": True},
    ),
    "xbm": (
        "Contrastive pairs on {} over a memory of the whole training set.",
        {"loss": "Contrastive", "contrastive": "cosine", "margin": 0.5, "memory": -1},
    ),
    "multigrain": (
        "MultiGrain: classification and retrieval alike, GeM with p = 3.",
        {"loss": "MultiGrain", "lambda_": 0.5},
    ),
    "multigrain-avg": (
        "MultiGrain with average pooling (p = 1).",
        {"loss": "MultiGrain", "lambda_": 0.5, "gem_p": 1.0},
    ),
    "multigrain-classes": (
        "MultiGrain's classification term alone, GeM with p = 3.",
        {"loss": "MultiGrain", "lambda_": 1.0},
    ),
    "multigrain-classes-avg": (
        "MultiGrain's classification term alone, with average pooling (p = 1).",
        {"loss": "MultiGrain", "lambda_": 1.0, "gem_p": 1.0},
    ),
    "small": ("HAPPIER from scratch on {}, 48 px.", {"loss": "HAPPIER"}),
}
"""Losses by the first part of a recipe's name: the recipe's line, and the fields that a setting changes for it."""


_HAPPIER_5 = "HAPPIER on {}: both terms weigh the same, as in the authors' command (loss HAPPIER_5)."
_ROADMAP_60_000 = "ROADMAP on {} with GeM and a memory of 60,000 items from epoch 5 on."
_LISTWISE = "Listwise AP on {}: SoftBin-AP, 20 bins, batches of 4,096, classes weighted alike, 200 steps."


@dataclass(frozen=True)
class Family:
    """Recipes of losses of one kind.

    Attributes:
        title: of the family.
        text: the papers, and the settings that are not as published.
        recipes: in the order of the papers' tables.
    """

    title: str
    text: str
    recipes: tuple[Recipe, ...]


def _row(loss: str, *settings: Setting, line: str = "", **fields: Any) -> tuple[Recipe, ...]:
    """Return the recipes of a loss in several settings; ``fields`` are changed in these settings alone."""
    usual, own = LOSSES[loss]
    recipes = []
    for setting in settings:
        suffix = setting.dataset if setting.suffix is None else setting.suffix
        name = f"{loss}-{suffix}" if suffix else loss
        told = (line or usual).format(setting.short, **fields)
        recipes.append(Recipe(name, told, setting, {**own, **fields}, published_of(name)))
    return tuple(recipes)


FAMILIES = (
    Family(
        "Losses over the whole hierarchy: HAPPIER, ROD-NDCG and their parts",
        """
Ramzi et al.: "Hierarchical Average Precision Training for Pertinent Image Retrieval", ECCV 2022, arXiv:2207.04873, and
"Optimization of Rank Losses for Image Retrieval", arXiv:2309.08250. Of their tables only what Papers with Code lists
was read: the fine R@1 of HAPPIER and HAPPIER_F, and the mean AP on DyML. Their H-AP, ASI and NDCG are not confirmed.
""",
        (
            *_row("happier", on.SOP, on.INAT_BASE, on.INAT_FULL, on.CUB, on.DYML_VEHICLE, on.DYML_PRODUCT),
            *_row("happier", on.DYML_ANIMAL, line=_HAPPIER_5, lambda_=0.5),
            *_row("happier-f", on.SOP, alpha=5.0),
            *_row("happier-f", on.INAT_BASE, on.INAT_FULL, alpha=3.0),
            *_row("sup-ndcg", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("rod-ndcg", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("rod-ndcg", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("sup-h-ap", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("sigmoid-h-ap", on.SOP, on.INAT_BASE),
            *_row("weighted-ap", on.SOP, on.INAT_BASE),
        ),
    ),
    Family(
        "Average precision by its upper bound: Sup-AP, and ROADMAP with the pair and the proxy loss",
        """
Ramzi et al.: "Robust and Decomposable Average Precision for Image Retrieval", NeurIPS 2021, arXiv:2110.01445, and
arXiv:2309.08250. With the pair loss the settings are those of the commands in the README of elias-ramzi/ROADMAP, which
give its best rows: on SOP 128 images of 256 px, on iNaturalist batches of 384, no frozen epochs, layer norm on CUB
alone, and DeiT under AdamW. The rates of its ResNet are not among them and are those of the later paper, as is
everything with the proxy loss.
""",
        (
            *_row("sup-ap", on.SOP, on.INAT_BASE, on.CUB),
            *_row("roadmap-pair", on.SOP_PAIR, on.INAT_PAIR, on.CUB_PAIR),
            *_row("roadmap-proxy", on.SOP, on.INAT_BASE, on.CUB),
            *_row("roadmap-xbm", on.SOP),
            *_row("roadmap-xbm", on.INAT_BASE, line=_ROADMAP_60_000, memory=60_000),
            *_row("roadmap-deit", on.SOP_DEIT, on.INAT_DEIT, on.CUB_DEIT),
            *_row("roadmap-vit", on.SOP_VIT, on.INAT_VIT, on.CUB_VIT),
        ),
    ),
    Family(
        "Recall at k: by a sigmoid, by its upper bound, with a proxy loss, with virtual items (SiMix)",
        """
Patel, Tolias and Matas: "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, arXiv:2108.11179,
whose batches of 4,000 pass the model in chunks; Ramzi et al., arXiv:2309.08250. The second temperature is the paper's,
1; the released code has k itself. ROD-R@k weighs both terms the same, as ``loss/ROADRatk_*.yaml`` of
elias-ramzi/SupRank, which name no weights, so that ``suprank/getter.py`` takes equal ones.
""",
        (
            *_row("smooth-recall", on.SOP, on.INAT_BASE, on.CUB),
            *_row("sup-recall", on.SOP, on.INAT_BASE, on.CUB),
            *_row("rod-recall", on.SOP, on.INAT_BASE, on.CUB),
            *_row("smooth-recall-large", on.SOP_4000, on.INAT_4000, on.VEHICLEID_4000),
            *_row("smooth-recall-simix", on.SOP_4000, on.INAT_4000, on.VEHICLEID_4000),
            *_row("sup-recall-simix", on.SOP, on.INAT_BASE),
            *_row("rod-recall-simix", on.SOP, on.INAT_BASE),
        ),
    ),
    Family(
        "Average precision by other ways: Smooth-AP, SoftBin-AP, FastAP, Blackbox AP and the five PNP losses",
        """
Brown et al.: "Smooth-AP", ECCV 2020, arXiv:2007.12163; Cakir et al.: "Deep Metric Learning to Rank" (FastAP), CVPR
2019; Rolinek et al.: "Optimizing Rank-Based Metrics With Blackbox Differentiation", CVPR 2020; Li et al.: "Rethinking
the Optimization of Average Precision" (PNP), AAAI 2022, arXiv:2102.04640, whose released command is D_q with alpha 4.
""",
        (
            *_row("smooth-ap", on.SOP_384, on.INAT_384, on.VEHICLEID, on.CUB),
            *_row("softbin-ap", on.SOP, on.INAT_BASE, on.CUB),
            *_row("fast-ap", on.SOP, on.INAT_BASE, on.CUB, on.INAT_384_COMPARED, on.VEHICLEID),
            *_row("blackbox-ap", on.SOP, on.INAT_BASE, on.CUB, on.INAT_384_COMPARED, on.VEHICLEID),
            *_row("pnp-o", on.SOP_384, on.VEHICLEID, on.INAT_384),
            *_row("pnp-iu", on.SOP_384, on.VEHICLEID, on.INAT_384),
            *_row("pnp-ib", on.SOP_384, on.INAT_384),
            *_row("pnp-ib", on.VEHICLEID, pnp_b=1.0),
            *_row("pnp-ds", on.SOP_384, on.VEHICLEID, on.INAT_384),
            *_row("pnp-dq", on.SOP_384, on.VEHICLEID, on.INAT_384),
        ),
    ),
    Family(
        "Proxy and tuple losses: NormSoftmax, ProxyNCA++, CSL, triplets, pairs over a memory; sigma: summed over the "
        "levels",
        """
Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning" (NormSoftmax), BMVC 2019, arXiv:1811.12649;
Teh et al., "ProxyNCA++", ECCV 2020, arXiv:2004.01113; Sun et al., "Dynamic Metric Learning" (CSL), CVPR 2021,
arXiv:2103.11781; Wang et al., "Cross-Batch Memory", CVPR 2020, arXiv:1912.06798. They are baselines of HAPPIER's
papers, in whose setting they stand here, with the options of ``suprank/config/loss`` of elias-ramzi/SupRank; the
triplets' margin of 0.05 in cosine is 0.1 in squared distance (there an anchor has its nearest positive, here all of
them). XBM's pairs are those of ``xbm.yaml`` and ``memory/*.yaml``, the margin a cosine; there the batch's and the
memory's losses are averaged, here they are added, and there the memory, read from the fifth epoch on, is filled from
the first step, here it is empty until it is read, after the fifth. Figures of their own papers are of other settings,
and the recipes say so.
""",
        (
            *_row("norm-softmax", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("norm-softmax", on.CUB, lr_proxies=400.0),
            *_row("norm-softmax", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("norm-softmax-sigma", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("norm-softmax-sigma", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("proxy-nca", on.SOP_SLOW, on.INAT_BASE_SLOW, on.INAT_FULL_SLOW, on.CUB_SLOW),
            *_row("proxy-nca-sigma", on.SOP_SLOW, on.INAT_BASE_SLOW, on.INAT_FULL_SLOW),
            *_row("csl", on.SOP, on.INAT_BASE_SLOW, on.INAT_FULL_SLOW),
            *_row("csl", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("triplet", on.SOP, on.INAT_BASE, on.INAT_FULL, on.CUB),
            *_row("triplet", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("triplet-sigma", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("triplet-sigma", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("xbm", on.SOP, on.CUB),
            *_row("xbm", on.INAT_BASE, line="Contrastive pairs on {} over a memory of 60,000 items.", memory=60_000),
        ),
    ),
    Family(
        "MultiGrain: one embedding for classes and instances, views of an image as positives",
        """
Berman et al.: "MultiGrain: a unified image embedding for classes and instances", 2019, arXiv:1902.05509. Top-1 is the
classifier's, which hgld does not evaluate; R@1 stands for its retrieval side.
""",
        (
            *_row("multigrain", on.IMAGENET),
            *_row("multigrain-avg", on.IMAGENET),
            *_row("multigrain-classes", on.IMAGENET),
            *_row("multigrain-classes-avg", on.IMAGENET),
        ),
    ),
    Family(
        "Landmarks: listwise AP on Landmarks-clean, and the losses that are compared on H-GLDv2",
        """
Revaud et al.: "Learning with Average Precision: Training Image Retrieval with a Listwise Loss", ICCV 2019,
arXiv:1906.07589; Ramzi et al., arXiv:2309.08250. The proxies of CSL move at 10 (``csl_gldv2_L3.yaml`` of
elias-ramzi/SupRank).
""",
        (
            *_row("softbin-ap", on.LANDMARKS_CLEAN, line=_LISTWISE, class_weights=True),
            *_row("happier", on.H_GLDV2),
            *_row("rod-ndcg", on.H_GLDV2),
            *_row("roadmap-proxy", on.H_GLDV2),
            *_row("rod-recall", on.H_GLDV2),
            *_row("smooth-ap", on.H_GLDV2),
            *_row("softbin-ap", on.H_GLDV2),
            *_row("smooth-recall", on.H_GLDV2),
            *_row("norm-softmax", on.H_GLDV2),
            *_row("norm-softmax-sigma", on.H_GLDV2),
            *_row("csl", on.H_GLDV2, lr_proxies=10.0),
        ),
    ),
    Family(
        "Small runs on real images from scratch, for a laptop",
        """
A small conv net at 48 px, judged on classes it has not seen. Any other loss is a flag away: ``hgld train small-grocery
--loss NormSoftmax ...``.
""",
        _row("small", on.GROCERY, on.WASHINGTON, on.OMNIGLOT),
    ),
)
"""All recipes, by family."""
