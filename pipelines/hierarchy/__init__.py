"""Stages from names to hierarchy.parquet: scrape, clean, embed, evidence, cluster, toplevel, review, export, report."""
