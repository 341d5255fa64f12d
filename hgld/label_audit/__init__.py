"""Audit of labels: probably wrong labels, wrong classes of the hierarchy, and copies across splits."""
