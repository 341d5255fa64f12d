"""Tables of a rehearsal: the costs of every stage, and the metrics of every model."""

import json
from pathlib import Path
from typing import Any

from measured import head, row

from rehearsed.stages import RUNS

QUALITY = {"mAP@100": "mAP@100/landmark", "H-AP": "H-AP", "ASI": "ASI", "NDCG": "NDCG"}
_COSTS = ("wall, s", "CPU, s", "items a CPU second", "peak of a process, MB", "of the others, MB")
_BYTES = ("read, MB", "written, MB", "disk so far, MB")


def markdown(facts: dict[str, Any]) -> str:
    """Return the record of a rehearsal as a Markdown table."""
    lines = [head("stage", "items", *_COSTS, *_BYTES)]
    for name, stage in facts["stages"].items():
        spent = stage["spent"]
        largest, *others = [round(peak / 1e6) for peak in spent["peaks"][:4]] or [0]
        cells = [f"{spent['wall']:,.1f}", f"{spent['cpu']:,.1f}", f"{stage['items'] / max(spent['cpu'], 0.01):,.0f}"]
        cells += [f"{largest:,}", ", ".join(f"{peak:,}" for peak in others)]
        cells += [f"{spent['read'] / 1e6:,.1f}", f"{spent['written'] / 1e6:,.1f}", f"{stage['disk'] / 1e6:,.0f}"]
        lines.append(row([name + _state(stage), f"{stage['items']:,} {stage['unit']}", *cells]))
    return "\n".join(lines)


def _state(stage: dict[str, Any]) -> str:
    """Return a note if a stage is not finished, or its costs are sums over several attempts."""
    again = f" (in {stage['attempts']} attempts)" if stage.get("attempts", 1) > 1 else ""
    return again if stage["done"] else f" (not done){again}"


def quality(chain: Path) -> str:
    """Return a Markdown table with the metrics of every evaluated model in per cent, baselines first."""
    lines = [head("per cent", *QUALITY)]
    for name in ("pixels", "untrained", *RUNS):
        file = chain / "embeddings" / f"{name}.json"
        if file.is_file():
            values = json.loads(file.read_text(encoding="utf-8"))["values"]
            lines.append(row([name, *(f"{100 * values[metric]:.1f}" for metric in QUALITY.values())]))
    return "\n".join(lines)
