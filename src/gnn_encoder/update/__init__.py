"""What has changed since an earlier run, and what of that run is carried over.

Imports `retrieval`, `query_graph` and what lies below them.
"""
