"""Tables of a rehearsal: the costs of every stage, and the metrics of every model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measured import head, row

from rehearsed.stages import RUNS

QUALITY = {"mAP@100": "mAP@100/landmark", "H-AP": "H-AP", "ASI": "ASI", "NDCG": "NDCG"}
_COSTS = ("wall, s", "CPU, s", "items a CPU second", "peak of a process, MB", "disk so far, MB", "attempts")


def markdown(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the costs of stages as a Markdown table; costs are sums over the attempts."""
    lines = [head("stage", "items", *_COSTS)]
    for name, stage in stages.items():
        cells = [f"{stage['wall']:,.1f}", f"{stage['cpu']:,.1f}", f"{stage['items'] / max(stage['cpu'], 0.01):,.0f}"]
        cells += [f"{stage['peak'] / 1e6:,.0f}", f"{stage['disk'] / 1e6:,.0f}", stage["attempts"]]
        lines.append(row([name, f"{stage['items']:,} {stage['unit']}", *cells]))
    return "\n".join(lines)


def quality(chain: Path) -> str:
    """Return a Markdown table with the metrics of every evaluated model in per cent, baselines first."""
    lines = [head("per cent", *QUALITY)]
    for name in ("pixels", "untrained", *RUNS):
        file = chain / "embeddings" / f"{name}.json"
        if file.is_file():
            values = json.loads(file.read_text(encoding="utf-8"))["values"]
            lines.append(row([name, *(f"{100 * values[metric]:.1f}" for metric in QUALITY.values())]))
    return "\n".join(lines)
