"""Texts → tokens → vectors, scores or generated texts, at full speed. Imports `models`, `machine` and those below."""
