"""Running pipelines on this machine: what a step is called with, launching and watching steps, and what a run needs.

Imports `promotion` and what lies below it. `launch` alone knows KFP.
"""
