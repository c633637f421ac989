"""Why a passage was found: the training queries in its vector, as numbers, as texts, and on a terminal.

Apart from `report` because it reads models and graphs. Imports `retrieval`, `query_graph`, `models`.
"""
