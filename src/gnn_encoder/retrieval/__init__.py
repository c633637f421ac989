"""Finding passages: by words, by vectors, by both, and by a bundle; and putting the found ones into a better order.

Imports `query_graph`, `inference`, `models` and what lies below them.
"""
