"""What a build says to the person, or the machine, that ran it."""

from collections.abc import Mapping
from typing import Any

from pipelines.build import Build
from pipelines.stage import StageRun, plain

_MOST_REASONS = 4


def build_summary(build: Build) -> dict[str, Any]:
    """A finished build for machines: every stage's counts, drops and notes, and where the files lie."""
    stages = {
        name: {
            "ran": run.ran,
            "counts": plain(run.outcome.counts),
            "dropped": plain(run.outcome.dropped),
            "notes": list(run.outcome.notes),
        }
        for name, run in build.stages.items()
    }
    files = {name: str(path) for name, path in build.files.items()}
    return {"directory": str(build.directory), "stages": stages, "files": files}


def plan_summary(build: Build) -> dict[str, Any]:
    """A dry run for machines: what a scrape would ask; null where nothing is scraped."""
    return {"directory": str(build.directory), "plan": plain(build.plan) if build.plan else None}


def plan_text(build: Build) -> str:
    """A dry run for people: landmarks, requests by kind, and the time they take."""
    plan = build.plan
    if plan is None:
        return "Nothing to ask: the names are here already."
    total = sum(plan.requests.values())
    lines = [
        f"{plan.landmarks:,} landmarks in {plan.categories:,} Commons categories, {plan.unanswered:,} to ask for.",
        *(f"  {count:>9,} requests: {what}" for what, count in plan.requests.items()),
        f"  {total:>9,} requests at most, about {_duration(plan.seconds)}.",
    ]
    return "\n".join(lines)


def build_table(build: Build) -> str:
    """A finished build on one screen: a line a stage, what was left out, what to look at."""
    width = max(len(name) for name in build.stages)
    lines = []
    for name, run in build.stages.items():
        state = f"{run.record['times']['seconds']:6.1f} s" if run.ran else "  before"
        lines.append(f"{name:<{width}}  {state}  {_counts(run)}")
        if run.outcome.dropped:
            lines.append(f"{'':<{width}}            left out: {_reasons(run.outcome.dropped)}")
        lines += [f"{'':<{width}}            note: {note}" for note in run.outcome.notes]
    lines.append("")
    lines += [f"{label}  {build.files[name]}" for label, name in _shown(build)]
    return "\n".join(lines)


def _counts(run: StageRun) -> str:
    return ", ".join(f"{value:,} {what}" for what, value in run.outcome.counts.items())


def _reasons(dropped: Mapping[str, int]) -> str:
    by_size = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count:,} {reason}" for reason, count in by_size[:_MOST_REASONS])
    rest = sum(count for _, count in by_size[_MOST_REASONS:])
    return listed + (f", {rest:,} for other reasons" if rest else "")


def _shown(build: Build) -> list[tuple[str, str]]:
    labels = [("labels", name) for name in build.files if name.endswith("_label_to_hierarchical.csv")]
    return [*labels, *[("report", name) for name in build.files if name == "report.html"]]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
