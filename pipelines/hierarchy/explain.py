"""The evidence of a build about a name: the share of each block, and the names that it puts nearest."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hgld.errors import ConfigError
from hgld.tables import read_parquet

from ..stage import StageRun
from .evidence.evidence_stage import read_evidence


def explain(stages: Mapping[str, StageRun], name: str) -> dict[str, Any]:
    """Return a name's group, the next one, and what every block says.

    Args:
        stages: a build's stages; those of evidence and clusters are read.
        name: as it stands in the build, or in another case.

    Raises:
        ConfigError: there is no such name; the nearest ones are named.
    """
    clustered = read_parquet(stages["cluster"].path("names.parquet"))
    labels = dict(read_parquet(stages["cluster"].path("groups.parquet")).select("group", "label").iter_rows())
    names = clustered["name"].to_list()
    place = _place(name, names)
    evidence = read_evidence(stages["evidence"].directory)
    row = clustered.row(place, named=True)
    return {
        "name": names[place],
        "group": labels[row["group"]],
        "next_group": labels.get(row["next_group"]),
        "blocks": [asdict(says) for says in evidence.explain(place, names)],
    }


def explain_text(found: Mapping[str, Any]) -> str:
    """Return the result of :func:`explain` for people."""
    lines = [f"{found['name']}: in {found['group']}; next {found['next_group'] or 'none'}"]
    width = max(len(says["block"]) for says in found["blocks"])
    for says in found["blocks"]:
        near = ", ".join(f"{near['name']} ({near['cosine']:.2f})" for near in says["neighbours"])
        said = f"nearest {near}" if near else "says nothing about it" if not says["known"] else "knows no other name"
        share = f"counts {says['weight']:.0%}" if says["weight"] else "takes no part"
        lines.append(f"  {says['block']:<{width}}  {share:<13}  {said}")
    return "\n".join(lines)


def _place(name: str, names: list[str]) -> int:
    if name in names:
        return names.index(name)
    folded = [each.casefold() for each in names]
    if folded.count(name.casefold()) == 1:
        return folded.index(name.casefold())
    near = difflib.get_close_matches(name.casefold(), folded, 5, cutoff=0.5)
    listed = ", ".join(names[folded.index(each)] for each in near)
    raise ConfigError(
        f"--explain {name[:200]!r}: no such name among the {len(names):,} of this build"
        + (f"; nearest: {listed}." if listed else ".")
    )
