"""Rules for every subcommand. Each has an invalid and a valid command here, or a test in another file."""

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import polars as pl
import pytest
import torch

from hgld import open_dataset
from hgld.cli import EXIT_BAD_INPUT, EXIT_FAULT, EXIT_NO_READER, EXIT_STOPPED, VERBS, cli, main
from hgld.cli.output import echo, progress_bars, say_next
from hgld.terminal import is_terminal
from hgld.training.config import with_fields
from hgld.training.progress import BarReporter, LineReporter, progress_reporter
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.interpreter import ROOT
from tests.rows import each_row
from tests.training.untrained_run import CONFIG_OF_RUN, write_run

HGLD = [sys.executable, "-m", "hgld"]

WRONG = {  # invalid arguments, and words of the error message; "nothing" is an empty folder
    "demo": ("--out file.csv", "'file.csv' is a file"),
    "build-hierarchy": ("--names none.csv --out made", "'none.csv' is not a file"),
    "review": ("nothing --no-browser", "no finished build"),
    "compare": ("file.csv file.csv", "identifies the items: file.csv has 'a', 'b' and"),
    "show": ("nothing", "has no classes"),
    "build-shards": ("cub --source nothing --out made", "images.txt"),
    "index": ("nothing", "no tar in it"),
    "verify": ("nothing", "no dataset.json"),
    "card": ("nothing", "no dataset.json"),
    "datasets": ("sob", "there is no dataset 'sob'"),
    "download": ("sop --split train --tars 0 --out made", "hgld datasets sop says how"),
    "train": ("happier-spo", "Did you mean 'happier-sop'?"),
    "embed": ("--checkpoint nothing --data nothing --out made.npy", "no dataset.json"),
    "evaluate": ("--embeddings none.npy --labels file.csv --levels a", "none.npy: cannot be read"),
    "reproduce": ("Nonesuch", "no paper is called 'Nonesuch'"),
    "published": ("--dataset sob", "no published row has dataset 'sob'"),
    "report": ("nothing --out made.html", "Pass a run folder"),
    "audit": ("--embeddings none.npy --labels file.csv --out made", "none.npy: cannot be read"),
    "calibrate": ("--checkpoint nothing --data nothing", "holds no checkpoint"),
    "search": ("file.csv --checkpoint nothing --data nothing", "no dataset.json"),
    "serve": ("nothing --data nothing", "no dataset.json"),
    "export": ("--checkpoint nothing --out made.onnx", "holds no checkpoint"),
    "push": ("nothing hf:somebody/something --dry-run", "holds no checkpoint"),
    "doctor": ("nothing", "unexpected extra argument (nothing)"),
}
RIGHT = {  # valid arguments of commands that take seconds
    "compare": "labels.csv labels.csv",
    "show": "data",
    "index": "data --force",
    "verify": "data",
    "card": "data",
    "datasets": "",
    "embed": "--checkpoint run --data data --split test --out made.npy --device cpu",
    "evaluate": "--embeddings e.npy --labels e.parquet --levels fine,coarse",
    "reproduce": "--list",
    "published": "--dataset sop --method HAPPIER",
    "report": "report.json --out made.html",
    "audit": "--embeddings a.npy --labels a.parquet --out audit",
    "calibrate": "--checkpoint run --data many --split test --device cpu --out made.json",
    "search": "image.jpg --checkpoint run --data data --device cpu",
    "export": "--checkpoint run --out made.onnx",
    "doctor": "",
}
ELSEWHERE = {  # test files that check the --json output of these subcommands
    "demo": "tests/test_demo.py",
    "build-hierarchy": "tests/test_cli.py",
    "review": "tests/pipelines/test_review_page.py",
    "build-shards": "tests/pipelines/test_shard_commands.py",
    "download": "tests/pipelines/test_download.py",
    "serve": "tests/training/test_serve.py",
    "train": "tests/training/test_cli_train.py",
    "push": "tests/hgld/test_hub.py",
}


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Working directory with an empty folder and a small table."""
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def everything(module_path):
    """Working directory with the files for the commands in :data:`RIGHT`."""
    write_dataset(module_path / "data", items_of_classes([5, 5], ["test"]))
    write_dataset(module_path / "many", items_of_classes([2] * 10, ["test"]))
    write_run(module_path / "run")
    write_run(module_path / "gem", config=with_fields(CONFIG_OF_RUN, {"pooling": "gem", "train_split": "test"}))
    (module_path / "image.jpg").write_bytes(open_dataset(module_path / "data").read(1))
    (module_path / "labels.csv").write_text("landmark_id,hierarchical_label\n1,church\n2,lake\n")
    np.save(module_path / "a.npy", np.random.default_rng(0).standard_normal((24, 4)))
    pl.DataFrame({"fine": [i // 4 for i in range(24)]}).write_parquet(module_path / "a.parquet")
    np.save(module_path / "e.npy", np.random.default_rng(0).standard_normal((6, 4)))
    pl.DataFrame({"fine": [0, 0, 1, 1, 2, 2], "coarse": [0, 0, 0, 0, 1, 1]}).write_parquet(module_path / "e.parquet")
    with contextlib.chdir(module_path), pytest.raises(SystemExit, match=r"^0$"):
        main(["evaluate", *RIGHT["evaluate"].split(), "--out", "report.json"])
    return module_path


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("TERM", "NO_COLOR", "FORCE_COLOR")}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | changes


def command_of(verb):
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command


def test_every_subcommand_has_an_invalid_and_a_valid_command():
    assert set(WRONG) == set(VERBS)
    assert set(RIGHT) | set(ELSEWHERE) == set(VERBS)
    assert not set(RIGHT) & set(ELSEWHERE)
    for verb, file in ELSEWHERE.items():
        path = ROOT / file
        assert re.search("--json|json_of", path.read_text()), verb


@each_row("verb", VERBS)
def test_help_describes_every_option_within_50_lines(output, verb):
    out = output(verb, "--help", said="")
    assert out.startswith(f"Usage: hgld {verb} ")
    assert len(out.splitlines()) <= 50
    whole = output(verb, "--help-all")
    options = {option: one for one in command_of(verb).params if isinstance(one, click.Option) for option in one.opts}
    assert "--debug" in options
    assert "--json" in options
    for name, option in options.items():
        assert option.help, name
        assert f"{name}" in whole, name
    assert output(verb, "-h") == out


@each_row("verb", VERBS)
def test_bad_input_prints_one_line_and_debug_adds_the_traceback(refusal, nowhere, verb):
    words, said = WRONG[verb]
    before = sorted(nowhere.rglob("*"))
    err = refusal(verb, *words.split())
    assert re.fullmatch(rf"hgld( {verb})?: .+\n", err)
    assert said in err
    for debugged in (["--debug", verb, *words.split()], [verb, *words.split(), "--debug"]):
        traced = refusal(*debugged)
        assert traced.startswith("Traceback")
        assert traced.splitlines()[-1] == err.strip()
    assert sorted(nowhere.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        "evaluate --embeddings none.npy --labels file.csv --levels a --out {}.json",
        "report nothing --out {}.html",
    ],
)
@pytest.mark.parametrize("place", ["file.csv/new/x", "/proc/x"])
def test_unwritable_output_path_is_refused_before_the_work(refusal, nowhere, words, place):
    err = refusal(*words.format(place).split())
    assert re.search(
        rf"'{place}\.[a-z]+' cannot be written \(.+\)\. Choose another path\. See hgld \w+ --help\.\n", err
    )
    assert (nowhere / "file.csv").read_text() == "a,b\n1,2\n"


def test_report_is_printed_if_it_cannot_be_written(hgld, output, everything, monkeypatch, tmp_path):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(everything)
    words = ["evaluate", *RIGHT["evaluate"].split()]
    shown = output(*words)
    monkeypatch.setattr("hgld.evaluation.report.RetrievalReport.save_json", refuse)
    code, out, err = hgld(*words, "--out", str(tmp_path / "new/r.json"))
    assert (code, out) == (EXIT_BAD_INPUT, shown)
    assert "No space left on device" in err


@pytest.fixture
def with_action(hgld, monkeypatch):
    """``with_action(verb, action)`` runs a subcommand that does nothing but call ``action``."""

    def run(verb: str, action: Callable[[], object]) -> tuple[int, str, str]:
        command = command_of(verb)
        with monkeypatch.context() as patch:
            for name, value in {"params": [], "callback": action}.items():
                patch.setattr(command, name, value)
            patch.setattr(cli, "get_command", lambda context, name: command)
            return hgld(verb)

    return run


@each_row("verb", VERBS)
def test_ctrl_c_exits_with_130_and_one_line(with_action, verb):
    def interrupt():
        raise KeyboardInterrupt

    hint = "" if verb in RIGHT or verb == "serve" else "; the same command resumes"
    assert with_action(verb, interrupt) == (EXIT_STOPPED, "", f"hgld: stopped{hint}.\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_stop_a_command_like_ctrl_c(with_action, number):
    said = f"hgld: stopped by {number.name}; the same command resumes.\n"
    assert with_action("download", lambda: os.kill(os.getpid(), number)) == (128 + number, "", said)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_command_under_nohup_ignores_sighup(with_action):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert with_action("download", lambda: os.kill(os.getpid(), signal.SIGHUP)) == (0, "", "")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_arguments_that_are_not_utf8_are_refused(hgld, nowhere):
    name = os.fsdecode(b"\xe2\x82\xac\xfe\x1b.npy")
    Path(name).write_bytes(b"")
    before = sorted(map(os.fsencode, nowhere.rglob("*")))
    said = "hgld: '€\\xfe\\x1b.npy' on the command line is not UTF-8. Rename the file, or pass a link to it.\n"
    for words in ([name], ["--out", name], [name, "--json"]):
        assert hgld("embed", *words) == (EXIT_BAD_INPUT, "", said)
    assert sorted(map(os.fsencode, nowhere.rglob("*"))) == before


def test_internal_error_exits_with_70_and_a_traceback(with_action):
    def fail():
        raise TypeError("\x1b[2J of hgld's own")

    code, out, err = with_action("verify", fail)
    assert (code, out) == (EXIT_FAULT, "")
    assert err.startswith("Traceback")
    assert "\nTypeError: \\x1b[2J of hgld's own\n" in err
    assert err.splitlines()[-1].startswith("hgld: this is a bug in hgld. Please report it")


@pytest.mark.parametrize("take", [lambda: np.empty(10**15), lambda: torch.empty(10**15)], ids=["numpy", "torch"])
def test_lack_of_memory_prints_one_line(with_action, take):
    code, out, err = with_action("datasets", take)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert re.fullmatch(
        r"hgld: there is not enough memory \(.*allocate.*\)\. Use smaller batches, micro-batches or images\.\n", err
    )


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=pytest.mark.slow if verb in ("export", "reproduce") else ()) for verb in RIGHT]
)
def test_json_is_the_only_output_outside_terminals(hgld, output, everything, no_figures, monkeypatch, verb):
    monkeypatch.chdir(everything)
    out = output(verb, *RIGHT[verb].split(), "--json", said="")

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    assert isinstance(json.loads(out, parse_constant=refuse), dict)
    code, out, err = hgld(verb, *RIGHT[verb].split())
    assert code == 0
    # the suggested next command goes to stderr, so that stdout is pure JSON
    assert all(line.startswith("next: ") for line in err.splitlines())
    assert "\x1b" not in out + err


def test_missing_subcommand_prints_the_help(output, refusal):
    err = refusal()
    assert "train" in err
    listed = [verb for verb in VERBS if f"\n  {verb} " in err]
    assert len(listed) <= 20
    assert all(f"\n  {verb} " in output("--help-all") for verb in VERBS)


def test_colours_follow_the_terminal_and_no_color(everything, monkeypatch):
    def shown_by(**environment):
        """Run a command on a terminal and return what it wrote."""
        ours, theirs = pty.openpty()
        with monkeypatch.context() as patch, os.fdopen(theirs, "w") as terminal:
            for name in ("NO_COLOR", "FORCE_COLOR", "JPY_PARENT_PID"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            for stream in ("stdout", "stderr"):
                patch.setattr(sys, stream, terminal)
            with pytest.raises(SystemExit, match=r"^0$"):
                main(["verify", str(everything / "data")])
            terminal.flush()
            shown = os.read(ours, 1 << 16).decode()
        os.close(ours)
        return shown

    assert re.search(r"\x1b\[[0-9;]*3[0-9]", shown_by(TERM="xterm-256color"))
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?[349][0-8][0-9;]*m", shown_by(TERM="xterm-256color", NO_COLOR="1"))
    assert "\x1b" not in shown_by(TERM="dumb")


@each_row("term", ["xterm", "dumb", "unknown", None])
def test_progress_bars_need_a_terminal_with_a_movable_cursor(monkeypatch, term):
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, progress_reporter(terminal, echo, echo) as shown:
        assert is_terminal(terminal) is (term == "xterm")
        assert isinstance(shown, BarReporter if term == "xterm" else LineReporter)
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress_bars() as progress:
            assert ("progress_bars" in str(progress)) is (term == "xterm")
        monkeypatch.setenv("JPY_PARENT_PID", "1")  # simulates a notebook cell, where TERM is xterm
        assert not is_terminal(terminal)
    os.close(ours)
    with io.StringIO() as file, progress_reporter(file, echo, echo) as shown:
        assert isinstance(shown, LineReporter)


def test_progress_in_a_log_is_a_line_every_five_minutes(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr("hgld.terminal.time.monotonic", lambda: now[0])
    with progress_bars() as progress:
        for seconds in range(0, 1500, 125):
            now[0] = 1000.0 + seconds
            progress("read\nimages", 200 * seconds, 300_000 if seconds < 1000 else None)
    shown = "read images: 75,000 of 300,000\nread images: 150,000 of 300,000\nread images: 225,000\n"
    assert capsys.readouterr() == ("", shown)


@each_row(("words", "unbuffered"), [("datasets --json", ""), ("train --list", "1")])
def test_closed_output_pipe_ends_the_command_quietly(words, unbuffered):
    program = [*HGLD, *words.split()]
    changes = {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**changes)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", EXIT_NO_READER)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_output_device_is_reported():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*HGLD, "datasets"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
        )
    said = b"hgld: the output cannot be written (No space left on device).\n"
    assert (result.returncode, result.stderr) == (EXIT_BAD_INPUT, said)


def test_json_is_ascii_on_a_terminal_without_unicode(output, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    output("datasets", "--json")
    assert len(json.loads(terminal.buffer.getvalue().decode("ascii"))["datasets"]) > 10


def test_suggested_next_command_contains_no_password(capsys):
    say_next("report", "r.json", "--data", "https://me:s3cret@host/set?signature=s3cret", "--out", "r s.html")
    assert capsys.readouterr().out == "next: hgld report r.json --data https://host/set --out 'r s.html'\n"
