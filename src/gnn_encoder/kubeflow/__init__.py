"""Runs the training or the re-ranking pipeline on a Kubeflow cluster: checks and sends the run, and follows it.

`follower` is the program of a TrainJob's pods. Imports `runs`, `promotion`, `steps` and the rooms below them.
"""
