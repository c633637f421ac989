"""Measures, significance, and the report that shows them."""
