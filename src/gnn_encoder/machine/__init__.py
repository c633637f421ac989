"""What this machine gives to a computation: its cores, room on its disk, copies to and from its devices.

Imports `tracking`, for progress, and nothing else of this package.
"""
