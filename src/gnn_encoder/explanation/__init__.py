"""Why a passage was found: the training queries that flowed into its vector, in numbers, in words, on a terminal.

A room apart from `report`, because it reads models and graphs. Imports `retrieval`, `query_graph`, `models`.
"""
