"""Tab completion: scripts for three shells, and names behind the Tab key that are the real ones."""

import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hgld.cli import COMPLETE_VARIABLE, VERBS, main
from hgld.evaluation.metric import Metric
from hgld.evaluation.metric_kinds import METRICS, offered_names
from hgld.losses.registry import LOSSES
from hgld.pipelines.shards.sources import OWN_DATA, SOURCES
from hgld.training.recipes import RECIPES

ROOT = Path(__file__).parents[1]
BASH = shutil.which("bash")


@pytest.fixture
def completed(monkeypatch, capsys):
    """``completed("train hap")``: what the shell is offered for the last word, ``""`` where a word begins."""

    def ask(typed: str) -> list[tuple[str, str]]:
        monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
        monkeypatch.setenv("COMP_LINE", f"hgld {typed}")
        monkeypatch.setenv("COMP_WORDBREAKS", " \t\n\"'@><=;|&(:")
        with pytest.raises(SystemExit) as stop:
            main([])
        assert stop.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        return [(kind, value) for kind, _, value in (line.partition(",") for line in lines if line)]

    return ask


def plain(*values):
    return [("plain", value) for value in values]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("build", ("build-hierarchy", "build-shards")),
        ("datasets ", tuple(name for name in SOURCES if name not in OWN_DATA)),
        ("datasets dyml-v", ("dyml-vehicle",)),
        ("build-shards mani", ("manifest",)),
        ("build-shards ", tuple(SOURCES)),
        ("download ", ("gldv2",)),
        ("train happier-s", tuple(name for name in RECIPES if name.startswith("happier-s"))),
        ("train x --loss ", tuple(LOSSES)),
        ("train x --loss Sup", ("SupHAP", "SupNDCG", "SupAP", "SupRecall")),
        ("train x --metrics AP,H-A", ("AP,H-AP",)),
        ("train x --best-by NDCG", ("NDCG", "NDCG@10")),
        ("train x --pooling g", ("gem",)),
        ("evaluate --metrics H-AP,R@", ("@1", "@10", "@100")),  # where the word that bash replaces begins
        ("evaluate --metrics H-AP,R@1,m", ("@1,mAP@R", "@1,mAP@100")),
        ('evaluate --metrics "H-AP,R@1', ("H-AP,R@1", "H-AP,R@10", "H-AP,R@100")),
        ("evaluate --metrics=H-AP,mAP@R", ("@R",)),
        ("train x --loss=Sup", ("SupHAP", "SupNDCG", "SupAP", "SupRecall")),
        ("train x --loss=", tuple(LOSSES)),
        ("published --dataset dyml-", ("dyml-vehicle", "dyml-animal", "dyml-product")),
        ("published --paper su", ("suprank",)),
        ("search x --index ", ("exact", "ivf", "hnsw")),
        ("completion ", ("bash", "zsh", "fish")),
        ("embed --checkpo", ("--checkpoint",)),
        ("verify --deb", ("--debug",)),
        ("train x --dim ", ()),
        ("fly ", tuple(VERBS)),  # click begins anew behind a word that it does not know
    ],
)
def test_names_are_offered(completed, typed, offered):
    assert offered or typed.endswith(" ")
    assert completed(typed) == plain(*offered)


def test_places_are_left_to_the_shell(completed):
    assert completed("train run/conf") == [("file", "run/conf")]
    assert completed("embed --checkpoint ") == [("dir", "")]
    assert completed("compare ") == [("file", "")]


def test_all_verbs_are_offered(completed):
    assert completed("") == plain(*VERBS)


def test_every_kind_of_metric_is_offered_by_a_name_that_parses():
    assert {Metric.parse(name).kind for name in offered_names()} == set(METRICS)
    assert len(set(offered_names())) == len(offered_names())


@pytest.mark.parametrize(
    ("shell", "asked"), [("bash", "bash_complete"), ("zsh", "zsh_complete"), ("fish", "fish_complete")]
)
def test_the_script_asks_hgld(capsys, shell, asked):
    with pytest.raises(SystemExit) as stop:
        main(["completion", shell])
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    assert f"{COMPLETE_VARIABLE}={asked}" in out
    assert "hgld" in out


@pytest.fixture
def bash(tmp_path) -> Iterator[Callable[[str, str], str]]:
    """``bash(typed, shown)`` types into an interactive bash that knows the script, and waits for what is then shown."""
    command = tmp_path / "hgld"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hgld "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    changes = {"PATH": path, "PYTHONPATH": str(ROOT), "TERM": "dumb", "PS1": "$ ", "INPUTRC": os.devnull}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    shell = subprocess.Popen(
        [str(BASH), "--norc", "--noprofile", "-i"],
        env=os.environ | changes,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )

    def answer(typed: str, shown: str) -> str:
        os.write(ours, typed.encode())
        seen, until = b"", time.monotonic() + 60
        while shown.encode() not in seen and time.monotonic() < until:
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 1 << 16)
        return seen.decode()

    try:
        answer('eval "$(hgld completion bash)"; complete -p hgld\n', "complete -o nosort -F _hgld_completion hgld\r")
        yield answer
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_bash_completes_behind_at_and_equals_signs(bash):
    for typed, whole in (
        ("hgld train happier-so", "hgld train happier-sop"),
        ("hgld evaluate --metrics mAP@1", "hgld evaluate --metrics mAP@100"),
        ("hgld evaluate --metrics=mAP@1", "hgld evaluate --metrics=mAP@100"),
        ("hgld evaluate --metrics H-AP,TR@", "hgld evaluate --metrics H-AP,TR@10"),
        ("hgld evaluate --metrics R@1,ND", "hgld evaluate --metrics R@1,NDCG"),
        ("hgld evaluate --metrics 'H-AP,TR@", "hgld evaluate --metrics H-AP,TR@10"),
        ("hgld train x --loss=SupH", "hgld train x --loss=SupHAP"),
        ("FIRST=1 hgld train x --pooling g", "FIRST=1 hgld train x --pooling gem"),
    ):
        printed = bash(f"{typed}\t\x01echo :\n", f"\n:{whole}\r")  # Ctrl-A: to the beginning of the line
        assert f"\n:{whole}\r" in printed, typed
