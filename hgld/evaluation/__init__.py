"""Retrieval evaluation: metrics by name, ranks of positives, reports and benchmark protocols."""
