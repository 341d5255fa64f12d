"""Random hierarchies for tests, and a canonical order to compare them."""

import itertools

import numpy as np
from hypothesis import strategies as st

from hgld import Hierarchy

LETTERS = st.text("abAB zé猫&<'\".;-", min_size=1, max_size=6).map(lambda text: " ".join(text.split())).filter(bool)


@st.composite
def hierarchies(draw) -> Hierarchy:
    """Draw a hierarchy of up to four levels; several levels may contain the same name."""
    sizes = sorted(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)), reverse=True)
    named = tuple(tuple(draw(st.lists(LETTERS, min_size=n, max_size=n, unique=True))) for n in sizes)
    parents = [
        np.array(draw(st.lists(st.integers(-1, above - 1), min_size=size, max_size=size)))
        for size, above in itertools.pairwise(sizes)
    ]
    return Hierarchy(tuple(f"level {c}" for c in range(len(sizes))), named, tuple(parents))


def in_order(tree: Hierarchy) -> Hierarchy:
    """Return the same hierarchy with class ids in the order of the sorted names."""
    orders = [sorted(range(len(names)), key=names.__getitem__) for names in tree.names]
    places = [np.argsort(order) for order in orders]
    parents = []
    for c, column in enumerate(tree.parents):
        moved = np.where(column >= 0, places[c + 1][column], -1)
        parents.append(moved[orders[c]])
    names = tuple(tuple(n[i] for i in o) for n, o in zip(tree.names, orders, strict=True))
    return Hierarchy(tree.levels, names, tuple(parents))
