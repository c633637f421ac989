"""The ladder as Python functions on texts and labels in memory, with results that a notebook displays."""
