"""A run as a graph of steps: what a step declares, nodes and their inputs, and the arguments of each call.

Nothing here knows where a graph is executed: `engines` does.
"""
