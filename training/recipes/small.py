"""Small runs on real images from scratch, for a laptop: a small conv net at 48 px, judged on classes it has not seen.

Any other loss is a flag away: ``hgld train small-grocery --loss NormSoftmax ...``.
"""

from hgld.training.config import TrainConfig
from hgld.training.recipes.recipe import Setting, recipe
from hgld.training.recipes.settings import SMALL

_CPU = "two CPU cores"
_MINUTES = "3 minutes of one core (250 steps of it took 45 s: benchmarks/README.md)"


def _reached(figures: str) -> str:
    return f"none; 250 of its steps reached, on unseen classes, {figures} (benchmarks/quality.py, mean of 3 seeds)"


def _manifest(title: str, levels: str, **fields: object) -> Setting:
    made = f"hgld build-shards manifest --source labels.csv --images . --levels {levels} --test-classes 0.5 --out DIR"
    return Setting("manifest", f"{title}; {made}", _CPU, SMALL).changed(**fields)


_GROCERY = _manifest("the Grocery Store Dataset", "fine,coarse,top")
_WASHINGTON = _manifest(
    "Google Landmarks v2 of Washington state, rows without `unclassified`",
    "fine,supercategory,hierarchical_label,natural_or_human_made",
)
_OMNIGLOT = _manifest("Omniglot's characters", "fine,alphabet,script_type", flip=0.0)


@recipe(_GROCERY, _reached("R@1 67.4, H-AP 44.6, ASI 59.8"), hours=_MINUTES)
def small_grocery() -> TrainConfig:
    """HAPPIER from scratch on photographs of groceries, 48 px."""
    return _GROCERY.train(loss="HAPPIER")


@recipe(_WASHINGTON, _reached("R@1 42.6, H-AP 26.2, ASI 61.0"), hours=_MINUTES)
def small_gldv2_washington() -> TrainConfig:
    """HAPPIER from scratch on landmarks of Washington state, 48 px."""
    return _WASHINGTON.train(loss="HAPPIER")


@recipe(_OMNIGLOT, _reached("R@1 77.8, H-AP 53.8, ASI 54.2"), hours=_MINUTES)
def small_omniglot() -> TrainConfig:
    """HAPPIER from scratch on handwritten characters, 48 px, never mirrored."""
    return _OMNIGLOT.train(loss="HAPPIER")
