"""Which bundle is in service: the registry, the gate, the comparison with the champion, the model card, retraining.

Imports `evaluation`, `retrieval`, `report`, `tracking` and what lies below them.
"""
