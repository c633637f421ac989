"""Runs pipelines on a Kubeflow cluster: compiles a graph to a package, sends it, and follows the run.

Imports `engines`, `promotion` and the rooms below them.
"""
