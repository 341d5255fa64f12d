"""Training of networks on dataset directories, and inference with them."""
