"""The query–passage graph: neighbourhoods, features, propagation. Imports `inference`, `machine` and lower packages."""
