"""Runs of several seeds become one row, and give tables and figures for papers."""

import itertools
import json
import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from hgld.errors import ConfigError, InputError
from hgld.evaluation.report import RetrievalReport, compare
from hgld.report_page.figures import Figures, Line
from hgld.report_page.latex import choose_columns, escape_latex, latex_table, row_labels
from hgld.report_page.page import make_report
from hgld.report_page.runs import mean_report, read_runs
from hgld.report_page.scores import Score, ScoreTable, seed_p_value
from hgld.training.config import TrainConfig
from hgld.training.sweep import plan_sweep, tabulate_sweep
from tests.hgld.test_report_page_page import write_run
from tests.rows import each_row

LOSSES = {"HAPPIER": 3.0, "A_%$#&{}~^\\b": 1.0}


def write_group(folder, *, seeds=(0, 1, 2), losses=LOSSES):
    """Write the runs of ``hgld train --loss A,B --seeds N`` and return their reports by loss and seed."""
    reports = {}
    for (loss, shift), seed in itertools.product(losses.items(), seeds):
        run = folder / f"loss={loss},seed={seed}"
        reports[loss, seed] = write_run(run, seed=seed, shift=shift, dataset="d_1", split="test")
        config = {"recipe": "", "loss": {"loss": loss}, "run": {"seed": seed, "epochs": 2}}
        (run / "config.json").write_text(json.dumps(config))
    return reports


@pytest.fixture(scope="module")
def group(module_path):
    folder = module_path / "sweep"
    return folder, write_group(folder)


# -- grouping ----------------------------------------------------------------------------------------------------------


def test_runs_that_differ_only_in_the_seed_become_one_run_with_means(group):
    folder, reports = group
    runs = read_runs([folder])
    assert [run.name for run in runs] == sorted(f"loss={loss}" for loss in LOSSES)
    assert all(run.seeds == [0, 1, 2] for run in runs)
    [happier] = [run for run in runs if run.name == "loss=HAPPIER"]
    found = happier.evaluations["test"].report
    own = [reports["HAPPIER", seed] for seed in range(3)]
    for metric, value in found.values.items():
        assert value == pytest.approx(statistics.fmean(report.values[metric] for report in own))
        assert found.per_query[metric].mean() == pytest.approx(value)
    assert found.settings["seeds"] == [0, 1, 2]


def test_runs_of_a_sweep_keep_the_order_of_the_swept_values(tmp_path):
    losses = ["ROADMAP", "HAPPIER"]
    write_group(tmp_path, seeds=(0, 1), losses=dict.fromkeys(losses, 2.0))
    for first_to_last in (losses, losses[::-1]):
        tabulate_sweep(plan_sweep(TrainConfig(), [f"loss={','.join(first_to_last)}"], 2), {}, tmp_path)
        assert [run.name for run in read_runs([tmp_path])] == [f"loss={loss}" for loss in first_to_last]
    named = [tmp_path / f"loss={loss},seed={seed}" for loss in losses for seed in (0, 1)]
    assert [run.name for run in read_runs(named)] == [f"loss={loss}" for loss in losses]


def test_deviations_and_p_values_over_seeds_equal_numpy_and_scipy(group):
    folder, reports = group
    table = make_report([folder], baseline="loss=HAPPIER").scores["test"]
    for name, scores in table.runs:
        loss = name.removeprefix("loss=")
        for score in scores:
            ours, theirs = ([reports[key, seed].values[score.metric] for seed in range(3)] for key in (loss, "HAPPIER"))
            assert score.deviation == pytest.approx(np.std(ours, ddof=1))
            if loss != "HAPPIER":
                assert score.seed_p_value == pytest.approx(ttest_rel(ours, theirs).pvalue)
                assert score.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert any("bootstrap (2,000 resamples) over the classes" in note for note in table.notes)
    assert any("± standard deviation over 3 seeds (0, 1, 2)" in note for note in table.notes)


