"""Numbers in README and pages come from benchmarks/results, and every row of claims.csv is quoted on a page."""

import csv
import re
from functools import cache
from statistics import mean

from markdown_it import MarkdownIt

from tests.interpreter import ROOT
from tests.rows import each_row

RESULTS = ROOT / "benchmarks" / "results"
CLAIMS = ("what", "value", "unit", "interval", "command", "commit", "machine", "date", "torch")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?![\w])")
TABLES = {  # (page, heading of a section with result tables): files with these results
    ("benchmarks/README.md", "Losses"): ("losses.csv",),
    ("benchmarks/README.md", "Metrics"): ("metrics.csv",),
    ("benchmarks/README.md", "Data"): ("data.csv",),
    ("benchmarks/README.md", "Search"): ("search.csv",),
    ("benchmarks/README.md", "Hierarchy quality"): ("names_grouping.csv",),
    ("benchmarks/README.md", "H-GLDv2 as published"): ("as_published.csv",),
    ("benchmarks/README.md", "MultiGrain's negatives"): ("reach.csv",),
    ("benchmarks/README.md", "Predefined groups"): ("names_into.csv",),
    ("benchmarks/README.md", "Error probability of a placement"): ("placement_uncertainty.csv",),
    ("benchmarks/README.md", "Expected number of wrong names"): ("review_trust.csv",),
    ("benchmarks/README.md", "Quality on real images"): ("quality.csv", "quality_pretrained.csv"),
    ("benchmarks/README.md", "Wrong labels"): ("wrong_labels.csv",),
    ("docs/how-to/evaluate.md", "Several models: a leaderboard"): ("leaderboard.csv",),
    ("docs/project/scale.md", "Embeddings and evaluation"): ("millions.csv",),
    ("docs/project/scale.md", "Several processes"): ("processes.csv",),
    ("docs/tutorials/five-minutes.md", "The demo"): ("claims.csv",),
}


def numbers_in(text):
    """Return the numbers of a text, each with its number of decimals."""
    found = [match.group().replace(",", "") for match in NUMBER.finditer(text.replace("−", "-"))]
    return [(float(n), len(n.partition(".")[2])) for n in found if re.search(r"\d", n)]


@cache
def values_of(file):
    """Return every number of a result file, and each column's mean per value of the first column."""
    with (RESULTS / file).open(encoding="utf-8", newline="") as text:
        rows = list(csv.reader(text))
    values = [value for row in rows for cell in row for value, _ in numbers_in(cell)]
    for name in {row[0] for row in rows}:
        columns = zip(*[row for row in rows if row[0] == name], strict=True)
        for column in columns:
            cells = [[value for value, _ in numbers_in(cell)] for cell in column]
            values += [mean(parts) for parts in zip(*(cell for cell in cells if cell), strict=False)]
    return tuple(values)


def is_there(number, files):
    """Tell whether the files have a value that rounds to a printed number."""
    value, decimals = number
    close = 0.51 * 10**-decimals + 1e-9
    return any(abs(abs(other) - abs(value)) <= close for file in files for other in values_of(file))


def cells_of(page, heading):
    """Yield the table cells of a section, without headers and first columns."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (body,) = [part for part in section if part.startswith(heading + "\n")]
    column = 0
    for token in MarkdownIt().enable("table").parse(body):
        if token.type in ("tr_open", "paragraph_open"):
            column = 0
        elif token.type in ("td_open", "th_open"):
            column += token.type == "td_open"
        elif token.type == "inline" and column > 1:
            yield token.content


@each_row(("page", "heading"), TABLES)
def test_numbers_in_result_tables_are_in_result_files(page, heading):
    cells = list(cells_of(page, heading))
    assert cells
    files = TABLES[page, heading]
    missing = [(cell, number) for cell in cells for number in numbers_in(cell) if not is_there(number, files)]
    assert not missing, f"no row of {files} has {missing}"


def claims() -> list[dict[str, str]]:
    with (RESULTS / "claims.csv").open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_every_claim_has_command_machine_and_date():
    for row in claims():
        assert tuple(row) == CLAIMS
        assert all(row[name] for name in CLAIMS if name != "interval"), row


def test_every_claim_value_is_quoted_on_a_page():
    pages = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    quoted = {number for page in pages for number, _ in numbers_in(page.read_text(encoding="utf-8"))}
    unused = [row["what"] for row in claims() if float(row["value"].replace(",", "")) not in quoted]
    assert not unused, unused


def test_readme_numbers_are_in_claims_csv():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = text.partition("## Measured\n")[2].partition("\n## ")[0]
    named = re.sub(r"torch [\d.]+|November \d+|batch of \d+|ASI|H-AP|R@\d|K batches", "", measured)
    missing = [number for number in numbers_in(named) if not is_there(number, ("claims.csv",))]
    assert not missing, f"no row of claims.csv has {missing}"
