"""The graphs of the pipelines: each function makes a run's graph from its settings, and reads like the algorithm."""
