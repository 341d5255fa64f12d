"""The clean stage, which turns scraped names into canonical names, one per landmark.

``name_rules.yaml`` holds the rules for spellings and irrelevant classes. Letter case does not distinguish names. A name
is shown in its most common spelling, so that acronyms and proper nouns keep their capitals.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from hgld.errors import TableError
from hgld.settings import key_fields
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage, write_dropped
from ..config import BuildConfig, CleanConfig
from .landmark_tables import ITEMS, KEY, with_item_columns
from .languages import english_names

RULES = Path(__file__).with_name("name_rules.yaml")


def name_key(name: str) -> str:
    """Return the common key of a name's spellings, which ignores letter case."""
    return unicodedata.normalize("NFC", name.casefold())


def match_key(name: str) -> str:
    """Return the key by which names match classes, which ignores letter case, underscores and repeated spaces.

    >>> match_key("Container_ship "), match_key("container  ship")
    ('container ship', 'container ship')
    """
    return " ".join(name_key(name).replace("_", " ").split())


@dataclass(frozen=True)
class NameRules:
    """The rules of ``name_rules.yaml``.

    Attributes:
        max_length: maximum number of characters in a spelling.
        rewrites: pairs of a pattern and its replacement.
        irrelevances: (pattern of whole names, ids of classes, reason) for names that say nothing about a landmark.

    >>> rules = NameRules.read()
    >>> rules.canonical("Church  building (1172-1954)")
    'Church building'
    >>> rules.canonical("county hall (")
    'county hall'
    >>> rules.irrelevance("Wikimedia category")
    'a page of the wiki, not a thing in the world'
    """

    max_length: int
    rewrites: tuple[tuple[re.Pattern[str], str], ...]
    irrelevances: tuple[tuple[re.Pattern[str], frozenset[str], str], ...]

    @classmethod
    def read(cls, domain: str = "landmarks") -> "NameRules":
        """Read the rules for a domain."""
        data = _parsed()
        rewrites, irrelevant = (
            [rule for rule in data[part] if rule.get("domain", domain) == domain] for part in ("rewrite", "irrelevant")
        )
        return cls(
            data["max_length"],
            tuple((re.compile(rule["pattern"]), rule["replacement"]) for rule in rewrites),
            tuple((re.compile(r["pattern"]), frozenset(r.get("class_ids", ())), r["reason"]) for r in irrelevant),
        )

    def canonical(self, raw: str) -> str:
        """Return the canonical spelling of a scraped name: NFC, with rewrites applied until nothing changes.

        Returns:
            The spelling; ``""`` if nothing is left of the name, or if it has more than ``max_length`` characters.
        """
        if len(raw) > self.max_length:
            return ""
        name = raw
        for _ in range(2 * self.max_length):  # repeated, because "(((" loses one parenthesis at a time
            before, name = name, unicodedata.normalize("NFC", name)
            for pattern, replacement in self.rewrites:
                name = pattern.sub(replacement, name)
            if name == before:
                return name
        return name

    def irrelevance(self, name: str, class_id: str | None = None) -> str | None:
        """Return why a canonical name, or its class, says nothing about a landmark; None if it is relevant."""
        key = name_key(name)
        for pattern, class_ids, reason in self.irrelevances:
            if class_id in class_ids or pattern.fullmatch(key):
                return reason
        return None


@cache
def _parsed() -> Any:
    return yaml.safe_load(RULES.read_text(encoding="utf-8"))


# -- the stage -----------------------------------------------------------------------------------------------------

VERSION = 5  # version 5: only one table of names
PUBLISHED: dict[str, Any] = {
    "source": "Ramzi et al., Optimization of Rank Losses for Image Retrieval, arXiv 2309.08250; rounded",
    "splits": {
        "train": {"landmarks": 203_094, "scraped": 129_100, "kept": 128_800},
        "index": {"landmarks": 101_000, "scraped": 68_100, "kept": 67_900},
    },
    "names": 5_700,
    "groups": 78,
}
_MOST_DETAIL = 300  # maximum number of characters of a detail, which contains scraped text


def published_counts() -> dict[str, dict[str, int]]:
    """Return the published counts by stage, and by the names of the stage's own counts."""
    named = {**_by_split(PUBLISHED["splits"]), "names": PUBLISHED["names"]}
    return {"clean": named, "review": {"groups": PUBLISHED["groups"]}}


