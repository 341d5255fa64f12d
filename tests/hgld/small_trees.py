"""Random hierarchies for tests, and a canonical order to compare them."""

import itertools

import numpy as np
from hypothesis import strategies as st

from hgld import Hierarchy

LETTERS = st.text("abAB zé猫&<'\".;-", min_size=1, max_size=6).map(lambda text: " ".join(text.split())).filter(bool)


@st.composite
def hierarchies(draw, *, even: bool = False, levels: tuple[str, ...] = (), names=LETTERS) -> Hierarchy:
    """Draw a hierarchy of up to four levels; several levels may contain the same name.

    Args:
        draw: hypothesis's ``draw``.
        even: if true, every class below the top has a parent, and every class above the finest level has a child.
        levels: level names; empty: draw the number of levels.
        names: hypothesis strategy for class names.
    """
    count = len(levels) or draw(st.integers(2 if even else 1, 4))
    sizes = sorted((draw(st.integers(1, 5)) for _ in range(count)), reverse=True)
    named = tuple(tuple(draw(st.lists(names, min_size=n, max_size=n, unique=True))) for n in sizes)
    parents = []
    for size, above in itertools.pairwise(sizes):
        least = 0 if even else -1
        column = draw(st.lists(st.integers(least, above - 1), min_size=size, max_size=size))
        if even:
            # every class above gets a child, because this level has at least as many classes
            column[:above] = range(above)
        parents.append(np.array(column))
    return Hierarchy(levels or tuple(f"level {c}" for c in range(count)), named, tuple(parents))


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
