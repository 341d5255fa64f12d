"""Options of the stages that build a hierarchy: one frozen dataclass per stage.

Every field is a flag of ``hgld build-hierarchy``, and its metadata is the flag's help. So this module imports nothing
slow. Fields that cannot change a stage's output (rates, batch sizes, contacts) have ``key=False`` and are not part of
the stage's key.
"""

import re
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Literal, get_type_hints

from hgld.settings import setting
from hgld.taxonomy import AUTO, FORMAT_LINES

# restricted characters, because file names contain the split's name
SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
COMMONS_URL = "https://commons.wikimedia.org/w/api.php"
WIKIDATA_URL = "https://www.wikidata.org/w/api.php"


@dataclass(frozen=True)
class ScrapeConfig:
    """Options for scraping names from Wikimedia."""

    route: Literal["api", "html"] = setting(
        "api",
        "How to get the names. api: ask Wikidata and Commons, 50 titles per request; html: read the page of each "
        "category.",
        common=True,
    )
    contact: str = setting(
        "",
        "Your mail address or web page, sent in the User-Agent; required for Wikimedia's servers.",
        key=False,
        common=True,
    )
    commons_url: str = setting(COMMONS_URL, "URL of the action API of Commons, or of a mirror.")
    wikidata_url: str = setting(WIKIDATA_URL, "URL of the action API of Wikidata, or of a mirror.")
    language: str = setting(
        "en", "Language of the names. A landmark without a name in it gets a name in another language."
    )
    infobox_rows: tuple[str, ...] = setting(
        ("Instance of",),
        "Heading of the infobox row to read with --route html, in the language of the pages.",
        repeated=True,
        commas=False,
    )
    rate: float = setting(
        3.0, "Maximum rate of requests; hgld sends them one at a time.", unit="requests per second", above=0, key=False
    )
    request_budget: int = setting(0, "Stop cleanly after this many requests; 0: no limit.", key=False)
    retries: int = setting(8, "Maximum number of attempts per request, the first included.", least=1, key=False)
    max_total_retries: int = setting(2000, "Maximum number of retries in the whole run.", least=0, key=False)
    timeout: float = setting(30.0, "Maximum time to wait for a response.", unit="seconds", above=0, key=False)
    retry_errors: bool = setting(False, "Repeat the requests that ended in an error in an earlier run.", key=False)


@dataclass(frozen=True)
class NamesConfig:
    """Options that describe the names: their language and domain."""

    domain: Literal["auto", "landmarks", "general"] = setting(
        "auto",
        "landmarks: use hgld's lexicon of places, its rules for Wikidata's names, and the top level natural / "
        "human-made; general: use none of them. auto: general for --classes, landmarks otherwise.",
    )
    language_of_names: str = setting(
        "",
        "Language of the names (en, de, ...) if their table does not state it. Only English names get singular forms "
        "and head nouns. Default: with --domain general, hgld recognises English names by their words; with landmarks, "
        "all names count as English.",
    )


@dataclass(frozen=True)
class TreeConfig:
    """Options for the use of an existing taxonomy."""

    tree: Path | None = setting(
        None,
        "Taxonomy of the names of --classes, in any format that hgld show reads: edge list, WordNet, "
        "Open Images, iNaturalist, Darwin Core, folders, ...",
        key=False,
    )
    tree_format: str = setting(
        AUTO, "Format of --tree. auto: detect it from the content.", choices=(AUTO, *FORMAT_LINES), key=False
    )
    tree_columns: tuple[str, ...] = setting(
        (),
        "Columns of the tree's levels, finest first, comma-separated; needed if the tree is a table in an unknown "
        "format.",
        metavar="A,B,C",
        key=False,
    )
    tree_use: Literal["evidence", "levels"] = setting(
        "evidence",
        "evidence: the tree replaces Wikidata's class graph. levels: the tree's classes are the levels; names outside "
        "the tree are listed and excluded.",
    )
    parents: Literal["refuse", "first", "most-specific"] = setting(
        "refuse",
        "With --tree-use levels, rule for classes with several parents: refuse them, keep the first parent, or keep "
        "the one farthest from the top.",
    )
    cut: str = setting(
        "",
        "With --tree-use levels, the classes to use: root:2,1 (steps below the top), leaves:1,2 (steps above the "
        "names) or ranks:family,order. Default: all ranks or depths.",
    )


@dataclass(frozen=True)
class LevelsConfig:
    """Options of the levels above the groups."""

    levels: tuple[str, ...] = setting(
        (),
        "Names of the levels A,B,C, finest first. Default: item,group and, if there is a third level, top; for "
        "landmarks landmark,hierarchical_label,natural_or_human_made.",
        common=True,
    )
    coarser: tuple[int, ...] = setting(
        (),
        "Number of classes per level above the groups, finest level first. 0: hgld derives it from the data.",
        least=0,
    )
    top: tuple[str, ...] = setting(
        (),
        "Names of the classes of the coarsest level, separated by commas. Default: natural,human-made for landmarks.",
    )
    into: Path | None = setting(
        None,
        "File of predefined groups for the names: a list of group names, or a table with the columns name and, "
        "optionally, description, parent, seeds (example names separated by a vertical bar). The build lists names "
        "without a group.",
        key=False,
    )
    none_below: float | None = setting(
        None,
        "Cosine threshold with --into: a name gets no group if its best cosine to the groups' texts is at most this "
        "value. A name that equals a group's name or seed always gets it. -1: every name gets a group. "
        "Default: 0 for lexical, -1 for other encoders.",
        least=-1,
        most=1,
    )


