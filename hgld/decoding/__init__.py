"""Decoding and augmentation: encoded images to one batch of pixels, by two paths that agree."""
