"""Readers of existing taxonomies, and rules that turn a taxonomy of uneven depth into levels.

>>> import hgld
>>> from hgld.taxonomy.graph import TaxonomyBuilder
>>> from hgld.taxonomy.levels import even_levels
>>> birds = TaxonomyBuilder("birds", "edge-list")
>>> for child, parent in [("mallard", "duck"), ("eider", "duck"), ("duck", "bird"), ("ostrich", "bird")]:
...     birds.link(child, parent)
>>> found = even_levels(birds.finish(), cut="root:1,0", levels=("species", "kind", "class"))
>>> found.hierarchy.names
(('eider', 'mallard', 'ostrich'), ('duck', 'ostrich'), ('bird',))
>>> found.counts["stand for themselves at kind"]  # the ostrich has no parent at the level kind
1
"""

AUTO = "auto"

FORMAT_LINES = {
    "hgld": "hierarchy.parquet of hgld, or the folder of a build or dataset",
    "wordnet": "WordNet's database files: data.noun, or the folder of it",
    "open-images": "Open Images' hierarchy JSON, with the class-descriptions CSV in its folder",
    "categories": "categories JSON: iNaturalist's with a key per rank, COCO's with a supercategory",
    "darwin-core": "Darwin Core taxa with parentNameUsageID",
    "edge-list": "a table with columns child and parent",
    "paths": "a table with a column path: animal > dog > beagle",
    "columns": "a table with a column per level, finest first",
    "folders": "a folder tree with one folder per class",
}
"""The formats and their descriptions, in the order in which detection tries them."""

PARENTS_RULES = ("refuse", "first", "most-specific")
