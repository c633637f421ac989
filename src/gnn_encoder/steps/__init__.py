"""One function per step: reads folders, writes folders, returns metrics. Steps do not import steps.

Imports `engines.step` and every room with a method that a step uses.
"""
