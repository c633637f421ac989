"""A Kubeflow cluster: what a run needs there, what is sent, and how the run is followed.

Imports `runs`, `promotion` and what lies below them.
"""
