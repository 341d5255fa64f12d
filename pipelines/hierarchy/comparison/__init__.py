"""Comparison of two hierarchies: their tables read, the items of both paired, the agreement measured and told."""
