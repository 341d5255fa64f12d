"""The operator beneath the rank losses and its implementations: plain torch, numba, Triton."""
