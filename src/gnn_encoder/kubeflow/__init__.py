"""Runs the training or the re-ranking pipeline on a Kubeflow cluster: checks and sends the run, and follows it.

Imports `runs`, `promotion` and the rooms below them.
"""
