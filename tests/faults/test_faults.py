"""The campaign in its short form, and the cases that once failed."""

from pathlib import Path

import pytest

from tests.faults import campaign
from tests.faults.readers import READERS


def test_cases_are_functions_of_their_number(tmp_path):
    samples = tmp_path / "sample"
    samples.mkdir()
    READERS["labels csv"].make(samples)
    some = [campaign.write_case("labels csv", n, samples, tmp_path / f"{n}").read_bytes() for n in range(9)]
    again = [campaign.write_case("labels csv", n, samples, tmp_path / f"again{n}").read_bytes() for n in range(9)]
    assert some == again
    assert len(set(some)) > 5


def test_faults_are_told(tmp_path, monkeypatch):
    def failing(folder: Path) -> None:
        raise KeyError(folder.name)

    monkeypatch.setitem(READERS, "labels csv", READERS["labels csv"].__class__(print, failing))
    (tmp_path / "case").mkdir()
    verdict, detail = campaign.judge("labels csv", tmp_path / "case")
    assert verdict == "fault"
    assert "KeyError: 'case'" in detail


def _kept() -> list:
    """The kept cases; MATLAB files are read in a process of their own, which takes a second to begin."""
    slow = ("release-cars196", "release-imagenet")
    marks = {case: [pytest.mark.slow] if case.name.startswith(slow) else [] for case in campaign.KEPT.glob("*-*")}
    return [pytest.param(case, marks=marks[case], id=case.name) for case in sorted(marks)]


@pytest.mark.parametrize("case", _kept())
def test_cases_that_once_failed(case, tmp_path):
    reader = next(name for name in READERS if name.replace(" ", "-") == case.name.rpartition("-")[0])
    verdict, detail = campaign.judge(reader, case)
    assert verdict in ("refused", "read"), detail


@pytest.mark.slow
def test_the_campaign_in_its_short_form(tmp_path):
    outcomes = list(campaign.run(campaign.drawn(20 * len(READERS), 7), tmp_path))
    assert len(outcomes) == 20 * len(READERS)
    assert not [one for one in outcomes if one.failed]
