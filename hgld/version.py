"""Version of hgld, which files and reports state."""

__version__ = "0.2.0"
