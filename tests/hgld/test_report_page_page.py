"""The report page is self-contained, escaped and reproducible; tests of its tasks, datasets and score tables."""

import html
import re
from dataclasses import replace

import matplotlib
import numpy as np
import polars as pl
import pytest
from bs4 import BeautifulSoup

from hgld.errors import ConfigError, InputError, SchemaError, StorageError, TableError
from hgld.evaluation.evaluate import EvaluationOptions, evaluate
from hgld.evaluation.evaluate_files import evaluate_files
from hgld.evaluation.report import RetrievalReport
from hgld.report_page import page, rankings
from hgld.report_page.figures import INK, SERIES, Figures, Line
from hgld.report_page.page import make_report, paper_tables
from hgld.report_page.runs import Evaluation, read_runs
from hgld.report_page.scores import GRADED, score_table
from hgld.training.recipes import RECIPES
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.rows import refused

HOSTILE = [
    '<script>alert("x")</script>',
    "</title><img src=x onerror=alert(1)>",
    r"$\frac{1}{$ & 漢字 \u202e",
    "a'\"<b>",
]
METRICS = ("R@1", "AP", "H-AP")


def write_run(folder, *, seed=0, size=24, names=None, keys=None, shift=2.0, embeddings=None, fine=None, **settings):
    """Write a run folder like training does, with random embeddings that separate the classes a little."""
    fine = np.arange(size) // 3 if fine is None else fine
    if embeddings is None:
        embeddings = np.random.default_rng(seed).normal(size=(size, 8)) + shift * np.eye(8)[fine % 8]
    embeddings = embeddings.astype(np.float32)
    (folder / "reports").mkdir(parents=True)
    (folder / "embeddings").mkdir()
    np.save(folder / "embeddings" / "test.npy", embeddings)
    columns = {"fine": fine, "coarse": fine // 4}
    if names:
        columns = {level: [f"{names[i % len(names)]} {i}" for i in ids] for level, ids in columns.items()}
    labels = np.stack([np.unique(column, return_inverse=True)[1] for column in columns.values()], axis=1)
    table = pl.DataFrame({"key": keys or [f"test/{i:04d}" for i in range(size)], **columns})
    table.write_parquet(folder / "embeddings" / "test.labels.parquet")
    report = evaluate(embeddings, labels, levels=("fine", "coarse"), metrics=METRICS)
    report.settings.update({"files": {"embeddings": "test.npy", "labels": "test.labels.parquet"}, **settings})
    report.save_json(folder / "reports" / "test-epoch-2.json")
    report.save_json(folder / "reports" / "test-epoch-10.json")
    (folder / "log.csv").write_text("step,epoch,loss\n1,0,2.5\n2,0,1.25\n3,1,nan\n")
    (folder / "evaluations.csv").write_text("step,epoch,split,H-AP\n1,1,test,0.25\n3,2,test,0.5\n")
    return report


def read(path):
    """Return a page, and the names and values of all attributes in it."""
    shown = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    return shown, [one for tag in shown.find_all() for one in tag.attrs.items()]


def page_of(tmp_path, *places, **options):
    make_report(places, tmp_path / "r.html", **options)
    return (tmp_path / "r.html").read_text(encoding="utf-8")


# -- the whole page ----------------------------------------------------------------------------------------------------


def test_page_shows_every_section_and_loads_nothing(tmp_path, no_figures):
    write_run(tmp_path / "first")
    report = write_run(tmp_path / "second", seed=1, shift=4.0)
    facts = make_report([tmp_path / "first", tmp_path / "second"], tmp_path / "r.html")
    soup, attributes = read(tmp_path / "r.html")
    shown = soup.get_text(" ")
    loaded = [v for n, v in attributes if n in {"src", "href", "srcset", "data", "xlink:href", "action"}]
    assert all(place.startswith(("#", "data:image/")) for place in loaded)
    assert not [name for name, _ in attributes if name.startswith("on")]
    best = f"Best is second: H-AP {100 * report.values['H-AP']:.2f} % (95 % interval "
    assert f"Measured on test: 24 queries against 24 images, at the levels fine › coarse. {best}" in shown
    assert re.search(r"second minus first: \+\d+\.\d\d \(.* to .*\), p [<=] [\d.]+\.", shown)
    for heading in (
        *("Results", "Precision and recall", "Hierarchical precision and recall", "Mistake severity"),
        *("Map of the embedding", "Most improved from first to second"),
        *("Where is it wrong? Confusions of coarse", "What changed between the runs?"),
        *("What do right and wrong look like?", "Training", "Glossary"),
    ):
        assert heading in shown, heading
    assert "first: epoch 10." in shown  # as text, "2" would sort after "10"
    assert len(soup.find_all("script")) == 3  # data of the tree and of the map, and the script of the page
    asked = {place for place in loaded if place.startswith("#word-")}
    ids = [value for name, value in attributes if name == "id"]
    assert {"#word-map", "#word-training-curve"} < asked <= {f"#{name}" for name in ids}
    assert len(set(ids)) == len(ids)
    assert facts.bytes == (tmp_path / "r.html").stat().st_size < page.MOST_BYTES


def check_hostile_names_are_text(folder, **options):
    """Write a run with hostile names and its page; return the text of the page and the facts about it."""
    run, out = folder / "<img src=x onerror=alert(1)>", folder / "r.html"
    if not run.exists():
        write_run(run, names=HOSTILE, keys=[f"<b>{i}</b>" for i in range(24)])
    facts, (shown, attributes) = make_report([run], out, title="</title><script>", **options), read(out)
    assert len(shown.find_all("script")) == 3
    assert not shown.find_all(["img", "b"])
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert HOSTILE[0] in shown.get_text()
    return out.read_text(), facts


@pytest.mark.usefixtures("no_figures")
def test_hostile_names_are_shown_as_text(tmp_path):
    check_hostile_names_are_text(tmp_path)


@pytest.mark.slow
def test_page_of_the_same_input_has_the_same_bytes_and_no_local_paths(tmp_path):
    text, _ = check_hostile_names_are_text(tmp_path)
    again, facts = check_hostile_names_are_text(tmp_path, figures=tmp_path / "figures")
    assert again == text
    kept = {path.name for path in (tmp_path / "figures").iterdir()}
    assert kept == set(facts.figures)
    assert {"test-precision-recall-hierarchy.pdf", "training-loss.pdf"} <= kept
    assert str(tmp_path) not in text


def test_figures_show_names_that_look_like_colours_or_begin_with_an_underscore():
    names = [INK, f'id="x" url(#{SERIES[0]}) href="#x"', "_hidden", "$\\frac"]
    lines = [Line(name, (0.0, 1.0), (0.0, float(i)), i) for i, name in enumerate(names)]
    made = str(Figures().draw_lines("a", INK, lines, term="").svg)
    shown = [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", made)]
    assert set(names) <= set(shown)
    assert f'aria-label="{INK}"' in made
    assert "var(--s0)" in made
    assert not re.search(r'<[^>]*style="[^"]*#[0-9a-f]{6}', re.sub(r"#000000|#0{3}", "", made))


def test_figures_ignore_the_users_matplotlibrc():
    lines = [Line("a", (0.0, 1.0), (0.0, 1.0), 0)]
    usual = Figures().draw_lines("a", "title", lines, term="").svg
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "axes.grid": True, "lines.linewidth": 9}):
        assert Figures().draw_lines("a", "title", lines, term="").svg == usual
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"embeddings": 1 + 1e-7 * np.random.default_rng(0).normal(size=(24, 8))},
            "run: no map of the embedding, because its images are almost equal, as from a collapsed model.",
        ),
        ({"embeddings": np.eye(8)[np.arange(24) // 3]}, "<td>0.0 %</td><td>– (no mistake)</td><td>100.0 %</td>"),
        ({"fine": np.arange(24)}, "– (no query has an item of its own fine to find)"),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_undefined_values_and_maps_are_shown_in_words(tmp_path, options, words):
    write_run(tmp_path / "run", **options)
    text = page_of(tmp_path, tmp_path / "run")
    assert words in text
    assert not re.search(r">\s*nan\b", text)


@pytest.mark.usefixtures("no_figures")
def test_curves_of_many_queries_use_a_sample_and_state_it(tmp_path, monkeypatch):
    for module in (rankings, page):
        monkeypatch.setattr(module, "MOST_QUERIES", 10)
    write_run(tmp_path / "run")
    log = tmp_path / "run" / "log.csv"
    log.write_text(f"{log.read_text()}4,1")  # a log of a running training, whose last line is unfinished
    told = []
    text = page_of(tmp_path, tmp_path / "run", progress=lambda *step: told.append(step))
    assert ("rank test, run", 24, 24) in told
    assert "Means over 10 of 24 queries, sampled with seed 0." in text
    assert "24 queries that have an item of their own fine in the gallery." in text
    assert "Training" in text


# -- images and datasets -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(module_path):
    """Folder of a dataset with the name "small"."""
    folder = module_path / "data"
    write_dataset(folder, items_of_classes([3] * 8, ("test",), per_coarse=4))
    return folder


@pytest.mark.usefixtures("no_figures")
def test_images_are_framed_by_the_level_that_they_share_with_the_query(tmp_path, data):
    write_run(tmp_path / "run")
    facts = make_report([tmp_path / "run"], tmp_path / "r.html", data=data)
    text = (tmp_path / "r.html").read_text()
    assert facts.pictures == len(set(re.findall(r'src="(data:image/jpeg[^"]+)"', text))) > 10
    assert facts.notes == ("test: the report does not state its dataset; hgld assumes small from --data.",)
    frames = re.findall(r'class="tile" style="--mark:var\(--(\w+)\)" title="([^"]*)"', text)
    meanings = {"ink": "query", "g7": "same fine", "g1": "same coarse", "g0": "nothing in common"}
    assert all(meanings[frame] in says for frame, says in frames)
    assert {frame for frame, _ in frames} == set(meanings)
    legend = re.findall(r'class="frame" style="--mark:var\(--(\w+)\)"></span>([^<]*)<', text)
    assert dict(legend).items() <= meanings.items()


@pytest.mark.usefixtures("no_figures")
def test_images_of_another_dataset_are_excluded_with_a_note(tmp_path, data):
    write_run(tmp_path / "run", dataset="cars196", split="test")
    facts = make_report([tmp_path / "run"], tmp_path / "r.html", data=data)
    said = "test: no images and class names, because --data is small and this is an evaluation of cars196."
    assert (facts.notes, facts.pictures) == ((said,), 0)
    assert said in (tmp_path / "r.html").read_text()


@pytest.mark.usefixtures("no_figures")
def test_images_fill_the_rest_of_the_size_limit(tmp_path, data, monkeypatch):
    write_run(tmp_path / "run", dataset="small", split="test")
    run, out = tmp_path / "run", tmp_path / "r.html"
    full = make_report([run], out, data=data)
    assert full.notes == ()
    places = out.read_text().count("<img src=")
    bare = full.bytes - sum(len(uri) for uri in re.findall(r'src="(data:[^"]+)"', out.read_text()))
    monkeypatch.setattr(page, "MOST_BYTES", bare + 40_000)
    facts = make_report([run], out, data=data)
    assert facts.bytes <= bare + 40_000
    shown = out.read_text().count("<img src=")
    assert 0 < shown < places == shown + facts.pictures_left_out
    assert f"{facts.pictures_left_out} further images are omitted" in out.read_text()


# -- published rows and papers' tables ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_paper_table_shows_a_run_and_its_difference_to_the_recipe(tmp_path, output):
    report = write_run(tmp_path / "run", dataset="sop", split="test")
    (tmp_path / "run" / "config.json").write_text('{"recipe": "happier-sop"}')
    out = tmp_path / "r.html"
    printed = output("report", tmp_path / "run", "--paper", "suprank table 5", "--out", out)
    value = 100 * report.values["R@1/fine"]
    difference = f"{round(value, 1) - 81.0:+.1f}"
    assert "Table V, sop: ResNet-50, 512 dimensions; per cent" in printed
    assert re.search(rf"^run .* {value:.1f} .*\nminus HAPPIER  .* {re.escape(difference)} ", printed, re.MULTILINE)
    assert f'{value:.1f}</span><span class="interval">{difference}</span>' in out.read_text()
    assert "<h2>SupRank Table V</h2>" in out.read_text()


def test_a_run_of_an_unknown_recipe_has_no_differences(tmp_path):
    write_run(tmp_path / "run", dataset="sop", split="test")
    for config in ('{"recipe": ["happier-sop"]}', '{"recipe": "of another package"}'):
        (tmp_path / "run" / "config.json").write_text(config)
        runs = read_runs([tmp_path / "run"])
        [table] = paper_tables(runs, ["SupRank Table V"], lambda name: RECIPES[name].values if name in RECIPES else ())
        assert table.own == 1
        assert not any(row.against for block in table.blocks for row in block.rows)


def test_gem_exponent_of_an_evaluation_is_shown_beside_the_published_exponents(tmp_path):
    write_run(tmp_path / "run", dataset="imagenet", split="test")
    [run] = read_runs([tmp_path / "run"])
    [evaluation] = run.evaluations.values()
    evaluation.report.settings["gem_p"] = 4.0
    [table] = paper_tables([run], ["MultiGrain Section 3.5"], lambda name: ())
    [own] = [row for block in table.blocks for row in block.rows if row.own]
    assert [cell for cell in own.cells if cell] == ["4"]


# -- saved evaluations ---------------------------------------------------------------------------------------------

SIZE = 60


def some_embeddings(seed):
    fine = np.arange(SIZE) // 3
    return (np.random.default_rng(seed).normal(size=(SIZE, 8)) + 2 * np.eye(8)[fine % 8]).astype(np.float32)


def keep(folder, levels=("fine", "top")):
    """Write an evaluation and its files, as ``hgld evaluate --embeddings e.npy --out x.json`` does."""
    sides = {}
    fine = np.arange(SIZE) // 3
    for role, seed in (("", 0), ("gallery_", 1)):
        np.save(folder / f"{role}e.npy", some_embeddings(seed))
        table = pl.DataFrame({"fine": fine, "top": np.where(fine == 4, -7, fine // 10)})
        table.write_parquet(folder / f"{role}l.parquet")
        sides |= {f"{role}embeddings": folder / f"{role}e.npy", f"{role}labels": folder / f"{role}l.parquet"}
    evaluate_files(**sides, levels=levels, options=EvaluationOptions(metrics=METRICS)).save_json(folder / "x.json")


def test_evaluation_accepts_its_embeddings_in_another_precision(tmp_path):
    keep(tmp_path)
    np.save(tmp_path / "e.npy", some_embeddings(0).astype(np.float64))
    [run] = read_runs([tmp_path / "x.json"])
    assert run.evaluations["evaluation"].ranked is not None


@pytest.mark.usefixtures("no_figures")
def test_page_of_an_evaluation_uses_its_embeddings_or_states_why_not(tmp_path):
    keep(tmp_path)
    assert "Mistake severity" in page_of(tmp_path, tmp_path / "x.json")
    (tmp_path / "e.npy").unlink()
    text = page_of(tmp_path, tmp_path / "x.json")
    assert f"e.npy is not in {tmp_path.name}" in text
    assert "Mistake severity" not in text


@pytest.mark.usefixtures("no_figures")
def test_a_run_with_other_levels_is_excluded_from_the_plots_with_a_note(tmp_path):
    for name, levels in (("both", ("fine", "top")), ("one", ("fine",))):
        keep(tmp_path, levels)
        (tmp_path / "x.json").rename(tmp_path / f"{name}.json")
    text = page_of(tmp_path, tmp_path / "both.json", tmp_path / "one.json")
    assert "one: no curves, maps and galleries, because its levels differ from both." in text
    assert "both: no curves" not in text


def change(file, edit):
    edit(pl.read_parquet(file)).write_parquet(file)


def change_settings(folder, **settings):
    report = RetrievalReport.load_json(folder / "x.json")
    replace(report, settings=report.settings | settings).save_json(folder / "x.json")


def read_changed(changes, *, tmp_path):
    keep(tmp_path)
    change_settings(tmp_path, **changes) if isinstance(changes, dict) else changes(tmp_path)
    read_runs([tmp_path / "x.json"])


test_files_changed_after_the_evaluation_are_refused = refused(
    read_changed,
    [
        (
            lambda at: np.save(at / "e.npy", some_embeddings(2)),
            r"e\.npy: the embeddings differ .*x\.json is of another",
        ),
        (lambda at: change(at / "l.parquet", pl.DataFrame.reverse), r"l\.parquet: the labels differ .*x\.json is of"),
        (
            lambda at: change(at / "x.per_query.parquet", pl.DataFrame.head),
            r"x\.json: its table has values of 5 queries",
        ),
        ({"files": {"embeddings": "../e.npy", "labels": "l.parquet"}}, "without folders"),
        (
            lambda at: RetrievalReport.from_columns({"F1": np.ones(3)}, {}).save_json(at / "x.json"),
            r"x\.json: metric 'F1' is unknown",
        ),
        ({"levels": 5}, r"x\.json: levels is 5; expected a list of different names"),
        ({"alpha": "x"}, r"x\.json: alpha is 'x'; expected a number"),
        ({"weights": 5}, r"x\.json: weights is 5; expected null or a list of numbers"),
    ],
    (InputError, SchemaError),
)


# -- tasks -------------------------------------------------------------------------------------------------------------


def report_of(noise=None, **settings):
    report = evaluation(noise, levels=("fine", "coarse"), metrics=("AP",)).report
    return replace(report, settings=report.settings | settings)


def write_reports(folder, **reports):
    """Write a run folder with these reports, keyed by task."""
    (folder / "reports").mkdir(parents=True)
    for entry, report in reports.items():
        report.save_json(folder / "reports" / f"{entry}-epoch-1.json")
    return folder


@pytest.mark.usefixtures("no_figures")
def test_an_evaluation_of_a_checkpoint_is_compared_with_its_run(tmp_path):
    write_reports(tmp_path / "run", test=report_of(dataset="sop", split="test"))
    again = report_of(1, dataset="sop", split="test", files={}, checkpoint={"epoch": 1})
    again.save_json(tmp_path / "again.json")
    facts = make_report([tmp_path / "run", tmp_path / "again.json"], tmp_path / "r.html", baseline="again")
    assert set(facts.scores) == {"test"}
    text = (tmp_path / "r.html").read_text()
    [table] = re.findall(r'<table class="scores sortable">.*?</table>', text, re.DOTALL)
    assert re.findall(r'<th scope="row">([^<]*)', table)[:2] == ["run", "again"]
    assert "p &lt; 0.001" in table
    assert "hgld evaluate --checkpoint keeps no embeddings" in text
    assert "<h2>Test</h2>" in text


def test_task_names_contain_splits_and_datasets_if_there_are_several(tmp_path):
    query = {"split": "query", "gallery_split": "gallery"}
    write_reports(tmp_path / "a", test=report_of(dataset="cub", split="test"))
    write_reports(tmp_path / "b", **{"query-gallery": report_of(dataset="iNat", **query), "val": report_of()})
    report_of().save_json(tmp_path / "plain.json")
    alone, named = read_runs([tmp_path / "a"]), read_runs([tmp_path / "a", tmp_path / "b", tmp_path / "plain.json"])
    assert [set(run.evaluations) for run in alone] == [{"test"}]
    assert [set(run.evaluations) for run in named] == [
        {"test of cub"},
        {"query/gallery of iNat", "val"},
        {"evaluation"},
    ]


# -- the table of results ----------------------------------------------------------------------------------------------


def evaluation(noise=None, *, levels=("a", "b"), metrics=METRICS):
    """Evaluate random embeddings or, with ``noise``, class directions plus noise: less noise gives higher values."""
    fine = np.arange(120) // 4
    rng = np.random.default_rng(1)
    embeddings = rng.normal(size=(120, 16))
    if noise is not None:
        embeddings = rng.normal(size=(30, 16))[fine] + noise * embeddings
    labels = np.stack([fine // 5**i for i in range(len(levels))], axis=1)
    return Evaluation(evaluate(embeddings, labels, levels=levels, metrics=metrics), None, None)


def headings(table):
    """Return the level and the metric of every column from the two heading rows."""
    levels = [level for level, width in table.groups for _ in range(width)]
    return list(zip(levels, table.columns, strict=True))


def test_runs_with_different_levels_get_separate_columns():
    runs = {
        "a": evaluation(levels=("landmark", "group")),
        "b": evaluation(levels=("product", "kind"), metrics=(*METRICS, "NDCG")),
    }
    table = score_table(runs)
    assert [level for level, _ in table.groups] == ["landmark", "group", "product", "kind", GRADED]
    for name, scores in table.runs:
        values = runs[name].report.values
        pairs = zip(headings(table), scores, strict=True)
        shown = {(m if level == GRADED else f"{m}/{level}"): score.shown for (level, m), score in pairs}
        assert {m: v for m, v in shown.items() if v} == {m: f"{100 * v:.2f}" for m, v in values.items()}


def test_arrows_and_signs_show_which_run_is_better():
    noises = {"best": 0.3, "middle": 1.2, "worst": 3.0}
    table = score_table({name: evaluation(noise) for name, noise in noises.items()}, "middle")
    assert any("▲ and ▼: differs from middle with p" in note for note in table.notes)
    changes = {"best": ("better", "+"), "middle": ("", ""), "worst": ("worse", "-")}
    for name, scores in table.runs:
        for score in scores:
            assert (score.change, score.comparison[:1]) == changes[name]
            assert score.best == (name == "best")
            assert score.low <= score.value <= score.high


def test_equal_runs_and_a_single_run_have_no_arrows():
    run = evaluation(1.2)
    [_, (_, scores)] = score_table({"one": run, "same": run}).runs
    assert {score.change for score in scores} == {""}
    assert all(score.comparison.startswith("+0.00") for score in scores)
    alone = " ".join(score_table({"one": run}).notes)
    assert "▲" not in alone
    assert "where many share few classes, intervals are too narrow." in alone


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_invalid_input_is_refused_without_writing_files(tmp_path, monkeypatch):
    run, out = tmp_path / "run", tmp_path / "r.html"
    (tmp_path / "empty").mkdir()
    write_run(run)

    def config(text):
        (run / "config.json").write_text(text)

    for make, error, words, options in (
        (None, InputError, r"empty: neither .* run folder", {"places": [tmp_path / "empty"]}),
        (None, ConfigError, "'other' is not among the runs", {"baseline": "other"}),
        (None, StorageError, "--out must be a file in an existing folder", {"out": tmp_path / "none" / "x.html"}),
        (None, StorageError, "--out must be a file in", {"out": run}),
        (lambda: monkeypatch.setattr(page, "MOST_BYTES", 1000), ConfigError, "Choose fewer runs", {}),
        (lambda: config("{"), InputError, "config.json: not valid JSON", {}),
        (lambda: config(f'"{" " * (1 << 20)}"'), InputError, "config.json: .* bytes", {}),
        (lambda: np.save(run / "embeddings" / "test.npy", np.ones((5, 8))), TableError, r"24 rows.* 5", {}),
    ):
        if make:
            make()
        with pytest.raises(error, match=words):
            make_report(**{"places": [run], "out": out, "figures": tmp_path / "figures", **options})
        assert not out.exists()
    assert not (tmp_path / "figures").exists()
