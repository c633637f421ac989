"""Texts → tokens, and tokens → vectors, scores or generated texts, at full speed on the devices at hand.

Imports `models`, `machine`, `tracking` and the rooms below.
"""
