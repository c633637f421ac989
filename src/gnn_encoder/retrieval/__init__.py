"""Finds passages by words, vectors or both, or a bundle; scores pairs. Imports both graphs, `inference` and below."""
