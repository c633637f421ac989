"""Relevance judged by a language model, and how far it agrees with human labels."""
