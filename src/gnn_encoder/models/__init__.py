"""The networks: dual encoder, cross-encoder, query generator, GNN, each with its saved files.

Imports `storage`, `artifacts` and `settings`; `inference` feeds texts to the networks at full speed.
"""
