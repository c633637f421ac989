"""Training the query generator: batches of (positive passage, query) pairs, mean loss per token."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.inference.encoding import autocast
from gnn_encoder.inference.generation import pair_batch
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.training.embed import passes


class RowBatches:
    """Plan: rows 0…n-1, shuffled anew each epoch. A batch is int64 [b]."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self.rows, self.seed = rows, seed
        self.batch_examples = min(batch_size, rows)
        self.steps_per_epoch = -(-rows // self.batch_examples)

    def draws(self, epoch: int) -> Iterator[np.ndarray]:
        """The epoch's batches."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.rows)
        yield from np.array_split(order, self.steps_per_epoch)

    def batch(self, drawn: np.ndarray) -> np.ndarray:
        """The batch that was drawn: nothing is left to do."""
        return drawn


def token_loss(model: QueryGenerator, passages: Tokens, queries: Tokens, rows: np.ndarray) -> Tensor:
    """Mean cross-entropy (nats) over the query tokens of some pairs.

    Pairs go through the model in length-sorted parts, to save padding.
    """
    total = torch.zeros((), device=device())
    for part in passes(passages.lengths[rows]):
        total = total + model(*pair_batch(model, passages, queries, rows[part]))
    return total / int(queries.lengths[rows].sum())


def held_out_loss(model: QueryGenerator, passages: Tokens, queries: Tokens, precision: str) -> float:
    """`token_loss` over all of some pairs, without gradient."""
    with torch.inference_mode(), autocast(precision):
        return token_loss(model, passages, queries, np.arange(len(queries))).item()
