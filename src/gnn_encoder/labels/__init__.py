"""Labels after a run: adds them to a bundle at once, measures what labels gain, and suggests the next ones.

Imports `explanation` and rooms below.
"""
