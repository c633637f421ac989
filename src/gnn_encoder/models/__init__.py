"""The networks: text encoders, cross-encoder, query generator, GNN, each with the files that it is saved to.

Imports `storage`, `artifacts` and `settings`; how texts reach a network at full speed is the business of `inference`.
"""
