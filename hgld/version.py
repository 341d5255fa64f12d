"""Version of hgld; files and reports state it."""

__version__ = "0.2.0"
