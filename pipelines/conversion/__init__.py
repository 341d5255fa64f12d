"""Datasets, with what people decided about their classes, in the formats of tools in which pictures are looked at."""
