import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from hgld.data.batch import BatchBuffers
from hgld.data.streaming import Prefetcher
from hgld.errors import InputError


def test_values_come_in_order():
    with Prefetcher((i for i in range(100)), 3, "test") as values:
        assert list(values) == list(range(100))


def test_no_more_is_made_than_waits():
    made = []

    def values():
        for i in range(100):
            made.append(i)
            yield i

    with Prefetcher(values(), 3, "test") as ahead:
        for taken in range(1, 6):
            next(ahead)
            time.sleep(0.02)
            assert len(made) <= taken + 3


def test_an_error_is_raised_where_its_value_would_have_come():
    def values():
        yield 1
        yield 2
        raise InputError("train-000001.tar: broken")

    with Prefetcher(values(), 5, "test") as ahead:
        assert [next(ahead), next(ahead)] == [1, 2]
        with pytest.raises(InputError, match="broken"):
            next(ahead)
        assert list(ahead) == []


def test_closing_ends_the_generator_in_its_thread():
    ended = []

    def values():
        try:
            while True:
                yield 1
        finally:
            ended.append(threading.current_thread().name)

    ahead = Prefetcher(values(), 2, "the thread")
    next(ahead)
    ahead.close()
    assert ended == ["the thread"]
    assert list(ahead) == []
    assert "the thread" not in [thread.name for thread in threading.enumerate()]


LEFT_RUNNING = """
import itertools, time
import cv2, numpy as np
from hgld.data.streaming import Prefetcher

image = np.zeros((800, 800, 3), np.uint8)
ahead = Prefetcher((cv2.resize(image, (300, 300)) for _ in itertools.count()), 10**9, "left running")
next(ahead)
"""


LEFT_OPEN = """
import itertools, threading
from hgld.data.streaming import Prefetcher

def batches():
    with Prefetcher((i for i in itertools.count()), 3, "left open") as values:
        yield from values

threading.kept = batches()  # closed when the names of that module are gone
next(threading.kept)
"""


@pytest.mark.parametrize("program", [LEFT_RUNNING, LEFT_OPEN], ids=["running", "open"])
def test_what_was_not_closed_ends_with_the_interpreter(program):
    """Killed inside of OpenCV by the interpreter's end, it would abort the process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_waiting_is_measured():
    def values():
        time.sleep(0.05)
        yield 1

    with Prefetcher(values(), 1, "test") as ahead:
        next(ahead)
        assert ahead.waited > 0.04


def test_memory_is_used_again_only_when_nobody_has_it():
    buffers = BatchBuffers()
    first = buffers.take(2, (8, 8))
    assert first.shape == (2, 3, 8, 8)
    assert first.is_contiguous(memory_format=torch.channels_last)
    place = first.data_ptr()
    view = first[1:]  # somebody keeps a part
    view.fill_(7)
    del first
    second = buffers.take(2, (8, 8))
    assert second.data_ptr() != place
    assert (view == 7).all()
    del view
    gc.collect()
    assert buffers.take(2, (8, 8)).data_ptr() == place
    assert buffers.take(1, (8, 8)).shape == (1, 3, 8, 8)
