"""The image that every step runs in."""

IMAGE = "gnn-encoder-python:0.1.0"
"""Name and package version; a registry's prefix is the cluster's business. kfp's local runner wants "python" in it."""
