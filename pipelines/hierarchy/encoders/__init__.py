"""Encoders of names: text to unit vectors."""
