"""Settings for a data set and a machine that nobody has tried yet (`gnn-encoder run` without a preset), and the disk
that a run takes.
"""

AUTO = "auto"
"""The name of the preset that is planned, and the folder of the plans under the root."""
