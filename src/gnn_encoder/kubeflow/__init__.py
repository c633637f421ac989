"""Training on a Kubeflow cluster: what it is told, what is sent there, and how the run is followed."""
