"""A name on its way to hierarchy.parquet: scrape, clean, embed, cluster, top level, review, assign, export, report."""
