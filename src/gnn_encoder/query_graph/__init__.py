"""The query–passage graph: its neighbourhoods, its edge features, narrower graphs, and propagation over the full graph.

Imports `inference`, `models`, `machine` and what lies below them.
"""
