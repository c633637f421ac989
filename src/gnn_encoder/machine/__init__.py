"""What this machine gives to a computation: its cores and room on its disk.

Imports `tracking`, for progress, and nothing else of this package.
"""
