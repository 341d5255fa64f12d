"""The build of a hierarchy: all stages in order, in one folder, by one process at a time."""

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hgld.errors import ConfigError, StorageError, some
from hgld.files import file_lock, read_json, write_atomic
from hgld.tables import count_rows
from hgld.taxonomy.graph import Taxonomy

from ..stage import Progress, StageRun, json_text, plain, sha256_of
from . import assign, export, sample
from .config import SPLIT_NAME, BuildConfig, ClusterConfig, EmbedConfig
from .encoders.registry import Encoder, make_encoder
from .evidence import embed, evidence_stage
from .evidence.class_table import table_files
from .groups import cluster, clustering, into
from .levels import given_levels, reviewed_levels, toplevel
from .levels.levels import LANDMARK_LEVELS, LevelPlan, domain_of, plan_levels
from .names import classes, clean, landmark_tables, tree
from .names.name_classes import ClassFinder
from .provenance import PROVENANCE, SourceFile, complete_provenance, provenance, read_provenance
from .report import report
from .review import review
from .review.decisions.decision_files import read_decisions
from .review.learning.teaching import taught_by

if TYPE_CHECKING:
    from .scrape.scrape import Plan

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


def build_hierarchy(
    out: Path,
    config: BuildConfig,
    progress: Progress,
    *,
    dry_run: bool = False,
    replace: bool = False,
    announce: Callable[[str], object] = lambda text: None,
) -> Build:
    """Build the hierarchy of ``config``'s landmarks into the folder ``out``.

    Stages that are done stay done; a build that was stopped anywhere goes on with the same command. The files beside
    ``stages/`` are replaced only when all stages are done, ``provenance.json`` last: while it is there, they belong
    together.

    Args:
        out: a folder that does not exist, is empty, or holds an earlier build.
        config: the source and every stage's options.
        progress: told what is being done.
        dry_run: only count the scrape's requests; nothing is asked and nothing written.
        replace: whether the labels of a build by the other route of scraping may be replaced.
        announce: told, before anything is done, which encoder was chosen for a list of names, and why.

    Raises:
        ConfigError: options contradict each other or cannot be served, ``out`` holds something else than a build, or
            labels that would be replaced although nobody said so.
        StorageError: another build runs in ``out``, or the disk is full or not writable.
        HgldError: whatever a stage refuses.
    """
    embedding, chosen = embed.choose_encoder(config.embed, config.source)
    if chosen and config.source == "classes" and not dry_run:
        announce(f"encoder {embedding.encoder}: {chosen}")
    config = dataclasses.replace(config, embed=embedding, cluster=_clustering(config))
    _check(config)
    levels = _plan_levels(config)
    _refuse_foreign(out)
    _check_before_scraping(config)
    if dry_run:
        return Build(out, plan=_plan(out, config))
    if not replace and (route := other_route(out, config)) is not None:
        raise ConfigError(
            f"{out} holds labels made by --route {route}; --route {config.scrape.route} finds other names and would "
            "replace them. Name another --out to keep both, or give --replace."
        )
    _check_resources(config)
    with _locked(out):
        stages = _label(out / STAGES, config, levels, progress)
        encoder = read_json(stages["embed"].path("encoder.json"))
        encoder |= {"chosen": chosen} if chosen else {}
        facts = provenance(list(stages.values()), _sources(config), config, encoder)
        stages["report"] = report.run(out / STAGES, stages, facts, progress)
        files = _publish(out, stages, facts)
    return Build(out, stages, files)


def _clustering(config: BuildConfig) -> ClusterConfig:
    """Return the clustering's options with the criterion that ``auto`` stands for."""
    if config.cluster.criterion != "auto":
        return config.cluster
    return dataclasses.replace(config.cluster, criterion="stability" if config.source == "classes" else "silhouette")


