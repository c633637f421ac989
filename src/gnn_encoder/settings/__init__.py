"""One typed, validated settings class per step.

A paper's number is a default with its source beside it; a deviation from a paper is a setting and
says so. `presets` fills them from YAML files.
"""
