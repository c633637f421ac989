"""Explains hits by the training queries in their vectors. Imports `retrieval` and rooms below; `report` shows it."""
