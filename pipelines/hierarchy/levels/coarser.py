"""Groups of groups: the levels above the groups that come of the data.

Groups are joined by Ward's criterion over the mean embeddings of their names, weighted by the number of names, into as
many coarser groups as are wanted. Without a wanted number every number of a geometric series up to half of the groups
is tried, and the one is taken whose groups are on average nearest to their own centre and farthest from the next one
(the simplified silhouette, weighted by names; the smaller number at a tie).
"""

import numpy as np
from threadpoolctl import threadpool_limits

from ..groups.clustering import margins
from ..groups.kmeans import sums, unit
from ..groups.ward_tree import ward_cuts

_MOST_TRIED = 24
_SELF_EVIDENT = 2  # so few groups stay as they are


def coarsen(rows: np.ndarray, units: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Join groups into coarser groups.

    Args:
        rows: (N, D) unit rows of names.
        units: (N,) the group of every name, 0..U-1, none of them empty.
        wanted: number of coarser groups; 0: as the data give; more than U is U.

    Returns:
        (U,) the coarser group of every group, numbered in the order of their first groups, and (U,) float32 margins,
        0..1, to the next coarser group.
    """
    count = int(units.max()) + 1
    mass = np.bincount(units, minlength=count).astype(np.float64)
    with threadpool_limits(limits=1):
        means = sums(rows.astype(np.float64), units, np.ones(len(rows)), count) / mass[:, None]
        centres = unit(means).astype(np.float32)
        numbers = [min(wanted, count)] if wanted else _candidates(count)
        tried = ward_cuts(means, mass, numbers).T
        margin = [margins(centres, labels, mass)[0] for labels in tried]
    scores = [round(float(np.average(found, weights=mass)), 6) for found in margin]
    best = max(range(len(numbers)), key=lambda i: (scores[i], -numbers[i]))
    return tried[best], margin[best]


def _candidates(count: int) -> list[int]:
    if count <= _SELF_EVIDENT:
        return [count]
    most = max(2, count // 2)
    return sorted({round(number) for number in np.geomspace(2, most, min(_MOST_TRIED, most - 1))})
