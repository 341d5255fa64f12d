"""The table of a rehearsal: what every stage took, and what it would take with the real release.

The last two columns are extrapolations. At scale 1: CPU seconds over the scale, as if all grew in proportion, start
included. With real images: the same and, for every byte by which the mean real image is larger, what reading, checking
and decoding a byte costs (benchmarks/README.md: 478 images/s of 195 kB a core). Trainings and embeddings with a real
network need a GPU and are left out.
"""

import json
from pathlib import Path
from typing import Any

from rehearsed.stages import RUNS

QUALITY = {"mAP@100": "mAP@100/landmark", "H-AP": "H-AP", "ASI": "ASI", "NDCG": "NDCG"}
REAL_BYTES = 595e9 / 5_012_248  # the owners' page: 595 GB of all images
MADE_BYTES = 1_000
SECONDS_A_BYTE = 1 / 478 / 195_000
LARGER = ("build-shards",)  # stages that decode every image once
HASHED = ("download", "verify", "index")  # stages that read all bytes and hash them
HASHED_A_SECOND = 0.7e9  # MD5 of a core; SHA-256 is faster where the processor has it
NETWORKS = ("train", "embed", "evaluate pixels", "evaluate untrained", "search")
HEAD = (
    "stage",
    "items",
    "wall, s",
    "CPU, s",
    "items a CPU second",
    "peak of a process, MB",
    "of the others, MB",
    "read, MB",
    "written, MB",
    "disk so far, MB",
    "CPU at scale 1, h",
    "with real images, h",
)


def markdown(facts: dict[str, Any]) -> str:
    """Return the record of a rehearsal as a Markdown table."""
    lines = [f"| {' | '.join(HEAD)} |", f"|---|{'---:|' * (len(HEAD) - 1)}"]
    for name, row in facts["stages"].items():
        spent = row["spent"]
        largest, *others = [round(peak / 1e6) for peak in spent["peaks"][:4]] or [0]
        cells = (
            name + _state(row),
            f"{row['items']:,} {row['unit']}",
            f"{spent['wall']:,.1f}",
            f"{spent['cpu']:,.1f}",
            f"{row['items'] / max(spent['cpu'], 0.01):,.0f}",
            f"{largest:,}",
            ", ".join(f"{peak:,}" for peak in others) or "",
            f"{spent['read'] / 1e6:,.1f}",
            f"{spent['written'] / 1e6:,.1f}",
            f"{row['disk'] / 1e6:,.0f}",
            *_extrapolated(name, row, facts["scale"]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _state(row: dict[str, Any]) -> str:
    """Say what counts for reading a row: that the stage is not done, or that several attempts are in its sums."""
    again = f" (in {row['attempts']} attempts)" if row.get("attempts", 1) > 1 else ""
    return again if row["done"] else f" (not done){again}"


def _extrapolated(name: str, row: dict[str, Any], scale: float) -> tuple[str, str]:
    if name.startswith("train"):  # so many steps at every scale
        return f"{row['spent']['cpu'] / 3600:.2f}", ""
    hours = row["spent"]["cpu"] / scale / 3600
    more = row["items"] / scale * (REAL_BYTES - MADE_BYTES) / 3600
    real = hours + more * ((name in LARGER) * SECONDS_A_BYTE + (name in HASHED) / HASHED_A_SECOND)
    return f"{hours:.2f}", "" if name.startswith((*NETWORKS, "release")) else f"{real:.2f}"


def qualities(chain: Path) -> dict[str, dict[str, float]]:
    """Return the metrics of every model that was evaluated, per cent, the baselines first."""
    found: dict[str, dict[str, float]] = {}
    for name in ("pixels", "untrained", *RUNS):
        file = chain / "embeddings" / f"{name}.json"
        if file.is_file():
            values = json.loads(file.read_text(encoding="utf-8"))["values"]
            found[name] = {shown: 100 * values[metric] for shown, metric in QUALITY.items()}
    return found


def quality(chain: Path) -> str:
    """Return these metrics as a Markdown table."""
    lines = [f"| per cent | {' | '.join(QUALITY)} |", f"|---|{'---:|' * len(QUALITY)}"]
    for model, values in qualities(chain).items():
        lines.append(f"| {model} | {' | '.join(f'{values[name]:.1f}' for name in QUALITY)} |")
    return "\n".join(lines)
