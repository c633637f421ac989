"""The resources of the machine for a computation: cores, memory and disk space.

Imports `tracking`, for progress, and nothing else of gnn_encoder.
"""
