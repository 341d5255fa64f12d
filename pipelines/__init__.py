"""Stages that make datasets. They exchange only files, which docs/reference/build-files.md describes."""
