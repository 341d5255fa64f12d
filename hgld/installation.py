"""Facts of an installation for ``hgld doctor`` and reports of errors: versions, missing packages, extras and GPUs."""

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from hgld.version import __version__

_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*extra\s*==\s*['\"]([\w.-]+)['\"])?")
_FOR_DEVELOPERS = {"all", "bench", "dev", "docs"}


def installation() -> dict[str, Any]:
    """Return the facts of this installation, JSON-ready; imports torch.

    Returns:
        ``hgld``, ``python``, ``machine`` and ``torch`` hold versions and paths (the home folder as ``~``). ``missing``
        lists required packages that are not installed. ``extras`` tells whether each extra is installed. ``hints``
        lists fixes.
    """
    packages: dict[str, list[str]] = {}  # packages per extra; "" for hgld without extras
    for line in _requirements():
        name, extra = re.match(_REQUIREMENT, line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        packages.setdefault(extra or "", []).append(name)
    missing = [name for name in sorted(packages.pop("", [])) if not _is_installed(name)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = {
        "hgld": f"{__version__} at {Path(__file__).parent}",
        "python": f"{platform.python_version()} at {sys.executable}",
        "machine": f"{platform.platform()}, {cores} cores",
        "torch": _torch(),
    }
    hints = [f"{name} is not installed, and hgld needs it: pip install -U hgld" for name in missing]
    if facts["torch"].startswith("cannot"):
        hints.append("torch cannot be imported: pip install --force-reinstall torch")
    elif "CUDA:" not in facts["torch"] and Path("/proc/driver/nvidia/version").exists():
        hints.append("this machine has an NVIDIA driver that torch does not use: see https://pytorch.org/get-started")
    return {
        "version": __version__,
        **{name: text.replace(str(Path.home()), "~") for name, text in facts.items()},
        "missing": missing,
        "extras": {extra: all(map(_is_installed, names)) for extra, names in sorted(packages.items())},
        "hints": hints,
    }


def _requirements() -> list[str]:
    """Return the requirements of hgld and its extras for users; empty if hgld is not installed."""
    try:
        lines = requires("hgld") or []
    except PackageNotFoundError:
        return []
    return [line for line in lines if not any(f'extra == "{extra}"' in line for extra in _FOR_DEVELOPERS)]


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _torch() -> str:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of the package cannot be loaded
        return f"cannot be imported: {error}"
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{torch.__version__}, CUDA: {', '.join(gpus)}"
    return f"{torch.__version__}, " + ("Apple's GPU (MPS)" if torch.backends.mps.is_available() else "no GPU")
