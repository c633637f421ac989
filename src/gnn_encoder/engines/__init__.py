"""Runs graphs on this machine, reuses results, starts the processes or pods of a training; digests of code and data.

Imports `promotion` and the rooms below `promotion`.
"""
