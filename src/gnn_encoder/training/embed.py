"""Live vectors, with gradient, of tokenized texts."""

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.encoding import Tokens, budget_batches
from gnn_encoder.models.dual_encoder import TextEncoder

TOKENS_PER_PASS = 1024
"""Texts of a batch go through the encoder in length-sorted parts of this size: less padding, less memory at once."""


def embed(encoder: TextEncoder, tokens: Tokens, rows: np.ndarray) -> Tensor:
    """Vectors [b, d] of the texts at `rows` [b], in that order, with gradient."""
    where = next(encoder.parameters()).device
    pad = encoder.tokenizer.pad_token_id or 0
    parts, order = [], []
    for part in budget_batches(tokens.lengths[rows], TOKENS_PER_PASS):
        ids, mask = (torch.from_numpy(a).to(where) for a in tokens.padded(rows[part], pad))
        parts.append(encoder(ids, mask))
        order.append(part)
    inverse = np.argsort(np.concatenate(order))
    return torch.cat(parts)[torch.from_numpy(inverse).to(where)]
