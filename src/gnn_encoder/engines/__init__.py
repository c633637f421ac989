"""Runs pipelines on this machine: arguments of steps, starting and watching steps, and requirements of a run.

Imports `promotion` and the rooms below `promotion`. Only `launch` knows KFP.
"""
