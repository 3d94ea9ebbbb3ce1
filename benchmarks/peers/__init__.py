"""The training step of alpha-rl once more in PyTorch and in JAX: `python -m benchmarks.peers --help`."""
