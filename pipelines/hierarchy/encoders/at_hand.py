"""The best encoder that is at hand: one whose weights lie on this machine already.

Nothing is downloaded and no server is asked. In this order:

1. a folder of a sentence-transformers model that ``HGLD_SENTENCE_ENCODER`` names;
2. a sentence-transformers model in Hugging Face's cache (``HF_HUB_CACHE``, ``HF_HOME``), whole, the preferred ones
   first, then by name;
3. the weights of a CLIP model there, that of the default encoder first;
4. ``lexical``, which needs none.

A model counts only if the packages that run it are installed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hgld.errors import MissingResourceError, quoted
from hgld.files import read_json

VARIABLE = "HGLD_SENTENCE_ENCODER"
PREFERRED = (  # by the averages that sentence-transformers publishes; multilingual ones last, for English comes first
    "all-mpnet-base-v2",
    "all-MiniLM-L12-v2",
    "all-MiniLM-L6-v2",
    "paraphrase-multilingual-mpnet-base-v2",
    "paraphrase-multilingual-MiniLM-L12-v2",
)
CLIP = {  # repositories of open_clip's weights, with the spelling of the encoder
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K": "ViT-L-14/laion2b_s32b_b82k",
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": "ViT-H-14/laion2b_s32b_b79k",
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K": "ViT-B-16/laion2b_s34b_b88k",
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": "ViT-B-32/laion2b_s34b_b79k",
    "timm/vit_large_patch14_clip_224.openai": "ViT-L-14/openai",
    "timm/vit_base_patch16_clip_224.openai": "ViT-B-16/openai",
    "timm/vit_base_patch32_clip_224.openai": "ViT-B-32/openai",
}
_WEIGHTS = ("*.safetensors", "*.bin")
_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


@dataclass(frozen=True)
class AtHand:
    """An encoder that can be had without a download: its spelling, and in words why it was taken."""

    spec: str
    why: str


def encoder_at_hand() -> AtHand:
    """Return the best encoder at hand.

    Raises:
        MissingResourceError: ``HGLD_SENTENCE_ENCODER`` names no folder of a sentence-transformers model.
    """
    sentences, missing = next(_sentence_encoders(), None), ""
    if sentences is not None and find_spec("sentence_transformers") is None:
        missing = f"{sentences.spec.partition(':')[2]} lies here, but sentence-transformers is not installed"
        sentences = None
    found = sentences or clip_at_hand()
    if found is not None:
        return found
    why = missing or f"no sentence encoder and no CLIP weights lie on this machine; {VARIABLE} may name a folder"
    return AtHand("lexical", why)


def clip_at_hand() -> AtHand | None:
    """Return the best CLIP model whose weights are at hand; None if there is none or open_clip is not installed."""
    if find_spec("open_clip") is None:
        return None
    for repository, spelling in CLIP.items():
        if cached_clip(repository) is not None:
            return AtHand(f"clip:{spelling}", "its weights lie in Hugging Face's cache")
    return None


def cached_clip(repository: str) -> Path | None:
    """Return the file of a repository's CLIP weights in Hugging Face's cache; None if it is not there."""
    files = (snapshot / file for snapshot in _snapshots(repository) for file in _CLIP_FILES)
    return next((file for file in files if file.is_file()), None)


def _sentence_encoders() -> Iterator[AtHand]:
    named = os.environ.get(VARIABLE, "")
    if named:
        if not _is_whole(Path(named)):
            raise MissingResourceError(
                f"{VARIABLE} is {quoted(named)}: not a folder with modules.json and weights, as "
                "SentenceTransformer.save writes it. Correct or unset it, or give --encoder."
            )
        yield AtHand(f"sbert:{named}", f"{VARIABLE} names it")
    cached = {path.name.rpartition("--")[2]: path for path in _cache().glob("models--*") if path.is_dir()}
    rank = {name: place for place, name in enumerate(PREFERRED)}
    for name in sorted(cached, key=lambda name: (rank.get(name, len(rank)), name)):
        for snapshot in _snapshots_in(cached[name]):
            if _is_whole(snapshot):
                yield AtHand(f"sbert:{snapshot}", f"{name} lies in Hugging Face's cache")


def _is_whole(folder: Path) -> bool:
    """Tell whether a folder holds a model of sentence-transformers' own modules, with its weights."""
    try:
        modules = read_json(folder / "modules.json")
        types = [str(module["type"]) for module in modules]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    own = bool(types) and all(kind.startswith("sentence_transformers.") for kind in types)
    # modules without files of their own (Normalize) have no folder in a repository, which holds no empty ones
    return own and any(file.is_file() for kind in _WEIGHTS for file in folder.glob(f"**/{kind}"))


def _snapshots(repository: str) -> list[Path]:
    return _snapshots_in(_cache() / f"models--{repository.replace('/', '--')}")


def _snapshots_in(folder: Path) -> list[Path]:
    """Return a cached repository's snapshots, that of its main branch first, then by name."""
    try:
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        main = ""
    found = sorted(path for path in (folder / "snapshots").glob("*") if path.is_dir())
    return sorted(found, key=lambda path: (path.name != main, path.name))


def _cache() -> Path:
    """Return Hugging Face's cache folder, by its own rules; no package of theirs is needed."""
    if named := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME")
    general = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface"
    return (Path(home).expanduser() if home else general) / "hub"
