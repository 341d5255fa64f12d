"""Read a dataset directory back: scan its shards, verify it, rebuild its index."""
