"""Drawn pictures of landmarks, for a demonstration without downloads."""
