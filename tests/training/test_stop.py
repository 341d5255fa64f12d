"""The first signal requests a stop, the second stops at once; afterwards the earlier handlers are restored."""

import os
import signal

import pytest

from hgld.distributed import stop_requests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_first_signal_requests_stop_and_second_interrupts(number):
    before = signal.getsignal(number)
    with stop_requests() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(number) is before


def test_ignored_hangup_does_not_stop_a_run():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)
