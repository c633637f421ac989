"""The query–passage graph: its neighbourhoods, its edges' features, and the vectors it propagates."""
