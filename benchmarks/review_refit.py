"""Measure how long the review's learner takes after each screen of decisions, on made names.

    OMP_NUM_THREADS=1 python benchmarks/review_refit.py --names 50000 --groups 200

Names are random rows around the groups' centres, and have one of 5,000 words; three tenths of the names are in a random
group. A simulated person decides the first screen of the queue five times. Printed are CPU seconds of the names' words
at the start, of the refit, of the estimates, and of the queue, and the largest memory of the process.
"""

import argparse
import resource
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hgld.pipelines.hierarchy.groups.evidence import add_words
from hgld.pipelines.hierarchy.review.decisions import Entry, Move
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.hierarchy.review.learner import Learner
from hgld.pipelines.hierarchy.review.queue import Queue
from hgld.pipelines.hierarchy.unit_rows import unit

SCREENS, DIM, MISPLACED, WORDS = 5, 384, 0.3, 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, default=50_000)
    parser.add_argument("--groups", type=int, default=200)
    options = parser.parse_args()
    count, groups, random = options.names, options.groups, np.random.default_rng(0)
    truth = random.integers(0, groups, count)
    centres = random.standard_normal((groups, DIM), dtype=np.float32)
    rows = unit(centres[truth] + 1.5 * random.standard_normal((count, DIM), dtype=np.float32)).astype(np.float32)
    start = np.where(random.random(count) < MISPLACED, random.integers(0, groups, count), truth).tolist()
    names = [f"name{i} word{word}" for i, word in enumerate(random.integers(0, WORDS, count).tolist())]
    began = time.process_time()
    rows, _ = add_words(rows, rows[:0], names)
    print(f"words: {time.process_time() - began:.2f} s")
    index, place = {name: i for i, name in enumerate(names)}, dict(zip(names, start, strict=True))
    labels = {group: f"group {group}" for group in range(groups)}
    learner = Learner(names, rows, np.ones(count), place, doubt=random.uniform(0.1, 0.6, count))
    queue, grouping = Queue(learner.rows, by="names"), Grouping.of(place, labels, {})
    print("| decided | refit, s | estimates, s | queue, s |\n|---:|---:|---:|---:|")
    for _ in range(SCREENS):
        times = [time.process_time()]
        now = learner.fit(grouping)
        times.append(time.process_time())
        assert now.still_wrong["names"]
        times.append(time.process_time())
        screen = queue.screens(now)[0]
        times.append(time.process_time())
        print(f"| {len(now.decided)} | {' | '.join(f'{seconds:.2f}' for seconds in np.diff(times))} |", flush=True)
        for name in screen.names:
            move = Move(
                names=(name,), to=labels[int(truth[index[name]])], who="a", when=datetime(2026, 1, 1, tzinfo=UTC)
            )
            grouping.apply(Entry(move, Path("a.yaml"), 1))
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