def _check(config: BuildConfig) -> None:
    if (config.source == "sample") == bool(config.tables):
        raise ConfigError(
            f"a build from {config.source!r} was given {len(config.tables)} tables; expected none for the sample and "
            "at least one otherwise. Give exactly one of --sample, --landmarks SPLIT=CSV, --names [SPLIT=]CSV and "
            "--classes FILE."
        )
    if config.source == "classes" and len(config.tables) > 1:
        raise ConfigError("--classes takes one file. Join the lists first; the same name twice is one name.")
    if config.source != "classes" and config.taxonomy.tree is not None:
        raise ConfigError("--tree is a taxonomy of the names of --classes; landmarks have Wikidata's. Leave it out.")
    if config.names.wikidata and (config.source != "classes" or config.taxonomy.tree is not None):
        raise ConfigError(
            "--wikidata looks up the names of --classes, in place of a --tree. Landmarks have their own route to "
            "Wikidata (--landmarks). Leave it out."
        )
    if config.source == "classes" and config.assign.assign != "none":
        raise ConfigError("--assign names landmarks that have no name; every class of --classes has one. Leave it out.")
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
    evidence_stage.check_options(config.evidence)
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
        facts: what follows from several of them and is passed by name: ``plan`` (levels), ``domain``, ``language``,
            ``images_from`` (the folder of a list of classes), ``taught_by``, ``taxonomy`` (of ``--tree``).
    """

    run: Callable[..., StageRun]
    reads: tuple[str, ...]
    configs: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


STAGES_IN_ORDER: Mapping[str, Stage] = {
    "clean": Stage(clean.run, ("scrape",), ("clean",), ("domain", "language")),
    "embed": Stage(embed.run, ("clean",), ("embed",), ("domain",)),
    "evidence": Stage(
        evidence_stage.run,
        ("clean", "embed", "scrape"),
        ("evidence", "embed", "cluster"),
        ("domain", "images_from"),
    ),
    "cluster": Stage(cluster.run, ("clean", "evidence", "scrape"), ("cluster",), ("domain",)),
    "toplevel": Stage(
        toplevel.run, ("clean", "cluster", "scrape", "embed", "evidence"), ("toplevel", "embed"), ("plan", "domain")
    ),
    "review": Stage(review.run, ("cluster", "toplevel"), ("review",), ("taught_by",)),
    "levels": Stage(reviewed_levels.run, ("cluster", "toplevel", "review"), (), ("plan",)),
    "assign": Stage(assign.run, ("scrape", "clean", "review"), ("assign", "embed")),
    "export": Stage(export.run, ("scrape", "clean", "assign", "levels"), (), ("plan",)),
}
"""The stages after the one that finds names, in order; a report of all follows."""
INTO = Stage(into.run, ("clean", "embed"), ("levels", "embed"), ("domain",))
"""The stage ``cluster`` of a build whose groups are given."""

GIVEN_LEVELS: Mapping[str, Stage] = {
    "cluster": Stage(given_levels.run_cluster, ("clean", "embed"), ("taxonomy",), ("plan", "taxonomy")),
    "toplevel": Stage(given_levels.run_toplevel, ("clean", "cluster"), ("taxonomy",), ("plan", "taxonomy")),
}
"""The stages in their place where the levels are those of a taxonomy."""


def _has_given_levels(config: BuildConfig) -> bool:
    return config.taxonomy.tree is not None and config.taxonomy.tree_use == "levels"


@dataclass(frozen=True)
class _Levels:
    """The levels to build, and the taxonomy of ``--tree``, read once."""

    plan: LevelPlan
    taxonomy: Taxonomy | None


def _plan_levels(config: BuildConfig) -> _Levels:
    taxonomy = None if config.taxonomy.tree is None else tree.read_tree(config.taxonomy)
    if taxonomy is not None and _has_given_levels(config):
        return _Levels(given_levels.plan_given_levels(config, taxonomy), taxonomy)
    return _Levels(plan_levels(config), taxonomy)


def _label(root: Path, config: BuildConfig, levels: _Levels, progress: Progress) -> dict[str, StageRun]:
    """Run all stages up to the export; return their runs by name."""
    facts = {
        "plan": levels.plan,
        "taxonomy": levels.taxonomy,
        "domain": domain_of(config),
        "language": config.names.language_of_names,
        "images_from": config.tables[0][1].parent if config.source == "classes" else None,
        "taught_by": None  # a taxonomy is taken as it is, but for what people decide by name
        if _has_given_levels(config)
        else taught_by(root, are_given=config.levels.into is not None),
    }
    runs = {"scrape": _names(root, config, levels.taxonomy, progress)}
    stages = {**STAGES_IN_ORDER, **({"cluster": INTO} if config.levels.into else {})}
    stages |= GIVEN_LEVELS if _has_given_levels(config) else {}
    for name, stage in stages.items():
        given = (*(runs[read] for read in stage.reads), *(getattr(config, field) for field in stage.configs))
        runs[name] = stage.run(root, *given, progress, **{fact: facts[fact] for fact in stage.facts})
        if name == "clean":
            _check_numbers(config, runs[name])
    return runs


def other_route(out: Path, config: BuildConfig) -> str | None:
    """Return the route by which the landmarks of a finished build in ``out`` were scraped, if ``config`` has another.

    The two routes find different names, so that a build by one replaces the labels of the other.
    """
    options = (read_provenance(out) or {}).get("config")
    scraped = options.get("scrape") if isinstance(options, dict) else None
    route = scraped.get("route") if isinstance(scraped, dict) else None
    asked = config.scrape.route if config.source == "landmarks" else None
    return route if isinstance(route, str) and asked not in (None, route) else None


def _check_before_scraping(config: BuildConfig) -> None:
    """Refuse more clusters or groups than there can be names, as far as the tables tell."""
    if not (config.cluster.clusters or config.cluster.groups):
        return
    if config.source == "landmarks":
        found = landmark_tables.read_landmarks(dict(config.tables)).landmarks
        _refuse_more_than(len(found), "landmarks, each of which has one name at most", config)
    elif config.source == "names":
        found = landmark_tables.read_landmarks(dict(config.tables), named=True).landmarks
        _refuse_more_than(len({name for landmark in found for name in landmark.names}), "names", config)
    elif config.source == "classes":
        items = classes.read_items(config.tables[0][1]).items
        _refuse_more_than(len({item.name for item in items}), "names", config)


def _check_numbers(config: BuildConfig, cleaned: StageRun) -> None:
    """Refuse more clusters or groups than there are names, before these are embedded."""
    names = count_rows(cleaned.path("names.parquet"))
    _refuse_more_than(names, "names", config)


def _refuse_more_than(count: int, what: str, config: BuildConfig) -> None:
    for option, wanted in (("clusters", config.cluster.clusters), ("groups", config.cluster.groups)):
        if wanted > count:
            raise ConfigError(f"--{option} {wanted} is more than the {count:,} {what}. Ask for at most {count}.")


def _names(root: Path, config: BuildConfig, taxonomy: Taxonomy | None, progress: Progress) -> StageRun:
    """Run the stage that finds names: from the sample, from tables, or from Wikimedia."""
    if config.source == "sample":
        return sample.run(root, progress)
    if config.source == "classes":
        return classes.run(root, config.tables[0][1], progress, find=_finder(root, config, taxonomy, progress))
    if config.source == "names":
        return landmark_tables.run_names(root, dict(config.tables), progress)
    asked = dict(config.tables), config.scrape
    return _scrape().run(root, *asked, progress, before_asking=lambda: _try_encoder(config.embed))


def _finder(root: Path, config: BuildConfig, taxonomy: Taxonomy | None, progress: Progress) -> ClassFinder | None:
    """Return what finds the classes of names: in a taxonomy, in Wikidata, or nothing."""
    if taxonomy is not None:
        return partial(tree.classes_in_tree, taxonomy, config.taxonomy)
    if not config.names.wikidata:
        return None
    said = {"language": config.names.language_of_names, "before_asking": partial(_try_encoder, config.embed)}
    return partial(_named_items().find_classes, root, config.scrape, progress, **said)


def _named_items() -> ModuleType:
    """Import the search of names in Wikidata; no other build needs its packages."""
    from .scrape import named_items

    return named_items


def _scrape() -> ModuleType:
    """Import the stage that asks Wikimedia; no other build needs its packages."""
    from .scrape import scrape

    return scrape


def _plan(out: Path, config: BuildConfig) -> "Plan | None":
    if config.names.wikidata:
        items = classes.read_items(config.tables[0][1]).items
        return _named_items().plan_names(out / STAGES, config.scrape, items, config.names.language_of_names)
    if config.source != "landmarks":
        return None
    return _scrape().plan(out / STAGES, dict(config.tables), config.scrape)


def _sources(config: BuildConfig) -> list[SourceFile]:
    if config.source == "sample":
        tables = [SourceFile("sample", path) for path in sample.files()]
    else:
        tables = [SourceFile(f"{config.source}/{split}", path) for split, path in config.tables]
    if config.source == "classes":
        tables = [SourceFile("classes", path) for _, path in config.tables]
        tables += [SourceFile("tree", path) for path in tree.tree_files(config.taxonomy)]
    if config.evidence.class_embeddings:
        tables += [SourceFile("class-embeddings", path) for path in table_files(config.evidence.class_embeddings)]
    given = [SourceFile("groups", config.levels.into)] if config.levels.into else []
    return tables + given + [SourceFile("decisions", path) for path in config.review.decisions]


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; expected a folder, which is made if it is not there.")
    if not out.is_dir() or (out / LOCK).is_file():
        return
    found = sorted(path.name for path in out.iterdir())
    if found:
        raise ConfigError(
            f"--out {out} holds files that are not a build's ({some(found, 3)}). Name a new or empty "
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
        (out / _REPLACING).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write the results to {out}: {error.strerror or error}. Free space, then run the same command "
            "again: finished stages are kept."
        ) from error
    return files


def _intact(out: Path, outputs: Mapping[str, Mapping[str, Any]]) -> bool:
    return all((out / name).is_file() and sha256_of(out / name) == facts["sha256"] for name, facts in outputs.items())


def _replace(out: Path, made: Mapping[str, Path], record: Mapping[str, Any]) -> None:
    """Replace the files one by one, ``provenance.json`` last; a list, which stays, names what may be stale."""
    listed = sorted(_listed(out) | set(made))
    write_atomic(out / _REPLACING, json_text(listed))
    (out / PROVENANCE).unlink(missing_ok=True)
    for name, path in made.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomic(out / name, partial(shutil.copyfile, path))
    for name in set(listed) - set(made):
        (out / name).unlink(missing_ok=True)
    write_atomic(out / PROVENANCE, json_text(record))


def _listed(out: Path) -> set[str]:
    """Return the files that earlier builds put into ``out``; names that a build never writes are ignored."""
    known = (read_provenance(out) or {}).get("outputs")
    listed: list[Any] = list(known) if isinstance(known, dict) else []
    try:
        replacing = read_json(out / _REPLACING)
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
    what = "items with {:,} different names" if plan.of_names else "landmarks in {:,} Commons categories"
    lines = [
        f"{plan.landmarks:,} {what.format(plan.categories)}, {plan.unanswered:,} to ask for.",
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
        lines.append(f"{name:<{width}}  {state}  {_counts(run, build)}")
        if run.result.dropped:
            lines.append(f"{'':<{width}}            left out: {_reasons(run.result.dropped)}")
        lines += [f"{'':<{width}}            note: {note}" for note in run.result.notes]
    lines.append("")
    lines += [f"{label}  {build.files[name]}" for label, name in _shown(build)]
    return "\n".join(lines)


def _counts(run: StageRun, build: Build) -> str:
    """Return a stage's counts as people read them: of landmarks or of items, undecided ones only below a top level."""
    counts = dict(run.result.counts)
    if len(build.stages["toplevel"].result.details.get("levels", LANDMARK_LEVELS)) == 2:
        counts = {what: value for what, value in counts.items() if not what.startswith("undecided")}
    if "items" in build.stages["scrape"].result.counts:
        counts = {_of_items(what): value for what, value in counts.items() if what != f"landmarks/{classes.SPLIT}"}
    return ", ".join(f"{value:,} {what}" for what, value in counts.items())


def _of_items(what: str) -> str:
    return what.removesuffix(f" ({classes.SPLIT})").replace("landmarks", "items")


def _reasons(dropped: Mapping[str, int]) -> str:
    by_size = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count:,} {reason}" for reason, count in by_size[:_MOST_REASONS])
    rest = sum(count for _, count in by_size[_MOST_REASONS:])
    return listed + (f", {rest:,} for other reasons" if rest else "")


def _shown(build: Build) -> list[tuple[str, str]]:
    tables = (export.LABELS, export.LABEL_SUFFIX)
    labels = [("labels", name) for name in build.files if name.endswith(tables)]
    return [*labels, *[("report", name) for name in build.files if name == "report.html"]]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
