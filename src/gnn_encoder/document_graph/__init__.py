"""The graph of structured documents: typed edges, neighbourhoods, and vectors of passages in their context.

Imports `models` and `inference`, because it runs the document GAT over stored token vectors; `query_graph` for drawing.
"""
