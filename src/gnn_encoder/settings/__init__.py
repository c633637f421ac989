"""One typed, validated settings class per step.

A paper's number is a default, with its source beside the field. A deviation from a paper is a setting, and the
setting's docstring says so. `presets` fills the settings from YAML files.
"""
