"""The query–passage graph: neighbourhoods, edge features, smaller graphs for ablations, and propagation.

Imports `inference`, `models`, `machine` and the rooms below.
"""
