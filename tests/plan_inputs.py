"""Facts of data and rates of a machine, as a plan reads them."""

import numpy as np

from gnn_encoder.planning.facts import DataFacts
from gnn_encoder.planning.rates import Rates

RATES = Rates("a machine", 30_000.0, 6_000.0)


def facts(
    passages: int = 13_000, train: int = 2_400, tokens: int = 120, shared: float = 0.5, dev: int = 400
) -> DataFacts:
    lengths = np.sort(np.random.default_rng(0).geometric(1 / tokens, 500) + 2)
    queries = {"train": train, "dev": dev, "test": 500}
    return DataFacts(passages, queries, round(1.2 * train), shared, lengths, np.arange(5, 35), lengths + tokens // 3)
