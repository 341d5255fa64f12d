"""Models that embed images: a backbone, a pooling, a projection."""
