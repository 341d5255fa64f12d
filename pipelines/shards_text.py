"""What a build of shards says to the person, or the machine, that ran it."""

import shlex
from collections.abc import Mapping
from typing import Any

from hgld.manifest import SplitFacts
from pipelines.disk_space import amount
from pipelines.shard_dry_run import PlannedBuild
from pipelines.shards import BuildResult
from pipelines.stage import plain

_MOST_SHOWN = 10


def result_summary(result: BuildResult) -> dict[str, Any]:
    """A finished dataset for machines."""
    manifest = result.manifest
    return {
        "out": result.out,
        "name": manifest.name,
        "ran": result.ran,
        "levels": list(manifest.levels),
        "splits": plain(manifest.splits),
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "rejected": dict(manifest.rejected),
        "differences": None if result.differences is None else result.differences.to_dicts(),
        "notes": list(result.notes),
    }


def result_text(result: BuildResult) -> str:
    """A finished dataset on one screen: counts, what differs from the published ones, what was rejected, what next."""
    manifest = result.manifest
    size = amount(sum(shard.bytes for shard in manifest.shards))
    state = "" if result.ran else " (built before, nothing to do)"
    lines = [f"{manifest.name}: {_count(len(manifest.shards), 'shard')}, {size}, in {result.out}{state}", ""]
    lines += [_split(name, facts) for name, facts in manifest.splits.items()]
    if manifest.rejected:
        lines += ["", "kept aside, see rejected.parquet:"]
        lines += _shown([f"  {count:>9,} {reason}" for reason, count in _by_size(manifest.rejected)])
    if result.differences is not None:
        lines += ["", *_differences(result)]
    if result.notes:
        lines += ["", *_shown([f"note: {note}" for note in result.notes])]
    lines += ["", f"next: hgld verify {shlex.quote(result.out)} --decode"]
    return "\n".join(lines)


def plan_summary(plan: PlannedBuild) -> dict[str, Any]:
    """A dry run for machines."""
    return plain(plan)


def plan_text(plan: PlannedBuild) -> str:
    """A dry run for people."""
    if plan.done:
        return f"{plan.out} holds this dataset already: nothing to do."
    lines = []
    for name, split in plan.splits.items():
        classes = ", ".join(f"{count:,} of {level}" for level, count in split.classes.items())
        lines.append(
            f"{name}: {_count(split.items, 'item')} in about {_count(split.shards, 'shard')}; classes: {classes}"
        )
    lines.append(f"to read:  {amount(plan.read_bytes)} in {plan.pending:,} of {_count(plan.units, 'unit')} of work")
    if plan.absent:
        lines.append(f"missing:  {_count(len(plan.absent), 'tar')}, the first is {plan.absent[0]}")
    if plan.spool_bytes:
        lines.append(f"to keep:  about {amount(plan.spool_bytes)} in the work folder until the build is done")
    lines.append(f"to write: about {amount(plan.write_bytes)} to {plan.out}")
    return "\n".join(lines)


def _split(name: str, facts: SplitFacts) -> str:
    classes = ", ".join(f"{count:,} of {level}" for level, count in facts["classes"].items())
    unlabelled = f"; {facts['unlabelled']:,} without a finest label" if facts["unlabelled"] else ""
    counts = f"{_count(facts['items'], 'item')} in {_count(facts['shards'], 'shard')}"
    return f"{name}: {counts}; classes: {classes}{unlabelled}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _differences(result: BuildResult) -> list[str]:
    differences = result.differences
    if differences is None or differences.is_empty():
        return ["every published count is met."]
    rows = []
    for split, what, published, found in differences.iter_rows():
        rows.append(f"  {split}, {what}: {published} published, {'not built' if found is None else f'{found:,} here'}")
    return ["differences from the published counts:", *_shown(rows)]


def _by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _shown(lines: list[str]) -> list[str]:
    rest = len(lines) - _MOST_SHOWN
    return lines if rest <= 0 else [*lines[:_MOST_SHOWN], f"  and {rest:,} more"]
