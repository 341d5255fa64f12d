"""Stages from names to hierarchy.parquet: scrape, clean, embed, cluster, toplevel, review, assign, export, report."""
