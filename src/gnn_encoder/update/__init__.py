"""What has changed since an earlier run, and what is carried over. Imports `retrieval`, `query_graph`, those below."""
