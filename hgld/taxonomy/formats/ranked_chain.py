"""Chains of ranks: rows that name the class of an item at each rank, from the coarsest to the finest."""

from collections.abc import Sequence

from hgld.taxonomy.graph import TaxonomyBuilder

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")  # above the species, coarsest first
BETWEEN = " > "


def add_chain(made: TaxonomyBuilder, ranks: Sequence[str], names: Sequence[str], row: int) -> str:
    """Add the classes of a row above its finest one, each under the next coarser that is known.

    A class's id is its way from the top, since other families have genera of the same name.

    Args:
        made: the taxonomy.
        ranks: coarsest first.
        names: of the row's class at each rank; empty where unknown.
        row: its number.

    Returns:
        the id of the finest of these classes; empty where all are unknown.
    """
    parent = ""
    for rank, name in zip(ranks, names, strict=True):
        if not name:
            continue
        here = f"{parent}{BETWEEN}{name}" if parent else name
        if here not in made:
            made.add(here, name, rank, row)
            if parent:
                made.link(here, parent, row)
        parent = here
    return parent
