"""Starts a run in a fork for every line on its standard input: says its number, and how it ended."""

import os
import sys
from pathlib import Path

import torch

from hgld.training.config import read_config
from hgld.training.loop import train

if __name__ == "__main__":
    torch.set_num_threads(1)
    config, data, out = sys.argv[1:]
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            train(read_config(Path(config)), data, Path(out))
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
