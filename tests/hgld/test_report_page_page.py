"""The report page as a whole: self-contained, escaped, the same bytes twice; bad input is refused by name."""

import ast
import csv
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.cli import main
from hgld.errors import ConfigError, InputError, TableError
from hgld.evaluation.evaluate import evaluate
from hgld.report_page import page
from hgld.report_page.gallery import Thumbnails
from hgld.report_page.page import write_report_page
from hgld.report_page.published import PublishedResults
from tests.hgld.small_dataset import items_of_classes, write_dataset

HOSTILE = [
    '<script>alert("x")</script>',
    "</title><img src=x onerror=alert(1)>",
    r"$\frac{1}{$ & 漢字 \u202e",
    "a'\"<b>",
]
METRICS = ("R@1", "AP", "H-AP")


def write_run(folder, *, seed=0, size=24, names=None, keys=None, shift=2.0):
    """A run folder as training leaves it, of random embeddings that know their classes a little."""
    rng = np.random.default_rng(seed)
    fine = np.arange(size) // 3
    labels = np.stack([fine, fine // 4], axis=1)
    embeddings = (rng.normal(size=(size, 8)) + shift * np.eye(8)[fine % 8]).astype(np.float32)
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
    report.settings["files"] = {"embeddings": "test.npy", "labels": "test.labels.parquet"}
    report.save_json(folder / "reports" / "test-epoch-2.json")
    report.save_json(folder / "reports" / "test-epoch-10.json")
    with open(folder / "log.csv", "w", newline="") as file:
        csv.writer(file).writerows([("step", "epoch", "loss"), (1, 0, 2.5), (2, 0, 1.25), (3, 1, "nan")])
    with open(folder / "evaluations.csv", "w", newline="") as file:
        csv.writer(file).writerows([("step", "epoch", "split", "H-AP"), (1, 1, "test", 0.25), (3, 2, "test", 0.5)])
    return report


class Reader(html.parser.HTMLParser):
    """What a browser would load or run, and the text that it would show."""

    def __init__(self):
        super().__init__()
        self.loaded, self.handlers, self.text, self.tags, self.ids = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.loaded += [v for n, v in attrs if n in {"src", "href", "srcset", "data", "xlink:href", "action"}]

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def test_everything_is_on_one_page_that_loads_nothing(tmp_path):
    write_run(tmp_path / "first")
    report = write_run(tmp_path / "second", seed=1, shift=4.0)
    facts = write_report_page([tmp_path / "first", tmp_path / "second"], tmp_path / "r.html", plots=tmp_path / "plots")
    reader = read(tmp_path / "r.html")
    shown = " ".join(reader.text)
    assert all(place.startswith(("#", "data:image/")) for place in reader.loaded)
    assert not reader.handlers
    assert f"{100 * report.values['H-AP']:.2f}" in shown
    for heading in (
        *("Results", "Precision and recall", "Hierarchical precision and recall", "Mistake severity"),
        *("Maps of the embedding", "Most improved from first to second", "Worst queries, second", "Classes"),
        *("Training", "Glossary"),
    ):
        assert heading in shown, heading
    assert "first: epoch 10." in shown  # not epoch 2, which sorts behind it as text
    assert reader.tags.count("script") == 1
    asked = {place for place in reader.loaded if place.startswith("#word-")}
    assert {"#word-map", "#word-training-curve"} < asked <= {f"#{name}" for name in reader.ids}
    kept = {path.name for path in (tmp_path / "plots").iterdir()}
    assert kept == set(facts.plots)
    assert {"test-precision-recall-hierarchy.svg", "test-precision-recall-hierarchy.png", "training-loss.png"} <= kept
    assert facts.bytes == (tmp_path / "r.html").stat().st_size < page.MOST_BYTES


def test_every_plot_has_an_entry_of_the_glossary():
    folder = Path(page.__file__).parent
    calls = [
        {word.arg: word.value for word in node.keywords}
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "figures.draw"
    ]
    assert len(calls) == 9
    assert all("term" in call for call in calls)  # glossary() knows it, or fails


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The page of a run, which lies beside it."""
    page = tmp_path_factory.mktemp("plain") / "r.html"
    write_run(page.parent / "run")
    write_report_page([page.parent / "run"], page)
    return page


def test_the_same_input_gives_the_same_bytes(plain, tmp_path):
    write_report_page([plain.parent / "run"], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == plain.read_bytes()
    assert str(plain.parent) not in plain.read_text()


def test_hostile_names_stay_text(tmp_path):
    write_run(tmp_path / "<img src=x onerror=alert(1)>", names=HOSTILE, keys=[f"<b>{i}</b>" for i in range(24)])
    write_report_page([tmp_path / "<img src=x onerror=alert(1)>"], tmp_path / "r.html", title="</title><script>")
    reader = read(tmp_path / "r.html")
    assert reader.tags.count("script") == 1
    assert "img" not in reader.tags
    assert "b" not in reader.tags
    assert not reader.handlers
    assert any(HOSTILE[0] in text for text in reader.text)


def test_the_policy_allows_our_script_alone(plain):
    import base64
    import hashlib

    text = plain.read_text()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy.replace("&#43;", "+")


@pytest.mark.usefixtures("no_figures")
def test_pictures_of_the_dataset_are_framed_by_what_they_share(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3] * 8, ("test",), per_coarse=4))
    write_run(tmp_path / "run")
    facts = write_report_page([tmp_path / "run"], tmp_path / "r.html", data=tmp_path / "data")
    text = (tmp_path / "r.html").read_text()
    assert facts.pictures == len(set(re.findall(r'src="(data:image/jpeg[^"]+)"', text))) > 10
    frames = re.findall(r'class="tile (\w+)" title="([^"]*)"', text)
    for frame, says in frames:
        expected = {"query": "query", "right": "same fine", "near": "same coarse", "wrong": "nothing in common"}[frame]
        assert expected in says
    assert {frame for frame, _ in frames} == {"query", "right", "near", "wrong"}


def test_pictures_without_room_are_counted(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3], ("test",)))
    from hgld.data.dataset import open_dataset

    dataset = open_dataset(tmp_path / "data")
    first, *others = dataset.keys.to_list()
    one = Thumbnails(dataset).uri(first)
    few = Thumbnails(dataset, most_bytes=len(one))
    assert [few.uri(first), *map(few.uri, others)] == [one, "", ""]
    assert (few.left_out, few.bytes) == (2, len(one))


@pytest.mark.usefixtures("no_figures")
def test_kept_evaluations_find_their_embeddings(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "e.npy", rng.normal(size=(12, 4)).astype(np.float32))
    pl.DataFrame({"fine": np.arange(12) // 2, "top": np.arange(12) // 6}).write_parquet(tmp_path / "l.parquet")
    files = ["--embeddings", tmp_path / "e.npy", "--labels", tmp_path / "l.parquet", "--levels", "fine,top"]
    for arguments in (["evaluate", *files, "--out", tmp_path / "x.json"], ["report", tmp_path / "x.json", "--json"]):
        more = ["--out", tmp_path / "r.html"] if arguments[0] == "report" else []
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in [*arguments, *more]])
        assert stop.value.code == 0
        printed = capsys.readouterr().out
    assert json.loads(printed)["runs"] == ["x"]
    assert "Mistake severity" in (tmp_path / "r.html").read_text()
    (tmp_path / "e.npy").unlink()
    write_report_page([tmp_path / "x.json"], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert f"e.npy is not in {tmp_path.name}" in text
    assert "Mistake severity" not in text


def test_bad_input_is_refused_by_name(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: neither .* run folder"):
        write_report_page([tmp_path / "empty"], tmp_path / "r.html")
    write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="'other' is not among the runs"):
        write_report_page([tmp_path / "run"], tmp_path / "r.html", baseline="other")
    np.save(tmp_path / "run" / "embeddings" / "test.npy", np.ones((5, 8), np.float32))
    with pytest.raises(TableError, match=r"24 rows.* 5"):
        write_report_page([tmp_path / "run"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_an_evaluation_cannot_point_outside_its_folder(tmp_path):
    report = write_run(tmp_path / "run")
    report.settings["files"] = {"embeddings": "../e.npy", "labels": "l.parquet"}
    report.save_json(tmp_path / "x.json")
    with pytest.raises(InputError, match="names without folders"):
        write_report_page([tmp_path / "x.json"], tmp_path / "r.html")


@pytest.mark.usefixtures("no_figures")
def test_a_page_that_grows_too_large_is_not_written(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    monkeypatch.setattr(page, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match="Name fewer runs"):
        write_report_page([tmp_path / "run"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


@pytest.mark.usefixtures("no_figures")
def test_published_rows_stand_below(tmp_path):
    table = tmp_path / "published.csv"
    table.write_text("dataset,method,metric,value,source\nsop,Mine,R@1,50.5,Us 2026\nsop,Mine,H-AP,40,Us 2026\n")
    rows = PublishedResults(table).of("sop")
    assert rows[0].values == {"R@1": 50.5, "H-AP": 40.0}
    [happier] = [row for row in rows if row.method == "HAPPIER" and "Table V:" in row.source]
    assert happier.values == {"R@1": 81.0, "AP": 60.4, "H-AP": 59.4, "ASI": 65.9, "NDCG": 91.5}
    assert all(row.source for row in rows)
    assert PublishedResults().of("no such set") == []
    report = write_run(tmp_path / "run")
    report.settings["dataset"] = "sop"
    report.save_json(tmp_path / "run" / "reports" / "test-epoch-10.json")
    write_report_page([tmp_path / "run"], tmp_path / "r.html", published=table)
    text = " ".join(read(tmp_path / "r.html").text)
    assert "Mine" in text
    assert "50.5" in text
    table.write_text("dataset,method,metric,value,source\nsop,Mine,R@1,high,Us\n")
    with pytest.raises(TableError, match="row 2: value 'high'"):
        PublishedResults(table)


@pytest.mark.usefixtures("no_figures")
def test_a_log_that_is_being_written_is_read(tmp_path):
    write_run(tmp_path / "run")
    with open(tmp_path / "run" / "log.csv", "a") as file:
        file.write("4,1")
    write_report_page([tmp_path / "run"], tmp_path / "r.html")
    assert "Training" in " ".join(read(tmp_path / "r.html").text)
