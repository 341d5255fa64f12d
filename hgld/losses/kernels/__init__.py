"""The operator beneath the rank losses and its implementations: plain torch, numba by pairs or on a grid, Triton."""
