"""The counter of the journeys counts."""

import pytest

from tests.journeys.journey import Journey, count_words


def test_journey_counts_and_limits_commands_flags_and_words(tmp_path):
    journey = Journey(tmp_path)
    assert "hgld" in journey.hgld("--version")
    assert "trian" in journey.hgld("trian --data -1 --out=x -v", code=2)
    assert (len(journey.commands), journey.flags) == (2, 4)
    assert journey.words == sum(map(count_words, journey.texts)) > 0
    journey.check()
    for limit in ("commands", "flags", "words"):
        with pytest.raises(AssertionError, match="2 commands, 4 flags"):
            journey.check(**{limit: 1})
    with pytest.raises(AssertionError, match="exit code 2"):
        journey.hgld("trian")


def test_table_rules_and_redrawn_bars_are_not_counted_as_words():
    assert count_words("| R@1 | .97 |\n|---|--:|\n\r 1/3 embed\r 3/3 embed\n") == 2 + 2
