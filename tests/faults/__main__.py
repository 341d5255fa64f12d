"""The long form: ``python -m tests.faults --hours H`` or ``--cases N``; failures are kept, counts are printed."""

import argparse
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.faults import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.0, help="go on with further seeds for so long")
    parser.add_argument("--cases", type=int, default=0, help="cases in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", help="only this one")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # the first is ignored in what a shell puts into the background
        signal.signal(number, signal.default_int_handler)
    outcomes: list[campaign.Outcome] = []
    ends, seed = time.monotonic() + 3600 * given.hours, given.seed
    with tempfile.TemporaryDirectory() as work, suppress(KeyboardInterrupt):  # Ctrl-C ends it with what was counted
        while True:
            cases = campaign.drawn(given.cases or 20 * len(campaign.READERS), seed)
            cases = [case for case in cases if given.reader in (None, case[0])]
            for outcome in campaign.run(cases, Path(work) / str(seed)):
                outcomes.append(outcome)
                if outcome.failed:
                    print(f"{len(outcomes):,}: {outcome.reader} {outcome.number}: {outcome.verdict}\n{outcome.detail}")
                    print(f"kept in {campaign.keep(outcome, Path(work))}\n", flush=True)
            seed += 1
            if time.monotonic() >= ends:
                break
    print(campaign.table(outcomes))
    return any(outcome.failed for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
