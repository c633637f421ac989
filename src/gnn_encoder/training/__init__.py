"""The training loop, losses, checkpoints, and what a batch holds."""
