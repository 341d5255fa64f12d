"""Tables of scores for a paper: LaTeX with booktabs rules, a caption, a label and the best values in bold."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote

from hgld.errors import ConfigError
from hgld.evaluation.metric import Metric
from hgld.evaluation.report import as_papers
from hgld.report_page.scores import GRADED, SIGNIFICANT, Score, ScoreTable
from hgld.terminal import printable

_ESCAPED = {character: f"\\{character}" for character in "&%$#_{}"}
_ESCAPED |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPED |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " ", "\r": " ", "\t": " "}
_TABLE = str.maketrans(_ESCAPED)
_MOST_COLUMNS = 8  # maximum number of metrics, so that the table fits a column of text in a paper


def escape_latex(text: str) -> str:
    """Escape text for LaTeX, so that every character is printed as it is."""
    return printable(text).translate(_TABLE)


def choose_columns(table: ScoreTable, metrics: Sequence[str] = ()) -> ScoreTable:
    """Return a table with the chosen columns.

    Args:
        table: table of one task.
        metrics: names of metrics; a binary metric without a level means every level. Empty: all columns if they
            fit a paper's page, else R@1 and AP of every level and the metrics of all levels.

    Raises:
        ConfigError: the table has none of these metrics.
    """
    names = table.metrics
    wanted = [str(Metric.parse(name)) for name in metrics]
    if not wanted and len(names) > _MOST_COLUMNS:
        wanted = ["R@1", "AP", *(name for name in names if "/" not in name)]
    kept = [i for i, name in enumerate(names) if not wanted or {name, name.partition("/")[0]} & {*wanted}]
    if not kept:
        raise ConfigError(
            f"--metrics {', '.join(metrics)}: no report has these metrics; the reports have "
            f"{', '.join(names) or 'none'}."
        )
    return replace(
        table,
        metrics=tuple(names[i] for i in kept),
        runs=tuple((name, tuple(scores[i] for i in kept)) for name, scores in table.runs),
    )


def row_labels(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first column's heading and the rows' labels; runs named ``FIELD=VALUE`` become FIELD and the values.

    >>> row_labels(["loss=HAPPIER", "loss=ROADMAP"]), row_labels(["first", "lr=0.1"])
    (('loss', ['HAPPIER', 'ROADMAP']), ('', ['first', 'lr=0.1']))
    """
    pairs = [name.partition("=") for name in names]
    fields = {field for field, _, _ in pairs}
    if len(fields) == 1 and all(equals and "," not in value and value for _, equals, value in pairs):
        return fields.pop(), [unquote(value) for _, _, value in pairs]
    return "", list(names)


def latex_table(table: ScoreTable, where: str) -> str:
    r"""Return a whole ``table`` environment, which needs ``\usepackage{booktabs}``.

    Args:
        table: table with the columns to print (:func:`choose_columns` selects them).
        where: dataset and split, for the caption and the label.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-") or "results"
    heading, labels = row_labels([name for name, _ in table.runs])
    scores = [score for _, row in table.runs for score in row]
    marks = any(score.change for score in scores)
    seeds = sorted({score.seeds for score in scores if score.seeds > 1})
    said = [f"Retrieval on {where}, in per cent."]
    if seeds:
        said.append(f"Mean $\\pm$ standard deviation over {' or '.join(map(str, seeds))} seeds.")
    said += ["Bold: the best value of a column."] if len(table.runs) > 1 else []
    if marks:
        named = dict(zip((name for name, _ in table.runs), labels, strict=True))
        base = escape_latex(named[table.baseline])
        said.append(f"$\\dagger$: differs from {base} with $p < {SIGNIFICANT}$.")
    caption = " ".join([said[0].translate(_TABLE), *said[1:], *map(escape_latex, table.warnings)])
    starred = "*" if len(table.columns) > _MOST_COLUMNS else ""
    lines = [
        f"\\begin{{table{starred}}}[t]",
        "  \\centering",
        f"  \\caption{{{caption}}}",
        f"  \\label{{tab:{slug}}}",
        f"  \\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "    \\toprule",
    ]
    if any(level != GRADED for level, _ in table.groups):
        lines += _group_lines(table.groups)
    lines += [_row([heading, *table.columns], escape=True), "    \\midrule"]
    for label, (_, row) in zip(labels, table.runs, strict=True):
        lines.append(_row([escape_latex(label), *(_cell(score, several=len(table.runs) > 1) for score in row)]))
    lines += ["    \\bottomrule", "  \\end{tabular}", f"\\end{{table{starred}}}"]
    return "\n".join(lines) + "\n"


def latex_tables(tables: Mapping[str, ScoreTable], metrics: Sequence[str] = ()) -> str:
    """Return the tables of several tasks, by dataset and split, as one file."""
    made = ["% Needs \\usepackage{booktabs}. Written by hgld.\n"]
    for split, table in tables.items():
        named = not table.dataset or split.endswith(f" of {table.dataset}")
        made.append(latex_table(choose_columns(table, metrics), split if named else f"{table.dataset}, {split}"))
    return "\n".join(made)


def _group_lines(groups: Sequence[tuple[str, int]]) -> list[str]:
    """Return the lines with the levels' names above the columns, and a rule below each level."""
    cells, rules, column = [""], [], 2
    for level, count in groups:
        cells.append(f"\\multicolumn{{{count}}}{{c}}{{{escape_latex(level)}}}")
        rules.append(f"\\cmidrule(lr){{{column}-{column + count - 1}}}")
        column += count
    return [_row(cells), f"    {' '.join(rules)}"]


def _row(cells: Sequence[str], *, escape: bool = False) -> str:
    shown = [escape_latex(cell) for cell in cells] if escape else cells
    return f"    {' & '.join(shown)} \\\\"


def _cell(score: Score, *, several: bool) -> str:
    text = as_papers(score.metric, score.value)
    text = f"\\textbf{{{text}}}" if score.best and several else text
    if not math.isnan(score.deviation):
        text += f" {{\\scriptsize$\\pm${as_papers(score.metric, score.deviation)}}}"
    return text + ("$^\\dagger$" if score.change else "")
