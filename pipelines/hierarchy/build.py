"""The build of a hierarchy: all stages in order, in one folder, by one process at a time."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hgld.errors import ConfigError, StorageError, takes_extra
from hgld.files import file_lock, write_atomic
from hgld.pipelines.hierarchy import (
    assign,
    clean,
    cluster,
    clustering,
    embed,
    export,
    landmark_tables,
    report,
    sample,
    toplevel,
)
from hgld.pipelines.hierarchy.config import SPLIT_NAME, BuildConfig, EmbedConfig
from hgld.pipelines.hierarchy.encoders.registry import Encoder, make_encoder
from hgld.pipelines.hierarchy.provenance import PROVENANCE, SourceFile, complete_provenance, provenance, read_provenance
from hgld.pipelines.hierarchy.review import review
from hgld.pipelines.hierarchy.review.decision_files import read_decisions
from hgld.pipelines.stage import Progress, StageRun, json_text, plain, sha256_of

if TYPE_CHECKING:
    from hgld.pipelines.hierarchy.scrape.scrape import Plan

STAGES = "stages"
LOCK = ".hgld-build"
_REPLACING = ".replacing.json"
_OWN_FILE = re.compile(r"(pictures/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Build:
    """The result of a build: its stages and files, or the plan of a dry run.

    Attributes:
        directory: the build's folder.
        stages: every stage by name, in order; empty after a dry run.
        files: the build's files by their path in ``directory``.
        plan: the requests a scrape would make, and how long they would take; None where nothing is scraped.
    """

    directory: Path
    stages: Mapping[str, StageRun] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    plan: "Plan | None" = None


def build_hierarchy(out: Path, config: BuildConfig, progress: Progress, *, dry_run: bool = False) -> Build:
    """Build the hierarchy of ``config``'s landmarks into the folder ``out``.

    Stages that are done stay done; a build that was stopped anywhere goes on with the same command. The files beside
    ``stages/`` are replaced only when all stages are done, ``provenance.json`` last: while it is there, they belong
    together.

    Args:
        out: a folder that does not exist, is empty, or holds an earlier build.
        config: the source and every stage's options.
        progress: told what is being done.
        dry_run: only count the scrape's requests; nothing is asked and nothing written.

    Raises:
        ConfigError: options contradict each other, or ``out`` holds something else than a build.
        StorageError: another build runs in ``out``, or the disk is full or not writable.
        HgldError: whatever a stage refuses.
    """
    _check(config)
    _refuse_foreign(out)
    if dry_run:
        return Build(out, plan=_plan(out, config))
    _check_resources(config)
    with _locked(out):
        stages = _label(out / STAGES, config, progress)
        encoder = json.loads(stages["embed"].path("encoder.json").read_text(encoding="utf-8"))
        facts = provenance(list(stages.values()), _sources(config), config, encoder)
        stages["report"] = report.run(out / STAGES, stages, facts, progress)
        files = _publish(out, stages, facts)
    return Build(out, stages, files)


def _check(config: BuildConfig) -> None:
    if (config.source == "sample") == bool(config.tables):
        raise ConfigError(
            f"a build from {config.source!r} was given {len(config.tables)} tables; expected none for the sample and "
            "at least one otherwise. Give exactly one of --sample, --landmarks SPLIT=CSV and --names [SPLIT=]CSV."
        )
    splits = [split for split, _ in config.tables]
    if len(set(splits)) != len(splits):
        raise ConfigError(f"the splits of the tables are {splits}; each split has one table. Join the tables first.")
    for split in splits:
        if not SPLIT_NAME.fullmatch(split):
            raise ConfigError(
                f"split {split!r} cannot be part of a file's name; expected letters of ASCII, digits, '_' and, not "
                "first, '-', at most 64. Name it otherwise: --landmarks train=CSV."
            )
    clustering.check_options(config.cluster)
    toplevel.check_options(config.toplevel)
    assign.check_options(config.assign, config.embed)


def _check_resources(config: BuildConfig) -> None:
    """Refuse an encoder that is not available and decisions that cannot be read, before anything is written."""
    _encoder(config.embed)
    read_decisions(config.review.decisions)


def _encoder(config: EmbedConfig) -> Encoder:
    return make_encoder(
        config.encoder,
        names=("name",),
        templates=config.templates,
        device=config.device,
        batch_size=config.batch_size,
    )


def _try_encoder(config: EmbedConfig) -> None:
    """Encode one name, so that missing weights are noticed before hours of scraping and not after.

    This is not done before every build: one whose embeddings are cached needs no weights.
    """
    _encoder(config).encode(["name"])


@dataclass(frozen=True)
class Stage:
    """A stage after the one that finds names.

    Its function is ``run(root, *stages, *configs, progress)``, in the module of its name.

    Attributes:
        run: the function.
        reads: names of the stages whose runs are passed to it.
        configs: fields of :class:`BuildConfig` that are passed to it.
    """

    run: Callable[..., StageRun]
    reads: tuple[str, ...]
    configs: tuple[str, ...] = ()


STAGES_IN_ORDER: Mapping[str, Stage] = {
    "clean": Stage(clean.run, ("scrape",), ("clean",)),
    "embed": Stage(embed.run, ("clean",), ("embed",)),
    "cluster": Stage(cluster.run, ("clean", "embed", "scrape"), ("cluster",)),
    "toplevel": Stage(toplevel.run, ("clean", "cluster", "scrape", "embed"), ("toplevel", "embed")),
    "review": Stage(review.run, ("cluster", "toplevel"), ("review",)),
    "assign": Stage(assign.run, ("scrape", "clean", "review"), ("assign", "embed")),
    "export": Stage(export.run, ("scrape", "clean", "assign")),
}
"""The stages after the one that finds names, in order; a report of all follows."""


def _label(root: Path, config: BuildConfig, progress: Progress) -> dict[str, StageRun]:
    """Run all stages up to the export; return their runs by name."""
    runs = {"scrape": _names(root, config, progress)}
    for name, stage in STAGES_IN_ORDER.items():
        given = (*(runs[read] for read in stage.reads), *(getattr(config, field) for field in stage.configs))
        runs[name] = stage.run(root, *given, progress)
    return runs


def _names(root: Path, config: BuildConfig, progress: Progress) -> StageRun:
    """Run the stage that finds names: from the sample, from tables, or from Wikimedia."""
    if config.source == "sample":
        return sample.run(root, progress)
    if config.source == "names":
        return landmark_tables.run_names(root, dict(config.tables), progress)
    asked = dict(config.tables), config.scrape
    return _scrape().run(root, *asked, progress, before_asking=lambda: _try_encoder(config.embed))


def _scrape() -> ModuleType:
    """Import the stage that asks Wikimedia; no other build needs its packages."""
    with takes_extra("scrape", "asking Wikimedia", "Or give names that are scraped already, with --names."):
        from hgld.pipelines.hierarchy.scrape import scrape
    return scrape


def _plan(out: Path, config: BuildConfig) -> "Plan | None":
    if config.source != "landmarks":
        return None
    return _scrape().plan(out / STAGES, dict(config.tables), config.scrape)


def _sources(config: BuildConfig) -> list[SourceFile]:
    if config.source == "sample":
        tables = [SourceFile("sample", path) for path in sample.files()]
    else:
        tables = [SourceFile(f"{config.source}/{split}", path) for split, path in config.tables]
    return tables + [SourceFile("decisions", path) for path in config.review.decisions]


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; expected a folder, which is made if it is not there.")
    if not out.is_dir() or (out / LOCK).is_file():
        return
    found = sorted(path.name for path in out.iterdir())
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ConfigError(
            f"--out {out} holds files that are not a build's ({', '.join(found[:3])}{more}). Name a new or empty "
            "folder, or that of an earlier build."
        )


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock ``out`` against a second build; the system releases the lock when this process ends, however it ends."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / LOCK).exists():
            (out / LOCK).touch()
    except OSError as error:
        raise StorageError(
            f"cannot write to --out {out}: {error.strerror}. Choose a folder you may write to."
        ) from error
    with file_lock(out / LOCK, f"another build is running in {out}. Wait for it, or name another --out."):
        yield


def _publish(out: Path, stages: Mapping[str, StageRun], facts: Mapping[str, Any]) -> dict[str, Path]:
    """Put the export's and the report's files beside ``stages/``, and remove those of an earlier build."""
    made = {name: stages[s].path(name) for s in ("export", "report") for name in stages[s].record["outputs"]}
    record = complete_provenance(facts, list(stages.values()), made)
    files = {name: out / name for name in (*made, PROVENANCE)}
    try:
        if read_provenance(out) != record or not _intact(out, record["outputs"]):
            _replace(out, made, record)
    except OSError as error:
        raise StorageError(
            f"cannot write the results to {out}: {error.strerror or error}. Free space, then run the same command "
            "again: finished stages are kept."
        ) from error
    return files


def _intact(out: Path, outputs: Mapping[str, Mapping[str, Any]]) -> bool:
    return all((out / name).is_file() and sha256_of(out / name) == facts["sha256"] for name, facts in outputs.items())


def _replace(out: Path, made: Mapping[str, Path], record: Mapping[str, Any]) -> None:
    """Replace the files one by one, ``provenance.json`` last; until then a list names all files that may be stale."""
    listed = sorted(_listed(out) | set(made))
    write_atomic(out / _REPLACING, json_text(listed))
    (out / PROVENANCE).unlink(missing_ok=True)
    for name, path in made.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomic(out / name, partial(shutil.copyfile, path))
    for name in set(listed) - set(made):
        (out / name).unlink(missing_ok=True)
    write_atomic(out / PROVENANCE, json_text(record))
    (out / _REPLACING).unlink()


def _listed(out: Path) -> set[str]:
    """Return the files that earlier builds put into ``out``; names that a build never writes are ignored."""
    known = (read_provenance(out) or {}).get("outputs")
    listed: list[Any] = list(known) if isinstance(known, dict) else []
    try:
        replacing = json.loads((out / _REPLACING).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        replacing = []  # not there, or cut short: the build goes on with what it knows
    listed += replacing if isinstance(replacing, list) else []
    return {name for name in listed if isinstance(name, str) and _OWN_FILE.fullmatch(name)}


# -- summaries for people and machines -----------------------------------------------------------------------------

_MOST_REASONS = 4


def build_summary(build: Build) -> dict[str, Any]:
    """Return the summary of a finished build for machines: every stage's counts, drops and notes, and the files."""
    stages = {
        name: {
            "ran": run.was_run,
            "counts": plain(run.result.counts),
            "dropped": plain(run.result.dropped),
            "notes": list(run.result.notes),
        }
        for name, run in build.stages.items()
    }
    files = {name: str(path) for name, path in build.files.items()}
    return {"directory": str(build.directory), "stages": stages, "files": files}


def plan_summary(build: Build) -> dict[str, Any]:
    """Return the summary of a dry run for machines: the requests of a scrape; null where nothing is scraped."""
    return {"directory": str(build.directory), "plan": plain(build.plan) if build.plan else None}


def plan_text(build: Build) -> str:
    """Return the text of a dry run for people: landmarks, requests by kind, and the time they take."""
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
    """Return a finished build as a table for people: a line a stage, drops, notes and files."""
    width = max(len(name) for name in build.stages)
    lines = []
    for name, run in build.stages.items():
        state = f"{run.record['times']['seconds']:6.1f} s" if run.was_run else "  before"
        lines.append(f"{name:<{width}}  {state}  {_counts(run)}")
        if run.result.dropped:
            lines.append(f"{'':<{width}}            left out: {_reasons(run.result.dropped)}")
        lines += [f"{'':<{width}}            note: {note}" for note in run.result.notes]
    lines.append("")
    lines += [f"{label}  {build.files[name]}" for label, name in _shown(build)]
    return "\n".join(lines)


def _counts(run: StageRun) -> str:
    return ", ".join(f"{value:,} {what}" for what, value in run.result.counts.items())


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
