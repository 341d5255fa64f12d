"""Names of the formats of taxonomies, with a line on each, for the help of the command line."""

AUTO = "auto"

FORMAT_LINES = {
    "hgld": "hierarchy.parquet of hgld, or the folder of a build or dataset",
    "wordnet": "WordNet's database files: data.noun, or the folder of it",
    "open-images": "Open Images' hierarchy JSON, with the class-descriptions CSV in its folder",
    "categories": "categories JSON: iNaturalist's with a key per rank, COCO's with a supercategory",
    "darwin-core": "Darwin Core taxa: parentNameUsageID, or columns of ranks",
    "edge-list": "a table with columns child and parent",
    "paths": "a table with a column path: animal > dog > beagle",
    "columns": "a table with a column per level, finest first",
    "folders": "a folder tree: a folder per class",
}
"""The formats, in the order in which a document is tried."""

PARENTS_RULES = ("refuse", "first", "most-specific")
