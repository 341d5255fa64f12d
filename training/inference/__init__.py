"""Trained networks in use: they embed datasets and image files, search by them, and leave as files of their own."""
