"""Recipes joined to the rows that papers print for them; the figures themselves stand in :mod:`hgld.published` alone.

A row is named by its table, its method and what else tells it from others; the dataset is the recipe's own unless
another is named. A recipe without a row says so, and why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from hgld.published.results import PAPERS, PublishedValue, published_values


@dataclass(frozen=True)
class Row:
    """Rows of a published table; a field that is empty, or None, fits all.

    Attributes:
        paper: key of :data:`hgld.published.PAPERS`.
        table: as the paper calls it.
        method: as the table calls it.
        setting: of the row, as :mod:`hgld.published` has it.
        backbone: likewise.
        dim: likewise.
        datasets: names; the recipe's own if empty.
    """

    paper: str
    table: str
    method: str
    setting: str | None = None
    backbone: str = ""
    dim: str = ""
    datasets: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[PublishedValue, ...]:
        """The values, in the order of the table."""
        key = (self.paper, self.table, self.method)
        return tuple(value for value in _by_method().get(key, ()) if self._holds(value))

    def _holds(self, value: PublishedValue) -> bool:
        return (
            value.dataset in self.datasets
            and (self.setting is None or value.setting == self.setting)
            and (not self.backbone or value.backbone == self.backbone)
            and (not self.dim or value.dim == self.dim)
        )


@dataclass(frozen=True)
class Published:
    """Published rows of a recipe.

    Attributes:
        rows: the rows; the first is the one that the recipe is of.
        remark: how the published run differs from the recipe, or what else its reader should know.
    """

    rows: tuple[Row, ...]
    remark: str = ""

    @property
    def values(self) -> tuple[PublishedValue, ...]:
        """All values of the rows."""
        return tuple(value for row in self.rows for value in row.values)

    @property
    def brief(self) -> str:
        """The figures of the first row in one line."""
        return _told(self.rows[0])

    @property
    def lines(self) -> tuple[str, ...]:
        """A line a row, a remark, and the papers."""
        told = [f"{_told(row)} ({PAPERS[row.paper].name} {row.table}, {row.method})" for row in self.rows]
        remark = [self.remark] if self.remark else []
        return (*told, *remark, *dict.fromkeys(PAPERS[row.paper].source for row in self.rows))


def _told(row: Row) -> str:
    values = row.values
    several = {"dataset": len({v.dataset for v in values}) > 1, "setting": len({v.setting for v in values}) > 1}
    levels = {value.level for value in values if value.level} | {value.part for value in values if value.part}
    found = []
    for value in values:
        where = [getattr(value, name) for name, told in several.items() if told and getattr(value, name)]
        name = value.name if len(levels) > 1 or "average" in levels else value.metric
        unit = " of 4" if value.unit == "of 4" else ""
        found.append(f"{name} {value.text}{unit}" + (f" ({', '.join(where)})" if where else ""))
    return ", ".join(found)


def published_of(name: str, dataset: str) -> Published | str:
    """Return the published rows of a recipe of this package, or a sentence if no paper has one.

    Args:
        name: of the recipe.
        dataset: that it trains on.
    """
    if name in REACHED:
        steps = "1,000 steps" if name.startswith("small-views-") else "1,000 steps from a start of views"
        measured = "means of five splits and seeds, rates chosen on validation classes: benchmarks/README.md"
        return f"none; {steps} reached, on classes not trained on, {REACHED[name]} ({measured})"
    found = ROWS.get(name) or next((f for pattern, f in ROWS.items() if fnmatchcase(name, pattern)), ())
    own = (replace(row, datasets=row.datasets or (dataset,)) for row in found if isinstance(row, Row))
    if rows := tuple(row for row in own if row.values):
        return Published(rows, " ".join(text for text in found if isinstance(text, str)))
    return f"none: {_WITHOUT.get(name, 'the papers print no row of this loss in this setting')}"


@cache
def _by_method() -> Mapping[tuple[str, str, str], list[PublishedValue]]:
    found: dict[tuple[str, str, str], list[PublishedValue]] = {}
    for value in published_values():
        found.setdefault((value.paper, value.table, value.method), []).append(value)
    return found


_FINE, _ALL = "trained on fine labels", "trained on hierarchy"


def _suprank(method: str, *tables: str, **more: Any) -> tuple[Row, ...]:
    return tuple(Row("suprank", f"Table {table}", method, **more) for table in tables)


def _ours(method: str, deep: str | None = None, **more: Any) -> tuple[Row, ...]:
    """Return the rows of a method in the tables of several levels: V, IX (two levels), VI (seven levels)."""
    others = _suprank(deep or method, "IX", "VI")
    return (*_suprank(method, "V", **more), *others)


_SMOOTH_AP_TEXT = "the text of section 6.2 has 66.6 for R@1"
_VEHICLES = "Table 3 (left)"
_LANDMARKS = ("roxford", "rparis")
_RETRIEVAL = ("holidays", "ukbench", "copydays")
_FACES = ("vggface2", "ijb-c")
_WHITENED = "after whitening, at one resolution"
_ALONE = "Table XI has the value of Table X without a second term, so it is taken for H-AP alone"


def _listwise(method: str, *tables: str) -> tuple[Row, ...]:
    return tuple(Row("listwise", f"Table {table}", method, datasets=_LANDMARKS) for table in tables)


def _multigrain(weight: str, augmentation: str, p: int, *, retrieval: bool = False) -> tuple[Row, ...]:
    """Return the rows of Table 2 at its test resolutions, and those of the retrieval sets."""
    of = [("Table 2", f"lambda={weight}, aug={augmentation}, train p={p}", ("imagenet",))]
    if retrieval:
        of += [("Table 3", f"lambda={weight}", _RETRIEVAL), ("Table D.1", f"lambda={weight}", _RETRIEVAL)]
    return tuple(
        Row("multigrain", table, "MultiGrain", f"s*={size}, {rest}", datasets=datasets)
        for table, rest, datasets in of
        for size in (224, 500, 800)
    )


def _retrieval(method: str, setting: str = "") -> tuple[Row, ...]:
    settings = [f"s*={size}{setting}" for size in (224, 500, 800)]
    return tuple(Row("multigrain", "Table D.1", method, one, datasets=_RETRIEVAL) for one in settings)


def _uniform(p: int) -> tuple[Row, ...]:
    first = Row(
        "multigrain", "Table 2", "ResNet-50", f"s*=224, lambda=-, aug=full, train p={p}", datasets=("imagenet",)
    )
    return (first, *_retrieval(f"ResNet-50 trained with p={p} pooling"))


def _larger(method: str, own: str) -> tuple[Row, ...]:
    """Return the rows of a network off the shelf, at its own size and at larger ones."""
    settings = (own, *(f"s*={size}" for size in (350, 400, 450, 500)))
    return tuple(Row("multigrain", "Table E.1", method, setting, datasets=("imagenet",)) for setting in settings)


def _faces(method: str, backbone: str) -> tuple[Row, ...]:
    return (Row("smooth-ap", "Table 4", method, backbone=backbone, datasets=_FACES),)


_BEST_BATCH = Row("smooth-ap", "Table 5", "Smooth-AP", "ablation of B: tau=0.01, |P|=4, B=256", datasets=_FACES)

ROWS: Mapping[str, tuple[Row | str, ...]] = {
    # hierarchical losses
    "happier-f-h-gldv2": (*_suprank("HAPPIER_F", "VII"),),
    "happier-h-gldv2": _suprank("HAPPIER", "VII"),
    "happier-inat-base": (*_ours("HAPPIER"), *_suprank("Sup-H-AP surrogate + DG* (HAPPIER)", "X")),
    "happier-f-[si]*": _ours("HAPPIER_F"),
    "happier-[si]*": _ours("HAPPIER"),
    "happier-dyml-*": _suprank("HAPPIER", "VIII"),
    "rod-ndcg-[si]*": _suprank("ROD-NDCG", "V"),
    "sup-h-ap-inat-base": (
        *_suprank("Sup-H-AP surrogate, no DG", "X"),
        *_suprank("trained on H-AP (Eq. 20 relevance)", "XI"),
        _ALONE,
    ),
    "sigmoid-h-ap-inat-base": _suprank("sigmoid (baseline), no DG", "X"),
    "weighted-ap-inat-base": (*_suprank("trained on sum wAP (Property 1 relevance)", "XI"), _ALONE),
    # ROADMAP
    "sup-ap-sop": _suprank("Sup-AP (SupRank)", "II"),
    "sup-ap-inat-base": _suprank("Sup-AP (SupRank)", "II"),
    "roadmap-pair-*": (
        *_suprank("ROADMAP (SupRank + L_DG pair)", "II"),
        *_suprank("ROADMAP", "IX"),
        "Table IX does not say which second term; on iNaturalist it is near the pair loss of Table II",
    ),
    "roadmap-proxy-h-gldv2": _suprank("ROADMAP", "VII"),
    "roadmap-proxy-dyml-*": (*_suprank("ROADMAP", "VIII"), "the table does not say which second term"),
    "roadmap-proxy-[si]*": (*_suprank("ROADMAP (SupRank + L_DG* proxy)", "II"), *_suprank("ROADMAP", "I", "III")),
    "roadmap-xbm-*": _suprank("ROADMAP", "IV", backbone="ResNet-50"),
    "roadmap-deit-*": _suprank("ROADMAP", "IV", backbone="DeiT-S"),
    "roadmap-vit-*": _suprank("ROADMAP", "IV", backbone="ViT-B"),
    "roadmap-2021-deit-*": (Row("roadmap", "Papers with Code", "ROADMAP", backbone="DeiT-S"),),
    "roadmap-2021-[sc]*": (Row("roadmap", "Papers with Code", "ROADMAP", backbone="ResNet-50"),),
    # recall
    "smooth-recall-h-gldv2": _suprank("R@k", "VII"),
    "smooth-recall-large-[si]*": _suprank("R@k", "IV"),
    "smooth-recall-simix-[si]*": _suprank("R@k + SiMix", "IV", backbone="convolutional"),
    "smooth-recall-sop": _suprank("Smooth-R@k (sigmoid)", "II"),
    "smooth-recall-inat-base": _suprank("Smooth-R@k (sigmoid)", "II"),
    "sup-recall-sop": _suprank("Sup-R@k (SupRank)", "II"),
    "sup-recall-inat-base": _suprank("Sup-R@k (SupRank)", "II"),
    "rod-recall-pair-*": _suprank("ROD-R@k (SupRank + L_DG pair)", "II"),
    "rod-recall-sop": _suprank("ROD-R@k (SupRank + L_DG* proxy)", "II"),
    "rod-recall-inat-base": _suprank("ROD-R@k (SupRank + L_DG* proxy)", "II"),
    # other average precisions
    "smooth-ap-sop": (Row("smooth-ap", "Table 2", "Smooth-AP", "batch 384"), *_suprank("SmoothAP", "IV")),
    "smooth-ap-sop-224": (Row("smooth-ap", "Table 2", "Smooth-AP", "batch 224"),),
    "smooth-ap-inat-base": (
        Row("smooth-ap", "Table 3 (right)", "Smooth-AP", "batch 384"),
        *_suprank("SmoothAP", "IV"),
        _SMOOTH_AP_TEXT,
    ),
    "smooth-ap-inat-base-224": (Row("smooth-ap", "Table 3 (right)", "Smooth-AP", "batch 224"),),
    "smooth-ap-vehicleid": (Row("smooth-ap", _VEHICLES, "Smooth-AP"),),
    "smooth-ap-h-gldv2": _suprank("Smooth-AP", "VII"),
    "smooth-ap-dyml-*": _suprank("Smooth-AP", "VIII"),
    "smooth-ap-inat-full": _ours("Smooth-AP"),
    "smooth-ap-*-256": (
        *_ours("Smooth-AP"),
        *_suprank("Smooth-AP", "I"),
        *_suprank("Smooth-AP (sigmoid)", "II"),
        "Table IX differs from Table V on SOP",
    ),
    "smooth-ap-vggface2": (*_faces("+Smooth-AP", "SENet-50"), _BEST_BATCH),
    "smooth-ap-vggface2-arcface": _faces("+Smooth-AP", "ArcFace ResNet-50"),
    "contrastive-vggface2": _faces("+Pairwise", "SENet-50"),
    "contrastive-vggface2-arcface": _faces("+Pairwise", "ArcFace ResNet-50"),
    "triplet-vggface2": _faces("+Triplet", "SENet-50"),
    "triplet-vggface2-arcface": _faces("+Triplet", "ArcFace ResNet-50"),
    "softbin-ap-landmarks-clean": (*_listwise("GeM (AP)", "1", "2"), _WHITENED),
    "contrastive-landmarks-clean": (*_listwise("GeM (CL)", "1", "2"), _WHITENED),
    "triplet-landmarks-clean-64": (*_listwise("GeM (TL-64)", "1"), _WHITENED),
    "triplet-landmarks-clean-512": (*_listwise("GeM (TL-512)", "1"), _WHITENED),
    "triplet-landmarks-clean-1024": (*_listwise("GeM (TL-1024)", "1"), _WHITENED),
    "softbin-ap-h-gldv2": _suprank("SoftBin", "VII"),
    "softbin-ap-sop": _suprank("SoftBin-AP", "I"),
    "softbin-ap-inat-base": _suprank("SoftBin-AP", "I"),
    "fast-ap-sop": _suprank("Fast-AP", "I"),
    "fast-ap-inat-base": _suprank("Fast-AP", "I"),
    "fast-ap-inat-384": (Row("smooth-ap", "Table 3 (right)", "FastAP"),),
    "fast-ap-vehicleid": (Row("smooth-ap", _VEHICLES, "FastAP"),),
    "blackbox-ap-sop": _suprank("BlackBox-AP", "I"),
    "blackbox-ap-inat-base": _suprank("BlackBox-AP", "I"),
    "blackbox-ap-inat-384": (Row("smooth-ap", "Table 3 (right)", "Blackbox AP"),),
    "pnp-dq-sop": (Row("pnp", "Table 1", "PNP-D_q"), Row("pnp", "Table 3", "PNP-D_q", "batch 112")),
    "pnp-dq-vehicleid": (Row("pnp", "Table 2", "PNP-D_q"), Row("pnp", "Table 4", "PNP-D_q", "batch 112")),
    "pnp-dq-inat-base": (Row("pnp", "Table 5", "PNP-D_q"),),
    "pnp-dq-sop-384": (Row("pnp", "Table 3", "PNP-D_q", "batch 384"),),
    "pnp-dq-vehicleid-384": (Row("pnp", "Table 4", "PNP-D_q", "batch 384"),),
    **{
        f"pnp-{short}-{dataset}": (Row("pnp", table, f"PNP-{long}"),)
        for short, long in (("o", "O"), ("iu", "I_u"), ("ib", "I_b"), ("ds", "D_s"))
        for dataset, table in (("sop", "Table 1"), ("vehicleid", "Table 2"))
    },
    **{
        f"{loss}-{dataset}-merged": (Row("pnp", table, method),)
        for loss, method in (("pnp-dq", "PNP-D_q"), ("pnp-iu", "PNP-I_u"), ("smooth-ap", "Smooth-AP"))
        for dataset, table in (("sop", "Table 6"), ("vehicleid", "Table 7"))
    },
    # proxies and tuples
    "norm-softmax-sigma-dyml-*": _suprank("Sigma NSM", "VIII"),
    "norm-softmax-sigma-[si]*": _suprank("Sigma NSM", "V"),
    "norm-softmax-dyml-*": _suprank("NSM", "VIII"),
    "norm-softmax-[si]*": _ours("NSM"),
    "proxy-nca-sigma-*": _suprank("Sigma NCA++", "V"),
    "proxy-nca-[si]*": _ours("NCA++"),
    "csl-h-gldv2": _suprank("CSL", "VII"),
    "csl-dyml-*": _suprank("CSL", "VIII"),
    "csl-[si]*": _ours("CSL"),
    "triplet-sigma-dyml-*": _suprank("Sigma TL_SH", "VIII"),
    "triplet-sigma-[si]*": _suprank("Sigma TL_SH", "V"),
    "triplet-dyml-*": _suprank("TL_SH", "VIII"),
    "triplet-[si]*": _ours("Triplet SH", "TL_SH"),
    "xbm-[si]*": _suprank("XBM", "III"),
    # MultiGrain
    "multigrain": _multigrain("0.5", "full", 3, retrieval=True),
    "multigrain-avg": _multigrain("0.5", "full", 1),
    "multigrain-aa": (*_multigrain("0.5", "AA", 3), *_retrieval("MultiGrain + AA", ", lambda=0.5")),
    "multigrain-avg-aa": _multigrain("0.5", "AA", 1),
    "multigrain-classes-uniform": _uniform(3),
    "multigrain-classes-avg-uniform": _uniform(1),
    "off-the-shelf-resnet50": (
        Row("multigrain", "Table 2", "PyTorch model zoo", datasets=("imagenet",)),
        *_retrieval("PyTorch model zoo"),
    ),
    "off-the-shelf-senet154": _larger("SENet154", "s=s*=224"),
    "off-the-shelf-pnasnet5": _larger("PNASNet-5-Large", "s=s*=331"),
    "multigrain-classes": _multigrain("1", "full", 3, retrieval=True),
    "multigrain-classes-avg": _multigrain("1", "full", 1),
}
"""Rows by shell patterns of recipe names, with a remark behind; a recipe's own name goes before patterns, the first
pattern that fits counts, and of its tables those that have the dataset."""

_CITED = "Table IV of arXiv:2309.08250 cites this loss on CUB from its own paper, in another setting"
_WITHOUT: Mapping[str, str] = {
    "triplet-cub": _CITED,
    "blackbox-ap-cub": _CITED,
    "norm-softmax-cub": _CITED,
    "proxy-nca-cub": _CITED,
    "xbm-cub": _CITED,
    "roadmap-proxy-cub": "the papers' row on CUB is with a memory (roadmap-xbm-cub)",
    "roadmap-2021-inat-base": "no text with its row was read",
}
"""Reasons for which recipes have no row, where there is one to tell."""

REACHED: Mapping[str, str] = {
    "small-views-grocery": "R@1 88.6, H-AP 41.4, ASI 52.2",
    "small-grocery": "R@1 87.7, H-AP 54.5, ASI 68.6",
    "small-views-gldv2-washington": "R@1 58.8, H-AP 28.2, ASI 61.1",
    "small-gldv2-washington": "R@1 61.9, H-AP 31.8, ASI 66.9",
    "small-views-omniglot": "R@1 78.1, H-AP 46.9, ASI 48.2",
    "small-omniglot": "R@1 90.6, H-AP 66.0, ASI 64.1",
}
"""Measured figures of recipes that are from no paper, after some of their steps."""
