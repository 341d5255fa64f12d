import sys

import pytest

from tests.faults.soak import soak

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_training_from_a_failing_server_leaks_no_memory_and_no_file_descriptor(tmp_path):
    found = soak(300, tmp_path)
    assert found.code == 0, found.errors
    assert found.failures > 10
    assert found.growth < 40 << 20
    assert found.more_handles <= 2
