"""Reports of running steps: progress, and figures and curves in MLflow; the MLflow run of the pipeline.

Imports `storage`, `artifacts` and the packages below; MLflow is imported inside the functions that need it.
"""
