"""Which bundle is in service: the gate (what `promote` decides), the registry, the champion, model cards, retraining.

Imports `evaluation`, `retrieval`, `tracking` and the rooms below them.
"""