def _by_split(splits: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {f"{what} ({split})": n for split, figures in splits.items() for what, n in figures.items()}


def run(root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress) -> StageRun:
    """Clean the names of scraped landmarks into ``root/clean`` (see docs/reference/build-files.md for the files).

    The result's details hold this build's counts (``own``) in the form of :data:`PUBLISHED`.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: the policy for landmarks with several names, the domain of the rules, and the names' language.
        progress: function that receives the numbers of cleaned spellings and landmarks.

    Raises:
        TableError: no landmark has a name left.
    """
    inputs = files_of(stages, "scrape/landmarks.parquet") | {"rules": RULES}
    language = config.names.language_of_names
    stated = key_fields(config.clean) | {"domain": config.domain, "language": language}
    work = partial(_clean, inputs["scrape/landmarks.parquet"], config, progress)
    return run_stage("clean", root, version=VERSION, config=stated, inputs=inputs, work=work)


def _clean(landmarks: Path, config: BuildConfig, progress: Progress, directory: Path) -> StageResult:
    domain = config.domain
    table = with_item_columns(read_parquet(landmarks)).sort(KEY)
    rules = NameRules.read(domain=domain)
    if domain != "landmarks" and hyphens_are_spaces(table["names"].explode().drop_nulls().to_list()):
        rules = replace(rules, rewrites=(*rules.rewrites, HYPHENS))
    mentions = _mentions(table, rules, progress)
    relevant = mentions.filter(pl.col("reason").is_null()).unique([*KEY, "name"], keep="first", maintain_order=True)
    chosen = _choose(relevant, config.clean)
    kept = (
        table.select(*KEY, "category", "title")
        .join(chosen, on=KEY)
        .rename({"raw": "supercategory"})
        .select(*KEY, "category", "title", "supercategory", "name", "class_id")
        .sort(KEY)
    )
    dropped = _dropped(table, mentions, kept)
    if kept.is_empty():
        reasons = ", ".join(f"{reason}: {n}" for reason, n in dropped["reason"].value_counts(sort=True).iter_rows())
        raise TableError(
            f"{landmarks}: none of its {len(table)} landmarks has a usable name "
            f"({reasons}). Check the scrape's statuses, or the rules in {RULES.name}."
        )
    names = _with_english(_names(kept, table), domain, config.names.language_of_names)
    kept.write_parquet(directory / "landmarks.parquet")
    names.write_parquet(directory / "names.parquet")
    progress("clean", len(table), len(table))
    counts, details = _figures(table, kept, names)
    return StageResult(counts, write_dropped(directory, dropped), details=details)


HYPHENS = (re.compile(r"(?<=\w)-+(?=\w)"), " ")
_LEAST_HYPHENATED = 0.25


def hyphens_are_spaces(names: Sequence[str]) -> bool:
    """Tell whether names have hyphens for spaces, as folder names do: no spaces, and hyphens in a quarter or more.

    >>> hyphens_are_spaces(["Golden-Delicious", "Royal-Gala", "Kiwi"]), hyphens_are_spaces(["T-shirt", "red coat"])
    (True, False)
    """
    hyphenated = sum(HYPHENS[0].search(name) is not None for name in names)
    return hyphenated >= _LEAST_HYPHENATED * len(names) and not any(re.search(r"\s", name.strip()) for name in names)


def _mentions(table: pl.DataFrame, rules: NameRules, progress: Progress) -> pl.DataFrame:
    """Return a row for each scraped name of a landmark: raw, class_id, name, and the reason if it is excluded."""
    mentions = (
        table.filter(pl.col("status") == "found")
        .select(*KEY, pl.col("names").alias("raw"), pl.col("classes").alias("class_id"))
        .explode("raw", "class_id")
        .filter(pl.col("raw").is_not_null())
    )
    spellings = mentions.group_by("raw", "class_id").len("times").sort("raw", "class_id")
    rows = []
    for done, (raw, class_id, times) in enumerate(spellings.iter_rows(), 1):
        spelling = rules.canonical(raw)
        reason = rules.irrelevance(spelling, class_id) if spelling else "nothing is left of the name"
        rows.append((raw, class_id, spelling, name_key(spelling), reason, times, sum(map(str.isupper, spelling))))
        progress("clean: distinct names", done, len(spellings))
    texts = dict.fromkeys(("raw", "class_id", "spelling", "key", "reason"), pl.String)
    schema = texts | {"times": pl.Int64, "capitals": pl.Int64}
    vocabulary = pl.DataFrame(rows, schema=schema, orient="row")
    shown = (
        vocabulary.group_by("key", "spelling", "capitals")
        .agg(pl.col("times").sum())
        .sort("key", "times", "capitals", "spelling", descending=[False, True, False, False])
        .group_by("key", maintain_order=True)
        .agg(pl.col("spelling").first().alias("name"))
    )
    vocabulary = vocabulary.join(shown, on="key").select("raw", "class_id", "name", "reason")
    return mentions.join(vocabulary, on=["raw", "class_id"], nulls_equal=True, how="left", maintain_order="left")


def _choose(relevant: pl.DataFrame, config: CleanConfig) -> pl.DataFrame:
    """Return at most one row per landmark, with its only name or, if the policy says so, its most common name.

    The most common name is the name of most landmarks; if names tie, the first in alphabetical order.
    """
    relevant = relevant.drop("reason")
    if config.multi_name_policy == "drop":
        return relevant.filter(pl.len().over(KEY) == 1)
    frequency = relevant.group_by("name").len("frequency")
    ordered = relevant.join(frequency, on="name").sort(
        [*KEY, "frequency", "name"], descending=[False, False, True, False]
    )
    return ordered.unique(KEY, keep="first", maintain_order=True).drop("frequency")


def _dropped(table: pl.DataFrame, mentions: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    """Return the landmarks without a name, with the scrape's status or the reason for the exclusion of their names."""
    reasons = mentions.group_by(KEY).agg(
        pl.col("reason").is_null().any().alias("usable"),
        (pl.col("name") != "").any().alias("named"),
        pl.col("name").filter(pl.col("reason").is_null()).unique().sort().str.join(" | ").alias("several"),
        (pl.col("raw") + ": " + pl.col("reason")).unique().sort().str.join("; ").alias("unusable"),
    )
    reason = (
        pl.when(pl.col("status") != "found")
        .then(pl.col("status"))
        .when("usable")
        .then(pl.lit("several-names"))
        .when("named")
        .then(pl.lit("irrelevant"))
        .otherwise(pl.lit("empty-name"))
    )
    detail = pl.when("usable").then("several").otherwise("unusable").str.slice(0, _MOST_DETAIL)
    return (
        table.join(kept, on=KEY, how="anti")
        .join(reasons, on=KEY, how="left")
        .select(*KEY, "category", reason.alias("reason"), detail.alias("detail"))
        .sort(KEY)
    )


def _names(kept: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Return the table of names with the facts of their items; a landmark counts once, an item ``count`` times."""
    facts = kept.join(table.select(*KEY, *ITEMS), on=KEY, how="left", maintain_order="left")
    return (
        facts.group_by("name", maintain_order=True)
        .agg(
            pl.col("count").fill_null(1).sum().alias("landmarks"),
            pl.col("class_id").drop_nulls().unique().sort().alias("class_ids"),
            pl.col("supercategory").unique().sort().alias("raw"),
            pl.col("description").drop_nulls().first(),
            pl.col("images").drop_nulls().explode().drop_nulls().unique(maintain_order=True),
            pl.col("language").drop_nulls().first(),
        )
        .sort("name")
    )


def _with_english(names: pl.DataFrame, domain: str, language: str) -> pl.DataFrame:
    if domain == "landmarks":
        return names.with_columns(english=pl.lit(value=True))
    spellings = names["name"].to_list()
    english = english_names(spellings, names["language"].to_list(), language)
    return names.with_columns(pl.Series("english", map(english, spellings), dtype=pl.Boolean))


def _figures(table: pl.DataFrame, kept: pl.DataFrame, names: pl.DataFrame) -> tuple[dict[str, int], dict[str, Any]]:
    """Return counts for the report, and the same counts under the keys of :data:`PUBLISHED`."""
    splits = {}
    for split in table["split"].unique().sort():
        scraped = table.filter(pl.col("split") == split)
        splits[split] = {
            "landmarks": len(scraped),
            "scraped": int((scraped["status"] == "found").sum()),
            "kept": int((kept["split"] == split).sum()),
        }
    counts = {**_by_split(splits), "names": len(names)}
    if not names["english"].all():
        counts["English names"] = int(names["english"].sum())
    return counts, {"own": {"splits": splits, "names": len(names)}}
