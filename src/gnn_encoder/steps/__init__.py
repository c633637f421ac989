"""One function per step: folders in, folders out, metrics returned. Steps do not import steps.

Imports `runs.step` and every room that a method lies in.
"""
