"""The image of every step."""

IMAGE = "gnn-encoder-python:0.1.0"
"""Image name and package version. The cluster file adds the registry. kfp's local runner requires "python" in it."""