def test_runs_of_a_repeated_or_unknown_seed_are_not_grouped(group, tmp_path):
    folder, _ = group
    one, two = (folder / f"loss=HAPPIER,seed={seed}" for seed in (0, 1))
    assert [run.name for run in read_runs([one, one])] == [one.name, f"{one.name} (2)"]  # the same seed twice
    write_run(tmp_path / "bare")
    assert [run.seeds for run in read_runs([tmp_path / "bare", two])] == [[], []]


def test_a_group_without_names_gets_the_name_of_its_folder(tmp_path):
    write_group(tmp_path / "mine", losses={"X": 2.0}, seeds=(0, 1))
    for seed in (0, 1):
        (tmp_path / "mine" / f"loss=X,seed={seed}").rename(tmp_path / "mine" / f"seed={seed}")
    assert [run.name for run in read_runs([tmp_path / "mine"])] == ["mine"]


def test_reports_of_different_tasks_have_no_mean(group):
    _, reports = group
    one, two = reports["HAPPIER", 0], reports["HAPPIER", 1]
    with pytest.raises(InputError, match="seed 0' and 'seed 1' are of different tasks"):
        mean_report({0: one, 1: replace(two, settings=two.settings | {"alpha": 2.0})})


@each_row(
    ("ours", "theirs", "expected"),
    [
        ({0: 0.5}, {0: 0.4}, math.nan),
        ({0: 0.5, 1: 0.5}, {2: 0.4, 3: 0.4}, math.nan),
        ({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}, 1.0),
        ({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.5}, 0.0),
    ],
)
def test_seed_p_value_is_nan_for_few_shared_seeds_and_exact_for_equal_differences(ours, theirs, expected):
    assert seed_p_value(ours, theirs) == pytest.approx(expected, nan_ok=True)


def test_permutation_over_classes_moves_the_queries_of_a_class_together():
    """With eight classes, a two-sided p-value is at least 2 / 2^8, regardless of the number of queries."""
    classes = np.repeat(np.arange(8), 50)
    one = RetrievalReport.from_columns({"AP": np.zeros(400)}, {})
    two = RetrievalReport.from_columns({"AP": np.repeat(np.linspace(0.1, 0.2, 8), 50)}, {})
    both = {"one": one, "two": two}
    over_queries, found = compare(both), compare(both, classes=classes)
    assert over_queries["p_value"][1] == pytest.approx(1 / 2001)
    assert found["p_value"][1] == pytest.approx(2 / 256, abs=0.005)
    means = np.random.default_rng(1).choice(np.linspace(0.1, 0.2, 8), (20_000, 8)).mean(axis=1)
    assert found["low"][1] == pytest.approx(np.quantile(means, 0.025), abs=0.003)
    assert compare(both, classes=np.full(400, -1)).equals(over_queries)
    with pytest.raises(InputError, match=r"expected \(400,\)"):
        compare(both, classes=classes[:9])


# -- LaTeX -------------------------------------------------------------------------------------------------------------


def test_special_characters_of_latex_are_escaped():
    escaped = [
        r"\&\%\$\#\_\{\}é",
        r"\textasciitilde{}\textasciicircum{}\textbackslash{}",
        r"\textless{}\textgreater{}\textbar{}",
    ]
    assert [escape_latex(text) for text in ("&%$#_{}é", "~^\\", "<>|")] == escaped


# The replacement below joins the line that ends with a backslash and the next line.
LATEX = r"""\begin{table}[t]
  \centering
  \caption{Retrieval on d\_1, test, in per cent. Mean $\pm$ standard deviation over 3 seeds. Bold: the best value of a \
column. $\dagger$: differs from B with $p < 0.05$. a \& b}
  \label{tab:d-1-test}
  \begin{tabular}{lrrr}
    \toprule
     & \multicolumn{2}{c}{fine} & \multicolumn{1}{c}{all levels} \\
    \cmidrule(lr){2-3} \cmidrule(lr){4-4}
    loss & R@1 & AP & H-AP \\
    \midrule
    A\_\% & \textbf{50.0}$^\dagger$ & 25.0 {\scriptsize$\pm$1.2} & \textbf{75.0} \\
    B & 40.0 & \textbf{30.0} & -- \\
    \bottomrule
  \end{tabular}
\end{table}
""".replace("\\\ncolumn", "column")


