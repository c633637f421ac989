"""Figures in; pages, plots and tables out.

Imports `evaluation`, `explanation` and what lies below them.
"""
