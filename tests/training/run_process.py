"""What the tests of kills and of several processes start: one process of a run, its options in a file."""

import sys
from pathlib import Path

import torch

from training.config_files import read_config
from training.loop import train
from training.progress import Lines

if __name__ == "__main__":
    torch.set_num_threads(1)
    config, data, out = sys.argv[1:]
    train(read_config(Path(config)), data, Path(out), progress=Lines(sys.stdout))
