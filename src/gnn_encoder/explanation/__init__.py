"""Explains hits by training queries in their vectors, or by their re-ranker.

Imports `retrieval` and rooms below; `report` shows it.
"""
