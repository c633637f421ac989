"""Trained bundles in use by applications."""
