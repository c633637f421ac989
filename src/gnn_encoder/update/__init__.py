"""Finds changes since an earlier run and carries over the remainder. Imports `retrieval`, `query_graph` and below."""
