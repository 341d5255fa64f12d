"""Drawn pictures of landmarks: images for a demonstration, made by the project itself."""
