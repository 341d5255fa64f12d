"""The table of a rehearsal: what every stage took, and what it would take with the real release."""

from typing import Any

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
