"""Names of systems, as in every table."""

LEXICAL, UNTRAINED, DPR, DUAL_ENCODER, GNN_ENCODER = "BM25", "Untrained", "DPR", "Dual encoder", "GNN-encoder"
CONVERGED = "Dual encoder, converged"
QUERY_SUM, QUERY_MEMORY, QUERY_CLUSTERS = "Query sum", "Query memory", "Query clusters"
CROSS_ENCODER = "Cross-encoder"
