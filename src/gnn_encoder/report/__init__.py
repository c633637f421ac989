"""Turns measures into pages, plots and tables.

Imports `evaluation`, `explanation` and the rooms below them.
"""
