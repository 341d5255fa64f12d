"""The operator that computes the rank losses, and its implementations: plain torch, numba, Triton."""
