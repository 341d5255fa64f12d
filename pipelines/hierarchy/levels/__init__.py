"""Levels above the groups."""
