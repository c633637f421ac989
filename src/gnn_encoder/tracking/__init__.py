"""What a step reports of itself while it runs: progress, figures and curves in MLflow, and the pipeline's own run.

Imports `storage`, `artifacts` and what lies below them; MLflow is imported inside the functions that need it.
"""
