"""Runs and labels in, figures out: measures, significance, comparison of any runs. Knows no model.

Imports `artifacts` and what lies below.
"""
