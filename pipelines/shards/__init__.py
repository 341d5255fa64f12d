"""Build a dataset directory from a release: catalog, examine, order, pack, finish."""
