"""Use of trained networks: embedding datasets and image files, search, and export to files."""
