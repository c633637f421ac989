"""One function per step: paths in, paths out, metrics returned."""
