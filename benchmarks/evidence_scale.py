"""Time and memory of weighing, joining and clustering made-up evidence about many names.

    python benchmarks/evidence_scale.py --names 5700 50000

Three blocks about names of 1.5 roots of N kinds: a text and descriptions of 384 numbers, and wording of two roots of N.
"""

import argparse
import resource
import time

import numpy as np
from threadpoolctl import threadpool_limits

from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.evidence.evidence import Block, weigh
from hgld.pipelines.hierarchy.groups.clustering import cluster_names


def blocks(count: int, seed: int = 0) -> list[Block]:
    random = np.random.default_rng(seed)
    kinds = random.integers(0, int(1.5 * count**0.5), count)

    def view(dim: int, spread: float) -> np.ndarray:
        centres = random.normal(size=(int(kinds.max()) + 1, dim))
        return (centres[kinds] + spread * random.normal(size=(count, dim))).astype(np.float32)

    text, wording, said = view(384, 1.0), view(int(2 * count**0.5), 1.0), view(384, 1.2)
    return [Block.of("text", text), Block.of("wording", wording, is_form=True), Block.of("descriptions", said)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, nargs="+", default=[5_700])
    for count in parser.parse_args().names:
        found = blocks(count)
        names = [f"{place:07}" for place in range(count)]
        with threadpool_limits(limits=1):
            before, started = time.process_time(), time.time()
            evidence = weigh(found, groups=round(count**0.5))
            rows = evidence.joint()
            joined = time.process_time() - before
            groups = cluster_names(rows, names, config=ClusterConfig()).groups
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{count:,} names: evidence {joined:.1f}, with clusters {time.process_time() - before:.1f} CPU seconds "
            f"({time.time() - started:.1f} s), {int(groups.max()) + 1} groups, peak {peak:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
