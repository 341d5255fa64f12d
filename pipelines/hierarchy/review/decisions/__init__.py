"""Decisions of people: what they say, their files, and how several people agree."""
