"""Computes measures of runs from labels, their significance, and comparisons of any runs. Knows no model.

Imports `artifacts` and the rooms below `artifacts`.
"""
