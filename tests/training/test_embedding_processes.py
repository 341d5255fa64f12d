"""Two processes embed and evaluate like one process; both exclude an image that one of them cannot read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld import distributed
from hgld.cli import main
from hgld.evaluation import postprocess, row_table
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import Whitening, expand_queries
from hgld.evaluation.protocols.benchmark import Benchmark, EmbeddedSplit
from hgld.evaluation.protocols.landmarks import evaluate_trapezoid
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.row_table import RowTable, Sharing, shared_folder
from tests.forked import together
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.training.untrained_run import write_run

FURTHER = {
    "embed": lambda file: ("--fit-whitening", file),
    "evaluate": lambda file: ("--whitening", file, "--query-expansion", "2,3", "--metrics", "R@1,AP,H-AP,dists@inter"),
}


def of_run(places, data):
    return ["--checkpoint", places / "run", "--data", places / data, "--split", "test"]


@pytest.fixture(scope="module")
def places(module_path):
    items = items_of_classes([25, 24, 26], ["test"])
    write_dataset(module_path / "data", items)
    items[-2] = Item(items[-2].labels, "test", items[-2].data[:200] + bytes(300))
    write_dataset(module_path / "damaged", items)
    write_dataset(module_path / "lost", [Item(item.labels, "test", b"no image") for item in items])
    write_run(module_path / "run")
    return module_path


@pytest.fixture
def run(tmp_path):
    """Return ``run(*words)``, which runs ``hgld`` with these arguments as torchrun starts it."""

    def hgld(*words, **more):
        return together(main, [*map(str, words), "--device", "cpu"], folder=tmp_path, **more)

    return hgld


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "of"), [((), "data"), (("--scales", "1,0.5"), "damaged")], ids=["whitened, expanded", "scales, damaged"]
)
def test_embeddings_and_report_of_several_processes_are_bit_identical_to_one(more, of, places, run):
    """No process gathers embeddings: all map one file, rank their own queries, and leave no other file behind."""
    whole = {}
    for count in (1, 2, 4):
        out = places / f"{count}-{of}"
        for verb, file in (("embed", out / "e.npy"), ("evaluate", out / "r.json")):
            further = FURTHER[verb](out / "w.safetensors") if of == "data" else ("--parts", 2)[: 2 * (verb == "embed")]
            run(verb, *of_run(places, of), *more, *further, "--batch-size", 5, "--out", file, count=count)
        report = RetrievalReport.load_json(out / "r.json")
        whole[count] = [(out / "e.npy").read_bytes(), report.values, report.settings, report.per_query]
        files = {"e.npy", "e.labels.parquet", "r.json", "r.per_query.parquet"}
        assert {path.name for path in out.iterdir()} == files | (
            {"e.faults.csv"} if of == "damaged" else {"w.safetensors"}
        )
    for count in (2, 4):
        assert whole[count][:3] == whole[1][:3]
        assert whole[count][3].equals(whole[1][3], null_equal=True)


@pytest.mark.slow
def test_whitening_and_query_expansion_of_several_processes_are_bit_identical_to_one(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", rng.normal(size=(1003, 24)) * np.linspace(1, 3, 24))
    for count in (1, 2, 3, 4):
        together(process_embeddings, tmp_path, folder=tmp_path, count=count)
    found = {}
    for count in (1, 2, 3, 4):
        with np.load(tmp_path / f"{count}.npz") as arrays:
            found[count] = dict(arrays)
        for name, whole in found[1].items():
            np.testing.assert_array_equal(found[count][name], whole)
    assert all(np.isfinite(whole).all() for whole in found[1].values())


def process_embeddings(folder):
    """Whiten and expand in small blocks, and check on every process that the results are mapped from files."""
    postprocess.ROWS_AT_ONCE = row_table.ROWS_AT_ONCE = 16
    with distributed.process_group("cpu", str) as processes, shared_folder(processes) as place:
        share, rows = Sharing(processes, place), np.load(folder / "rows.npy", mmap_mode="r")
        whitening = Whitening.fit(rows, fitted_on="rows", dimensions=20, share=share)
        white = whitening.apply(rows, share)
        options = EvaluationOptions(query_expansion=(2.0, 3), share=share if processes.count > 1 else None)
        expanded = expand_queries(white, white, options, np.arange(len(white)))
        split = EmbeddedSplit(white, pl.Series(["a"]), np.zeros((len(white), 1)))
        further = replace(split, vectors=rows[:30, :20])
        gallery, _ = Benchmark("b", ("fine",), {"distractors": further}).with_distractors(split, options.share)
        judged = ListRelevance(1033, [[np.array([row + 1, row + 2])] for row in range(1003)])
        report = evaluate_trapezoid(expanded, gallery, {"": judged}, options)
        if processes.is_main:
            found = {"white": white, "expanded": expanded, "gallery": gallery, "mAP": report.per_query["mAP"]}
            np.savez(folder / f"{processes.count}.npz", mean=whitening.mean, axes=whitening.components, **found)
        distributed.wait_for_all(processes)


@pytest.mark.slow
def test_process_that_does_not_see_the_folder_of_the_others_says_so(places):
    result = together(embed_with_own_folder, places, folder=places, fails=True)
    assert "process 1 does not see the files of the main process" in result.stderr
    assert "Set TMPDIR to a folder that all processes share" in result.stderr


def embed_with_own_folder(places):
    """Make a table as a process on another machine, where the folder of the main process does not exist."""
    with distributed.process_group("cpu", str) as processes, shared_folder(processes) as folder:
        if not processes.is_main:
            Path.is_file = lambda self: False
        RowTable((4, 2), processes, folder)


@pytest.mark.slow
def test_split_without_readable_images_stops_both_processes(places, run):
    result = run("embed", *of_run(places, "lost"), "--out", places / "lost.npy", fails=True)
    assert "hgld: " in result.stderr
    assert "no item can be read" in result.stderr
    assert not (places / "lost.npy").exists()