def test_latex_table_has_caption_label_headings_and_marked_values():
    metrics = ("R@1/fine", "AP/fine", "H-AP")
    first = (
        Score(metrics[0], 0.5, best=True, p_value=0.01, difference=0.1),
        Score(metrics[1], 0.25, deviation=0.0123, seeds=3),
        Score(metrics[2], 0.75, best=True),
    )
    second = (Score(metrics[0], 0.4), Score(metrics[1], 0.3, best=True), Score(metrics[2]))
    table = ScoreTable(metrics, (("loss=A_%", first), ("loss=B", second)), "loss=B", "d_1", ("a & b",), ())
    assert latex_table(table, "d_1, test") == LATEX


def test_report_command_writes_latex_and_prints_means_with_deviations(group, tmp_path, hgld):
    folder, reports = group
    out = tmp_path / "new" / "table.tex"
    code, shown, _ = hgld("report", folder, "--latex", out, "--baseline", "loss=HAPPIER")
    values = [100 * reports["HAPPIER", seed].values["H-AP"] for seed in range(3)]
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    assert f"\\textbf{{{mean:.1f}}} {{\\scriptsize$\\pm${deviation:.1f}}}" in out.read_text(encoding="utf-8")
    assert (code, f"{mean:.2f} ± {deviation:.2f}" in shown, str(out) in shown) == (0, True, True)


def test_latex_columns_are_chosen_by_metric_or_reduced_to_the_page_width(group):
    table = make_report([group[0] / "loss=HAPPIER,seed=0"]).scores["test"]
    chosen = choose_columns(table, ["recall@1", "H-AP"])
    assert [score.metric for score in chosen.runs[0][1]] == ["R@1/fine", "R@1/coarse", "H-AP"]
    with pytest.raises(ConfigError, match="--metrics NDCG: no report has these metrics; the reports have R@1/fine"):
        choose_columns(table, ["NDCG"])
    scores = tuple(replace(table.runs[0][1][0], metric=f"{m}/{level}") for level in "abc" for m in ("R@1", "AP", "P@1"))
    wide = replace(table, metrics=tuple(score.metric for score in scores), runs=(("x", scores),))
    assert choose_columns(wide).groups == [("a", 2), ("b", 2), ("c", 2)]
    assert row_labels(["loss=A%2CB"]) == ("loss", ["A,B"])


# -- figures and pages -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figure_files_fit_a_column_and_are_reproducible(group, tmp_path, refusal):
    made = []
    for name in ("one", "two"):
        line = Line("a $x$", (0.0, 1.0), (0.0, 1.0), 0)
        Figures(tmp_path / name).draw_lines("a curve", "A curve", [line], term="")
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    assert made[0].keys() == {"a-curve.pdf", "a-curve.png"}
    [box] = re.findall(rb"/MediaBox \[ ?0 0 ([0-9.]+) ([0-9.]+) ?\]", made[0]["a-curve.pdf"])
    assert float(box[0]) == pytest.approx(3.3 * 72, abs=0.5)
    refusal("report", group[0], "--figures", tmp_path / "none")


@pytest.mark.usefixtures("no_figures")
def test_page_of_a_seed_group_shows_its_seeds_and_json_has_all_values(group, tmp_path, json_of):
    printed = json_of("report", group[0], "--out", tmp_path / "r.html")
    assert printed["runs"] == sorted(f"loss={loss}" for loss in LOSSES)
    rows = printed["scores"]["test"]
    assert {row["seeds"] for row in rows} == {3}
    assert any(0 < row["seed_p_value"] < 1 for row in rows if row["seed_p_value"] is not None)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "curves, maps and galleries show seed 0." in text
    assert re.search(r'<span class="interval">± \d.*over seeds p', text, re.DOTALL)
