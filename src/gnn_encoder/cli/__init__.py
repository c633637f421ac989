"""The command line. `app` registers the commands; the other modules implement them and their output.

Imports all other rooms, each inside the command that needs it, so that `gnn-encoder --help` stays fast.
"""
