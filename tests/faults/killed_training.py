"""Trains in two processes, of which the first is killed at a change of its checkpoints: CONFIG DATA, then lines OUT N.

Both are forks of one process with all imports done. The line that comes out has their exit codes; N -1 kills none.
"""

import json
import os
import socket
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from hgld.training.config import read_config
from hgld.training.loop import train
from tests.faults.disk import failing_disk


def one(rank: int, port: int, config: str, data: str, out: Path, after: int) -> None:
    """Be one of the processes, as under torchrun."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with failing_disk(out / "checkpoints", after, "kill") if rank == 0 and after >= 0 else nullcontext():
        train(read_config(Path(config)), data, out)


def both(config: str, data: str, out: Path, after: int) -> list[int]:
    """Train until a kill or to the end; the exit codes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                one(rank, port, config, data, out, after)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    for line in sys.stdin:
        place, number = json.loads(line)
        print(json.dumps(both(sys.argv[1], sys.argv[2], Path(place), number)), flush=True)
