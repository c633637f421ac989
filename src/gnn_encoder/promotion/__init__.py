"""Which bundle is in service: the gate (what `promote` decides), the registry, the champion, the model card, retraining.

Imports `evaluation`, `retrieval`, `tracking` and what lies below them.
"""
