"""Finding passages: by words, by vectors, by both, and the bundle that is asked."""
