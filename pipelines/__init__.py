"""The stages that make datasets. They meet only on disk: docs/reference/build-files.md describes the files."""
