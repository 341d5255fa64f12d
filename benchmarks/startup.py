"""Start-up time of the command: ``python benchmarks/startup.py`` (medians of 11 starts, seconds).

Python's own start is measured in the same run, because it is the floor and differs between machines.
"""

import statistics
import subprocess
import sys
import time

from hgld.cli import VERBS


def median_seconds(command: list[str], times: int = 11) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    floor = median_seconds([sys.executable, "-c", "pass"])
    print(f"{'python -c pass':32} {floor:.3f} s")
    commands = [["--help"], *([verb, "--help"] for verb in VERBS)]
    for arguments in commands:
        seconds = median_seconds([sys.executable, "-m", "hgld", *arguments])
        print(f"{'hgld ' + ' '.join(arguments):32} {seconds:.3f} s  ({seconds / floor:.1f} x python)")


if __name__ == "__main__":
    main()
