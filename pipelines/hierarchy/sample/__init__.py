"""The sample: well-known landmarks with their classes, so that a build runs without network.

``landmarks.csv`` (split, landmark_id, category, names, class_ids, status) states for each landmark its Commons category
and, separated by ``|``, the classes that it is an instance of. They are written as people write them in Wikidata: years
and capitals here and there, several classes, pages of the wiki among them, landmarks without any. ``class_ids`` belong
to the names, empty if they are not known for certain. ``classes.csv`` (class_id, label, parents) holds these classes
and their superclasses, a short version of Wikidata's P279 graph. ``expected_groups.csv`` (name, group,
natural_or_human_made) is a grouping of the canonical names made by hand, for the tests to compare with. All of it was
written for this project.
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
    """Return the tables that a build from the sample reads."""
    return LANDMARKS, GRAPH


def run(root: Path, progress: Progress) -> StageRun:
    """Run the stage ``scrape`` on the sample (docs/reference/build-files.md), without asking any server.

    Args:
        root: the build's directory of stages.
        progress: told that the sample is read.
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
    """Return the parts between the ``|`` of a cell; an empty part is null."""
    return pl.col(column).str.split("|").list.eval(pl.element().replace("", None))
