"""Decides which bundle is in service: gate of `promote`, comparison with the champion, registry, cards, retraining.

Imports `evaluation`, `retrieval`, `tracking` and the rooms below them. The file that MLflow runs is in `serving`.
"""
