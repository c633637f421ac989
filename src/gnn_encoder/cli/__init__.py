"""The command line: `app` holds the commands, the other modules what the commands show and do.

Imports every other room, each inside the command that needs it, so that `gnn-encoder --help` stays fast.
"""
