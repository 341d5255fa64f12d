"""Audit of labels: images, classes and copies across splits that are probably not what their labels say."""
