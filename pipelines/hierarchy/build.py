"""The build of a hierarchy: all stages in order, in one folder, by one process at a time."""

import dataclasses
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hgld.errors import ConfigError, StorageError
from hgld.files import read_json, write_atomic
from hgld.settings import options_of
from hgld.taxonomy.formats import read_taxonomy

from ..stage import Progress, StageRun, is_intact, json_text, own_folder, plain
from . import export, sample
from .config import SPLIT_NAME, BuildConfig
from .encoders import embed
from .groups import cluster, evidence, given, toplevel
from .groups.levels import LevelPlan, plan_levels
from .names import class_graph, classes, clean, landmark_tables
from .provenance import PROVENANCE, complete_provenance, provenance, read_provenance
from .report import report
from .review import review
from .review.decisions import read_decisions

STAGES = "stages"
LOCK = ".hgld-build"
_REPLACING = ".replacing.json"
_OWN_FILE = re.compile(r"(pictures/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Build:
    """A finished build.

    Attributes:
        directory: the build's folder.
        stages: every stage by name, in order.
        files: the build's files by their path in ``directory``.
        published: H-GLDv2's counts by stage and name (:func:`clean.published_counts`); empty for other names.
    """

    directory: Path
    stages: Mapping[str, StageRun]
    files: Mapping[str, Path]
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def build_hierarchy(
    out: Path, config: BuildConfig, progress: Progress, *, announce: Callable[[str], object] = lambda text: None
) -> Build:
    """Build a hierarchy into the folder ``out``.

    Finished stages do not run again, and the same command resumes a stopped build. The files next to ``stages/`` are
    replaced when all stages are done, ``provenance.json`` last: while it exists, the files belong together.

    Args:
        out: a folder that does not exist, is empty, or holds an earlier build.
        config: the source and every stage's options.
        progress: function that receives the current task.
        announce: function that receives, before the first stage, the encoder chosen for a list of names, and the
            reason.

    Raises:
        ConfigError: options contradict each other or are not available, or ``out`` holds other files.
        StorageError: another build runs in ``out``, or the disk is full or not writable.
        HgldError: a stage raises an error about its inputs.
    """
    embedding, chosen = embed.choose_encoder(config.embed, config.source)
    if chosen and config.source == "classes":
        announce(f"encoder {embedding.encoder}: {chosen}")
    config = dataclasses.replace(config, embed=embedding)
    _check(config)
    levels = _plan_levels(config)
    embed.encoder_of(None, config)
    read_decisions(config.review.decisions)
    with own_folder(out, LOCK, "build"):
        stages = run_stages(out / STAGES, config, levels, progress)
        encoder = read_json(stages["embed"].path("encoder.json"))
        encoder |= {"chosen": chosen} if chosen else {}
        facts = provenance(list(stages.values()), _sources(config), config, encoder)
        stages["report"] = report.run(out / STAGES, stages, facts, progress)
        files = _publish(out, stages, facts)
    is_scraped = config.source == "landmarks" or config.as_published
    return Build(out, stages, files, clean.published_counts() if is_scraped else {})


def _check(config: BuildConfig) -> None:
    """Raise an error for options that are out of range or contradict each other."""
    for section in (getattr(config, one.name) for one in dataclasses.fields(config)):
        for name, option in options_of(type(section)).items() if dataclasses.is_dataclass(section) else ():
            value = option.check(getattr(section, name))
            if value is not None and not option.several and (problem := option.bound_problem(value)):
                raise ConfigError(f"--{name.replace('_', '-')} {problem}")
    if (config.source == "sample") == bool(config.tables):
        raise ConfigError(
            f"a build from {config.source!r} was given {len(config.tables)} tables; expected none for the sample and "
            "at least one otherwise. Give exactly one of --sample, --landmarks SPLIT=CSV, --names [SPLIT=]CSV and "
            "--classes FILE."
        )
    if config.source == "classes" and len(config.tables) > 1:
        raise ConfigError("--classes takes one file. Join the lists first; a repeated name counts once.")
    if config.source != "classes" and config.taxonomy.tree is not None:
        raise ConfigError(
            "--tree is a taxonomy of the names of --classes; landmarks use Wikidata instead. Omit --tree."
        )
    splits = [split for split, _ in config.tables]
    if len(set(splits)) != len(splits):
        raise ConfigError(
            f"the splits of the tables are {splits}; expected one table per split. Join the tables first."
        )
    for split in splits:
        if not SPLIT_NAME.fullmatch(split):
            raise ConfigError(
                f"split {split!r} cannot be part of a file name; expected at most 64 ASCII letters, digits, '_' and "
                "'-', not beginning with '-'. Use another name: --landmarks train=CSV."
            )
    if "none" in config.evidence.evidence and len(config.evidence.evidence) > 1:
        raise ConfigError(
            "--evidence none cannot be combined with other sources. Omit none, or omit the other sources."
        )


@dataclass(frozen=True)
class _Levels:
    """The levels to build, the predefined groups if any, and the finder of the names' classes in a tree."""

    plan: LevelPlan
    groups: given.GivenGroups | None = None
    find: Callable[..., class_graph.NameClasses] | None = None


def _plan_levels(config: BuildConfig) -> _Levels:
    options, into = config.taxonomy, config.levels.into
    if options.tree is None:
        groups = None if into is None else given.read_groups(into)
        return _Levels(plan_levels(config, groups), groups)
    taxonomy = read_taxonomy(options.tree, options.tree_format, columns=options.tree_columns)
    groups, group_of, rules = None if into is None else given.read_groups(into), None, {}
    if options.tree_use == "levels":
        if into:
            raise ConfigError("--into and --tree-use levels both define the groups. Omit one of them.")
        items = classes.read_items(config.tables[0][1]).items
        known = class_graph.classes_in_tree(taxonomy, items).of.values()
        groups = given.tree_groups(taxonomy, options, list(known), config.levels.levels)
        group_of, rules = groups.of_class, {"parents": options.parents, "cut": options.cut}
    find = partial(class_graph.classes_in_tree, taxonomy, group_of=group_of, rules=rules)
    return _Levels(plan_levels(config, groups), groups, find)


def run_stages(root: Path, config: BuildConfig, levels: _Levels, progress: Progress) -> dict[str, StageRun]:
    """Run all stages up to the export; return each stage's result by its name, in order."""
    plan, groups = levels.plan, levels.groups
    stages = {"scrape": _names(root, config, levels, progress)}
    for name, stage in (("clean", clean), ("embed", embed), ("evidence", evidence)):
        stages[name] = stage.run(root, stages, config, progress)
    if groups is None:
        stages["cluster"] = cluster.run(root, stages, config, progress)
    else:
        stages["cluster"] = given.run(root, stages, config, progress, given=groups)
    stages["toplevel"] = toplevel.run(root, stages, config, progress, plan=plan)
    # only people's decisions change the levels of a taxonomy
    is_tree = groups is not None and groups.of_class is not None
    before = stages["cluster"], stages["toplevel"]
    stages["review"] = review.run(root, *before, config.review, progress, learns=not is_tree)
    stages["export"] = export.run(root, stages, progress, plan=plan)
    return stages


def _names(root: Path, config: BuildConfig, levels: _Levels, progress: Progress) -> StageRun:
    """Run the stage that reads names from the sample or from tables, or asks Wikimedia for them."""
    tables = dict(config.tables)
    if config.source == "sample":
        return sample.run(root, progress)
    if config.source == "names":
        return landmark_tables.run_names(root, tables, progress)

    def try_encoder() -> None:  # called before the scrape: report missing weights before hours of requests
        embed.encoder_of(None, config).encode(["name"])

    if config.source == "landmarks":
        from .scrape import scrape  # imported here: only this build needs its packages

        return scrape.run(root, tables, config.scrape, progress, before_asking=try_encoder)
    return classes.run(root, config.tables[0][1], progress, find=levels.find)


def _sources(config: BuildConfig) -> list[tuple[str, Path]]:
    """Return the input files of a build, each with its role."""
    if config.source == "sample":
        found = [("sample", path) for path in sample.files()]
    elif config.source == "classes":
        found = [("classes", config.tables[0][1])]
        found += [("tree", path) for path in class_graph.tree_files(config.taxonomy)]
    else:
        found = [(f"{config.source}/{split}", path) for split, path in config.tables]
    found += [("groups", config.levels.into)] if config.levels.into else []
    return found + [("decisions", path) for path in config.review.decisions]


def _publish(out: Path, stages: Mapping[str, StageRun], facts: Mapping[str, Any]) -> dict[str, Path]:
    """Copy the export's and the report's files next to ``stages/``, and remove outdated files of an earlier build."""
    made = {name: stages[s].path(name) for s in ("export", "report") for name in stages[s].record["outputs"]}
    made = {name: file for name, file in made.items() if name not in export.INNER}
    record = complete_provenance(facts, list(stages.values()), made)
    files = {name: out / name for name in (*made, PROVENANCE)}
    try:
        if read_provenance(out) != record or not is_intact(out, record["outputs"]):
            _replace(out, made, record)
        (out / _REPLACING).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write the results to {out}: {error.strerror or error}. Free space, then run the same command "
            "again: finished stages are kept."
        ) from error
    return files