@dataclass(frozen=True)
class CleanConfig:
    """Options for turning scraped names into canonical names."""

    multi_name_policy: Literal["drop", "most-common"] = setting(
        "drop", "Rule for a landmark with several names: drop it (as published), or keep the most common name."
    )


@dataclass(frozen=True)
class EmbedConfig:
    """Options for turning names into vectors."""

    encoder: str = setting(
        "auto",
        "Text encoder: lexical (needs no weights), clip:MODEL/PRETRAINED (open_clip; PRETRAINED may be a file), "
        "clip:hf-hub:USER/NAME or sbert:PATH. Default for landmarks: clip:ViT-L-14/laion2b_s32b_b82k. "
        "Default for --classes: a sentence encoder on this machine (HGLD_SENTENCE_ENCODER may name its folder), else "
        "lexical.",
        common=True,
    )
    templates: tuple[str, ...] = setting(
        (),
        "Prompt template with {} in place of the name. The embeddings of several templates are averaged. Default: the "
        "encoder's own templates.",
        repeated=True,
        commas=False,
    )
    batch_size: int = setting(256, "Number of names per batch of the encoder.", least=1, key=False)
    device: str = setting(
        "", "Device of the encoder: cpu, cuda, cuda:1, ... Default: a GPU if there is one.", key=False
    )


@dataclass(frozen=True)
class EvidenceConfig:
    """Options for the evidence about names in addition to the encoder's rows."""

    evidence: tuple[str, ...] = setting(
        (),
        "Evidence sources in addition to the encoder: wording, descriptions, classes, or none. Default: with "
        "--classes, every source that agrees with the encoder; for landmarks none, as published.",
        choices=("wording", "descriptions", "classes", "none"),
    )


@dataclass(frozen=True)
class ClusterConfig:
    """Options for grouping names by their vectors."""

    groups: int = setting(0, "Number of groups. 0: hgld derives it from the data.", least=0)
    method: Literal["ward", "kmeans"] = setting("ward", "Method of grouping names: Ward's linkage or k-means.")
    seed: int = setting(0, "Seed of all random numbers.", least=0, most=2**32 - 1)


@dataclass(frozen=True)
class TopLevelConfig:
    """Options for deciding the classes of the coarsest level."""

    margin: float = setting(
        0.2,
        "Minimum margin of a group's best class over its second-best class, as a share of the group's names.",
        least=0,
        most=1,
    )


@dataclass(frozen=True)
class ReviewConfig:
    """Options of the review: the decisions to apply."""

    decisions: tuple[Path, ...] = setting(
        (),
        "YAML file with an annotator's decisions, which every run of the build applies.",
        repeated=True,
        commas=False,
        key=False,
        common=True,
    )


@dataclass(frozen=True)
class BuildConfig:
    """Options of a whole build: the source of its names, and every stage's options.

    Attributes:
        source: ``sample`` (the table shipped with hgld), ``landmarks`` (categories to scrape), ``names`` (a table of
            scraped names) or ``classes`` (arbitrary class names).
        tables: (split, file) pairs; empty for the sample, one pair for classes.
        as_published: sentences on the paper's choices, if the build follows them; the build records them.
    """

    source: Literal["sample", "landmarks", "names", "classes"]
    tables: tuple[tuple[str, Path], ...] = ()
    as_published: tuple[str, ...] = ()
    names: NamesConfig = NamesConfig()
    levels: LevelsConfig = LevelsConfig()
    taxonomy: TreeConfig = TreeConfig()
    scrape: ScrapeConfig = ScrapeConfig()
    clean: CleanConfig = CleanConfig()
    embed: EmbedConfig = EmbedConfig()
    evidence: EvidenceConfig = EvidenceConfig()
    cluster: ClusterConfig = ClusterConfig()
    toplevel: TopLevelConfig = TopLevelConfig()
    review: ReviewConfig = ReviewConfig()

    @property
    def domain(self) -> str:
        """The domain of the names: ``landmarks`` or ``general``."""
        if self.names.domain != "auto":
            return self.names.domain
        return "general" if self.source == "classes" else "landmarks"


def stage_configs() -> dict[str, type]:
    """Return the options of every stage by the field of :class:`BuildConfig` that holds them."""
    return {
        name: hint
        for name, hint in get_type_hints(BuildConfig).items()
        if isinstance(hint, type) and is_dataclass(hint)
    }
