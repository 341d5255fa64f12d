"""Long run of mutated files: ``python -m tests.faults --cases N`` counts the verdicts and keeps failed cases."""

import argparse
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.faults import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--cases", type=int, default=20 * len(campaign.READERS), help="cases in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", help="name of the only reader to test")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    cases = [case for case in campaign.drawn(given.cases, given.seed) if given.reader in (None, case[0])]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as work, suppress(KeyboardInterrupt):  # after Ctrl-C, print the counts so far
        for outcome in campaign.run(cases, Path(work)):
            counts[outcome.verdict] += 1
            if outcome.failed:
                print(f"{outcome.reader} {outcome.number}: {outcome.verdict}\n{outcome.detail}")
                print(f"kept in {campaign.keep(outcome, Path(work))}\n", flush=True)
    print(dict(counts))
    return counts["refused"] + counts["read"] < counts.total()


if __name__ == "__main__":
    sys.exit(main())
