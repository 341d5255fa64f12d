"""The sample: well-known landmarks with their classes, so that a build runs without network.

``landmarks.csv`` (split, landmark_id, category, names, class_ids, status) states the Commons category of each landmark
and the names of its classes, separated by ``|``. The names have the irregularities of Wikidata: years, capitals,
several classes, pages of the wiki, and landmarks without classes. ``class_ids`` are the ids of the names, empty if
uncertain. ``classes.csv`` (class_id, label, parents) holds these classes and their superclasses, a short version of
Wikidata's P279 graph. ``expected_groups.csv`` (name, group, natural_or_human_made) is a grouping of the canonical names
by hand, for tests. All tables were written for this project.
"""

from pathlib import Path

import polars as pl

from hgld.tables import read_csv

from ...stage import Progress, StageResult, StageRun, run_stage
from ..names.landmark_tables import DROPPED, VERSION, scraped_table, write_scraped
from ..scrape.titles import category_title

FOLDER = Path(__file__).parent
LANDMARKS = FOLDER / "landmarks.csv"
GRAPH = FOLDER / "classes.csv"
EXPECTED_GROUPS = FOLDER / "expected_groups.csv"


def files() -> tuple[Path, ...]:
    """Return the input tables of a build from the sample."""
    return LANDMARKS, GRAPH


def run(root: Path, progress: Progress) -> StageRun:
    """Run the stage ``scrape`` on the sample (docs/reference/build-files.md), without network.

    Args:
        root: the build's directory of stages.
        progress: receives the current task.
    """

    def work(directory: Path) -> StageResult:
        progress("scrape: reading the sample", 0, None)
        return write_scraped(directory, _scraped(), _classes(), pl.DataFrame(schema=DROPPED))

    inputs = {"landmarks": LANDMARKS, "classes": GRAPH}
    return run_stage("scrape", root, version=VERSION, config={"sample": True}, inputs=inputs, work=work)


def _scraped() -> pl.DataFrame:
    table = _read(LANDMARKS).with_columns(pl.col("landmark_id").cast(pl.Int64)).sort("split", "landmark_id")
    nothing, named = pl.lit([], dtype=pl.List(pl.String)), pl.col("names") != ""
    names, ids = (pl.when(named).then(_parts(column)).otherwise(nothing) for column in ("names", "class_ids"))
    known = table.select("split", "landmark_id", "category", "status", names.alias("names"), ids.alias("classes"))
    return scraped_table({**known.to_dict(), "title": [category_title(url) for url in table["category"]]})


def _classes() -> pl.DataFrame:
    parents = _parts("parents").list.drop_nulls().alias("parents")
    return _read(GRAPH).select("class_id", "label", pl.lit("en").alias("language"), parents).sort("class_id")


def _read(path: Path) -> pl.DataFrame:
    return read_csv(path).fill_null("")


def _parts(column: str) -> pl.Expr:
    """Return the parts of a cell, which ``|`` separates; an empty part is null."""
    return pl.col(column).str.split("|").list.eval(pl.element().replace("", None))
