"""Forecasts, before any training, what labelled queries can gain on a data set.

Imports `evaluation`, `inference` and the rooms below; `cli` shows it.
"""
