"""Live vectors, with gradient, of tokenized texts."""

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.encoding import budget_batches
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.tokens import Tokens
from gnn_encoder.training.gradient_cache import run_part
from gnn_encoder.training.ranks import shared

TOKENS_PER_PASS = 1024
"""Texts of a batch go through the encoder in length-sorted parts of this size: less padding, less memory at once."""


def embed(encoder: TextEncoder, tokens: Tokens, rows: np.ndarray, *, cached: bool = False) -> Tensor:
    """Vectors [b, d] of the texts at `rows` [b], in that order, with gradient.

    `cached`: see `gradient_cache`. Where several processes train together, each embeds a share (`ranks`).
    """
    none = next(encoder.parameters()).new_zeros(0, encoder.width)
    return shared(lambda share: _embed(encoder, tokens, share, cached), rows, none)


def _embed(encoder: TextEncoder, tokens: Tokens, rows: np.ndarray, cached: bool) -> Tensor:
    where = next(encoder.parameters()).device
    pad = encoder.tokenizer.pad_token_id or 0
    parts, order = [], []
    for part in budget_batches(tokens.lengths[rows], TOKENS_PER_PASS):
        ids, mask = (torch.from_numpy(a).to(where) for a in tokens.padded(rows[part], pad))
        parts.append(run_part(encoder, ids, mask, cached=cached))
        order.append(part)
    inverse = np.argsort(np.concatenate(order))
    return torch.cat(parts)[torch.from_numpy(inverse).to(where)]
