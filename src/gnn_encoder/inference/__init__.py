"""From texts to tokens, and from tokens to vectors, scores or generated texts, at full speed on the devices at hand.

Imports `models`, `machine`, `tracking` and what lies below them.
"""
