"""Names of systems, as in every table."""

LEXICAL, UNTRAINED, DUAL_ENCODER, GNN_ENCODER = "BM25", "Untrained", "Dual encoder", "GNN-encoder"
CONVERGED = "Dual encoder, converged"
QUERY_SUM, QUERY_MEMORY, QUERY_CLUSTERS = "Query sum", "Query memory", "Query clusters"
CROSS_ENCODER = "Cross-encoder"
