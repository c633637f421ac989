"""Finds passages by words, vectors or both, or with a bundle. Imports `query_graph`, `inference`, lower packages."""
