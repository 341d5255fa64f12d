"""Which of the processes that torchrun or Slurm started this one is, as the environment says; imports nothing heavy."""

import os

from hgld.errors import ConfigError


def is_main_process() -> bool:
    """Whether this process is the first of those that torchrun or Slurm started, whether they have met or not."""
    names = _variables()
    return names is None or os.environ.get(names[0]) == "0"


def _variables() -> tuple[str, str, str] | None:
    """Which variables hold index, count and index on this machine; None for a process of its own."""
    if "RANK" in os.environ:
        return "RANK", "WORLD_SIZE", "LOCAL_RANK"
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
    return None


def process_place() -> tuple[int, int, int]:
    """Index, count and index on this machine, as torchrun or else Slurm (srun) says; 0, 1, 0 where neither does.

    Raises:
        ConfigError: the environment is incomplete.
    """
    names = _variables()
    if names is None:
        return 0, 1, 0
    missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"{names[0]} is set but {', '.join(missing)} is not; start with torchrun, or under Slurm export "
            "MASTER_ADDR and MASTER_PORT of the first node (docs/training.md has the lines)."
        )
    index, count, local = (int(os.environ[name]) for name in names)
    return index, count, local
