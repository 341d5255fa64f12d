"""Training on the datasets that pipelines made."""
