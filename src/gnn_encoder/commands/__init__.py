"""The command line's commands beyond the pipelines themselves, a module for each thing that they are about."""
