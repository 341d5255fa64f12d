"""A dataset directory read back: scan, verify, index."""
