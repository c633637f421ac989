"""Queries for passages, for data that have too few queries of their own."""
