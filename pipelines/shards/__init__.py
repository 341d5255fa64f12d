"""A release on its way to a dataset directory: catalog, examine, order, pack, finish."""
