"""The table of a rehearsal: what every stage took, and what it would take with the real release."""

import json
from pathlib import Path
from typing import Any

QUALITY = {"mAP@100": "mAP@100/landmark", "H-AP": "H-AP", "ASI": "ASI", "NDCG": "NDCG"}
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
)


def markdown(facts: dict[str, Any]) -> str:
    """Return the record of a rehearsal as a Markdown table."""
    lines = [f"| {' | '.join(HEAD)} |", f"|---|{'---:|' * (len(HEAD) - 1)}"]
    for name, row in facts["stages"].items():
        spent = row["spent"]
        largest, *others = [round(peak / 1e6) for peak in spent["peaks"][:4]] or [0]
        cells = (
            name + ("" if row["done"] else " (not done)"),
            f"{row['items']:,} {row['unit']}",
            f"{spent['wall']:,.1f}",
            f"{spent['cpu']:,.1f}",
            f"{row['items'] / max(spent['cpu'], 0.01):,.0f}",
            f"{largest:,}",
            ", ".join(f"{peak:,}" for peak in others) or "",
            f"{spent['read'] / 1e6:,.1f}",
            f"{spent['written'] / 1e6:,.1f}",
            f"{row['disk'] / 1e6:,.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def qualities(chain: Path) -> dict[str, dict[str, float]]:
    """Return the metrics of every model that was evaluated, per cent, the baselines first."""
    board = json.loads((chain / "reports" / "board.json").read_text(encoding="utf-8"))["scores"]
    found: dict[str, dict[str, float]] = {}
    for row in board:
        if row["metric"] in QUALITY:
            found.setdefault(row["model"], {})[row["metric"]] = 100 * row["value"]
    for run in ("smooth-ap", "happier"):
        values = json.loads((chain / "embeddings" / f"{run}.json").read_text(encoding="utf-8"))["values"]
        found[run] = {shown: 100 * values[name] for shown, name in QUALITY.items()}
    return found


def quality(chain: Path) -> str:
    """Return these metrics as a Markdown table."""
    lines = [f"| per cent | {' | '.join(QUALITY)} |", f"|---|{'---:|' * len(QUALITY)}"]
    for model, values in qualities(chain).items():
        lines.append(f"| {model} | {' | '.join(f'{values[name]:.1f}' for name in QUALITY)} |")
    return "\n".join(lines)
