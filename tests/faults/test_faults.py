"""A short campaign of mutated files, and the stored cases that once failed."""

import pytest

from tests.faults import campaign
from tests.faults.readers import READERS


def _kept() -> list:
    """Return the stored cases. MATLAB files are read in a separate process, which takes a second to start."""
    slow = ("release-cars196", "release-imagenet")
    marks = {case: [pytest.mark.slow] if case.name.startswith(slow) else [] for case in campaign.KEPT.glob("*-*")}
    return [pytest.param(case, marks=marks[case], id=case.name) for case in sorted(marks)]


@pytest.mark.parametrize("case", _kept())
def test_stored_corrupt_file_is_read_or_raises_an_hgld_error(case, tmp_path):
    reader = next(name for name in READERS if name.replace(" ", "-") == case.name.rpartition("-")[0])
    verdict, detail = campaign.judge(reader, case)
    assert verdict in ("refused", "read"), detail


@pytest.mark.slow
@pytest.mark.long
def test_short_campaign_finds_no_unexpected_error(tmp_path):
    outcomes = list(campaign.run(campaign.drawn(10 * len(READERS), 7), tmp_path))
    assert len(outcomes) == 10 * len(READERS)
    assert not [one for one in outcomes if one.failed]
