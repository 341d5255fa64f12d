"""Drawings of landmarks, for a demonstration without downloads."""