def _replace(out: Path, made: Mapping[str, Path], record: Mapping[str, Any]) -> None:
    """Replace the files one by one, ``provenance.json`` last; until then, its old content names the files to remove."""
    if (out / PROVENANCE).exists():
        (out / PROVENANCE).replace(out / _REPLACING)
    try:
        before = read_json(out / _REPLACING)["outputs"]
        stale = {name for name in before if isinstance(name, str) and _OWN_FILE.fullmatch(name)} - set(made)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        stale = set[str]()  # there was no build yet, or its record is truncated
    for name, path in made.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomic(out / name, partial(shutil.copyfile, path))
    for name in stale:
        (out / name).unlink(missing_ok=True)
    write_atomic(out / PROVENANCE, json_text(record))


# -- summaries as text and as JSON ------------------------------------------------------------------------------------


def build_summary(build: Build) -> dict[str, Any]:
    """Return the summary of a finished build as JSON-ready values: counts, drops and notes per stage, and the files."""
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
    return {"directory": str(build.directory), "stages": stages, "files": files, "published": plain(build.published)}


def build_table(build: Build) -> str:
    """Return a finished build as a printable table: a line per stage, drops, notes and files."""
    width = max(len(name) for name in build.stages)
    lines = []
    for name, run in build.stages.items():
        state = f"{run.record['times']['seconds']:6.1f} s" if run.was_run else "  before"
        beside = {what: f" ({count:,} published)" for what, count in build.published.get(name, {}).items()}
        counts = ", ".join(f"{value:,} {what}{beside.get(what, '')}" for what, value in run.result.counts.items())
        lines.append(f"{name:<{width}}  {state}  {counts}")
        if dropped := sorted(run.result.dropped.items(), key=lambda item: (-item[1], item[0])):
            said = ", ".join(f"{count:,} {reason}" for reason, count in dropped)
            lines.append(f"{'':<{width}}            left out: {said}")
        lines += [f"{'':<{width}}            note: {note}" for note in run.result.notes]
    if "items" in build.stages["scrape"].result.counts:
        lines = [line.replace(f" ({classes.SPLIT})", "").replace("landmarks", "items") for line in lines]
    shown = [("labels", name) for name in build.files if name.endswith((export.LABELS, export.LABEL_SUFFIX))]
    return "\n".join(
        [*lines, "", *(f"{what}  {build.files[name]}" for what, name in [*shown, ("report", report.REPORT)])]
    )
