"""Training: one loop, the losses, the examples and batches, the gradient cache, checkpoints, several processes.

Imports `query_graph`, `inference`, `models` and lower packages.
"""
