"""GNN-encoder: dense passage retrieval whose passage vectors have seen the training queries.

The library below the pipeline. It imports without KFP; nothing heavy is imported here, so that
`gnn-encoder --help` stays fast.
"""

__version__ = "0.1.0"
