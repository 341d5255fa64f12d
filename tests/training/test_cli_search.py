"""``hgld search --index`` finds what an exhaustive search finds, keeps its index and rebuilds a stale one."""

import json
import sys

import pytest

from hgld import open_dataset
from hgld.cli import main
from tests.forked import together
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.training.untrained_run import write_run


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([4, 4, 3], ["test"]))
    write_run(tmp_path / "run")
    (tmp_path / "one.jpg").write_bytes(open_dataset(tmp_path / "data").read(2))
    return tmp_path


@pytest.fixture
def search(folder, capfd, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def run(*arguments):
        words = ["search", "one.jpg", "--checkpoint", "run", "--data", "data", "--device", "cpu", *arguments]
        with pytest.raises(SystemExit) as stop:
            main(words)
        return (stop.value.code, *capfd.readouterr())

    return run


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_search_index_is_built_reused_and_rebuilt_for_another_checkpoint(search, folder, kind):
    exact = search("--json")
    assert exact[0] == 0
    for _ in range(2):
        code, out, err = search("--index", kind, "--json")
        assert (code, err) == (0, "")
        (found,), (expected,) = (json.loads(printed)["queries"] for printed in (out, exact[1]))
        assert {match["key"] for match in found["matches"]} == {match["key"] for match in expected["matches"]}
        assert found["matches"][0]["score"] == pytest.approx(expected["matches"][0]["score"], abs=1e-5)
    code, out, err = search("--index", kind, "--checkpoint-choice", "last")
    assert (code, err) == (0, "")
    assert search("--checkpoint-choice", "last")[1].splitlines()[3].split()[-1] == out.splitlines()[3].split()[-1]
    assert len(list((folder / "cache/hgld/indexes").glob("*/index.faiss"))) == 2
    for index in (folder / "cache/hgld/indexes").glob("*/index.faiss"):
        index.write_bytes(b"IwFl")  # a damaged index is rebuilt
    assert search("--index", kind, "--checkpoint-choice", "last") == (0, out, "")


def test_index_without_faiss_names_the_extra(search, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    code, out, err = search("--index", "hnsw")
    assert (code, out) == (2, "")
    assert "pip install 'hgld[faiss]'" in err
    assert not (folder / "cache/hgld/indexes").exists()


@pytest.mark.slow
def test_two_processes_build_one_search_index(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    words = "search one.jpg --checkpoint run --data data --device cpu --index ivf --json"
    answers = []
    for _ in range(2):
        result = together(main, words.split(), folder=folder)
        assert result.returncode == 0, result.stderr
        answers.append(json.loads(result.stdout))
    assert answers[0] == answers[1]
    assert answers[0]["queries"][0]["matches"][0]["key"] == open_dataset(folder / "data").keys[2]
