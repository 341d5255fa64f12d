"""Facts of an installation: versions, extras and what they are for, GPUs, caches; for `hgld doctor`, fault reports."""

import os
import platform
import re
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from hgld import __version__

EXTRAS = {  # what each is for
    "clip": "OpenCLIP: --encoder clip:..., --backbone open_clip:...",
    "faiss": "hgld search --index",
    "hub": "hgld push, hf:USER/NAME",
    "onnx": "hgld export to ONNX, --model onnx:FILE",
    "ray": "builds on several machines: --executor ray",
    "review": "hgld review",
    "sbert": "sentence encoders: --encoder sbert:...",
    "scrape": "hgld build-hierarchy --landmarks, hgld download",
    "stream": "hgld.stream, hgld train --stream",
    "tensorboard": "a run's curves in TensorBoard",
    "timm": "--backbone timm:..., --model timm:...",
    "torchvision": "--backbone torchvision:..., as most recipes have it",
    "url": "datasets at https://, s3:// and other addresses",
    "wandb": "a run's curves in Weights & Biases: --wandb",
}
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w.-]+)['\"]")
_MOST_FILES = 100_000
_BROKEN = "cannot be imported"


@dataclass(frozen=True)
class Installation:
    """Facts of an installation.

    Attributes:
        facts: of hgld, Python, the machine and torch, by name.
        packages: version of every package that hgld is built on; None where it is missing.
        extras: by name, the versions of the packages that each brings; None where one is missing.
        caches: folders with downloaded and computed files, and the bytes of their first 100,000 files.
    """

    facts: dict[str, str]
    packages: dict[str, str | None]
    extras: dict[str, dict[str, str | None]]
    caches: dict[str, int]

    @property
    def works(self) -> bool:
        """Presence of everything that hgld cannot do without, torch's import included."""
        return None not in self.packages.values() and not self.facts["torch"].startswith(_BROKEN)

    @property
    def advice(self) -> list[str]:
        """Faults found, each with the way out."""
        told = []
        if missing := [name for name, found in self.packages.items() if found is None]:
            told.append(f"{', '.join(missing)} not installed, which hgld cannot do without: pip install -U hgld")
        if self.facts["torch"].startswith(_BROKEN):
            told.append("torch cannot be imported: pip install --force-reinstall torch")
        elif "without CUDA" in self.facts["torch"] and _has_nvidia():
            told.append(
                "there is an NVIDIA driver here, and a torch without CUDA: install one of https://pytorch.org/get-started"
            )
        elif "no GPU in reach" in self.facts["torch"] and _has_nvidia():
            told.append("there is an NVIDIA driver here that torch cannot use: nvidia-smi says which CUDA it speaks")
        return told


def installation() -> Installation:
    """Look at what is installed; imports torch."""
    base, extras = _requirements()
    return Installation(
        facts=_facts(),
        packages={name: _version(name) for name in base},
        extras={extra: {name: _version(name) for name in extras.get(extra, ())} for extra in EXTRAS},
        caches={str(place): _bytes(place) for place in _cache_folders()},
    )


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the packages that hgld requires, and those of every extra; of a tree that is not installed, its own."""
    try:
        lines = requires("hgld") or []
        found = [(line, (_EXTRA.search(line) or [None, ""])[1]) for line in lines]
    except PackageNotFoundError:
        file = Path(__file__).parents[1] / "pyproject.toml"
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        found = [(line, "") for line in project["dependencies"]]
        found += [(line, extra) for extra, lines in project["optional-dependencies"].items() for line in lines]
    base: list[str] = []
    extras: dict[str, list[str]] = {}
    for line, extra in found:
        name = _NAME.match(line)
        if name and name[0] != "hgld":
            (extras.setdefault(extra, []) if extra else base).append(name[0])
    return sorted(base), extras


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _facts() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "hgld": f"{__version__} at {Path(__file__).parent}",
        "python": f"{platform.python_version()} at {sys.executable}",
        "machine": f"{platform.platform()}, {cores} cores, {memory / 2**30:.1f} GiB",
        "torch": _torch(),
    }


def _torch() -> str:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its shared libraries
        return f"{_BROKEN}: {error}"
    if torch.backends.mps.is_available():
        return f"{torch.__version__}, Apple's GPU (MPS)"
    if not torch.backends.cuda.is_built():
        return f"{torch.__version__}, without CUDA"
    if not torch.cuda.is_available():
        return f"{torch.__version__}, no GPU in reach"
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    named = ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in gpus)
    return f"{torch.__version__}, CUDA {torch.version.cuda}: {named}"


def _has_nvidia() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


def _cache_folders() -> list[Path]:
    """Return the folders that exist of hgld's own cache and those of the libraries that fetch weights."""
    import platformdirs

    home = Path.home() / ".cache"
    hub = Path(os.environ.get("HF_HOME", home / "huggingface"))
    places = [Path(platformdirs.user_cache_dir("hgld")), Path(os.environ.get("TORCH_HOME", home / "torch")), hub]
    return [place for place in places if place.is_dir()]


def _bytes(folder: Path) -> int:
    total = 0
    for number, file in enumerate(folder.rglob("*")):
        if number == _MOST_FILES:
            break
        if file.is_file() and not file.is_symlink():
            total += file.stat().st_size
    return total


def as_json(found: Installation) -> dict[str, Any]:
    """Return an installation JSON-ready, with its advice; folders below the home are shown as ``~``."""
    home = str(Path.home())
    facts = {name: text.replace(home, "~") for name, text in found.facts.items()}
    caches = {place.replace(home, "~"): size for place, size in found.caches.items()}
    return {
        "version": __version__,
        **facts,
        "packages": found.packages,
        "extras": found.extras,
        "caches": caches,
        "advice": found.advice,
    }
