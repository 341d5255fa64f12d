"""``hgld train --drill``: every failure of a process ends in time, and the run resumes with the same weights."""

import json
import os

import pytest

from hgld.cli import main
from hgld.cli.drill import BY_HAND, FAILURES, SRUN, Outcome, drill

SEEN = Outcome("killed", BY_HAND, ("hgld: another process died", ""), 1.0, 2, ())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_failure_ends_as_promised_and_the_run_resumes(tmp_path):
    said = []
    found = {one.failure: one for one in drill(tmp_path, launchers=(BY_HAND,), say=said.append)}
    assert found.keys() == FAILURES.keys()
    assert {name: one.problems for name, one in found.items() if one.problems} == {}
    assert len(said) == len(FAILURES)
    assert "not enough memory" in found["memory"].lines[1]
    assert "the newest checkpoint is" in found["killed"].lines[0]
    assert all("the loss is nan" in line for line in found["nan"].lines)
    assert found["stuck"].seconds > 10 > found["killed"].seconds


@pytest.mark.slow
@pytest.mark.skipif("SLURM_JOB_ID" not in os.environ, reason="needs a job of Slurm with two tasks")
def test_killed_process_ends_the_job_step_of_srun_and_the_run_resumes(tmp_path):
    [one] = drill(tmp_path, failures=("killed",), launchers=(SRUN,))
    assert one.problems == ()
    assert "the newest checkpoint is" in one.lines[0]


@pytest.mark.parametrize(("problems", "code"), [((), 0), (("took 99 s, not 15",), 1)])
def test_command_prints_the_table_and_fails_if_a_promise_was_broken(problems, code, monkeypatch, capsys):
    monkeypatch.setattr(
        "hgld.cli.drill.drill", lambda *args, **kwargs: [Outcome(**vars(SEEN) | {"problems": problems})]
    )
    for words in ((), ("--json",)):
        with pytest.raises(SystemExit) as end:
            main(["train", "--drill", *words])
        assert end.value.code == code
        said = capsys.readouterr().out
        if words:
            assert json.loads(said)["failures"][0]["seconds"] == 1.0
        else:
            assert "a process is killed" in said
            assert "process 0: hgld: another process died" in said
