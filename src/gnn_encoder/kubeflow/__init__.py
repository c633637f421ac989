"""Runs pipelines on a Kubeflow cluster: compiles a graph to a package, sends it, and follows the run.

`follower` is the program of a TrainJob's pods. Imports `engines`, `promotion` and the rooms below them.
"""
