"""Taxonomies of others: graphs of named classes in many formats, and the even levels that a hierarchy needs.

>>> import hgld
>>> from hgld.taxonomy.graph import TaxonomyBuilder
>>> from hgld.taxonomy.levels import even_levels
>>> birds = TaxonomyBuilder("birds", "edge-list")
>>> for child, parent in [("mallard", "duck"), ("eider", "duck"), ("duck", "bird"), ("ostrich", "bird")]:
...     birds.link(child, parent)
>>> found = even_levels(birds.finish(), cut="root:1,0", levels=("species", "kind", "class"))
>>> found.hierarchy.names
(('eider', 'mallard', 'ostrich'), ('duck', 'ostrich'), ('bird',))
>>> found.counts["stand for themselves at kind"]  # no kind lies above the ostrich
1
"""
