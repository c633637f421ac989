"""Finding passages by words (BM25), by vectors, by both, or with a bundle; re-ranking the hits.

Imports `query_graph`, `inference`, `models` and the rooms below.
"""
