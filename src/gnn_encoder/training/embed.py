"""Live vectors, with gradient, of tokenized texts."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.inference.encoding import budget_batches
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import TextEncoder, device
from gnn_encoder.training.gradient_cache import run_parts
from gnn_encoder.training.ranks import shared

TOKENS_PER_PASS = {"cpu": 1024, "cuda": 8192}
"""Tokens that go through a model at once in training. Texts of 190 tokens train 1.05 times as fast on two cores as by
2,048 and 1.7 times as by 8,192: activations stay in the caches. A GPU needs thousands to be busy (not measured)."""


def passes(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Row numbers of a batch's texts of `lengths` [b] tokens, in length-sorted parts: less padding, less at once."""
    return budget_batches(lengths, TOKENS_PER_PASS[device().type])


def embed(encoder: TextEncoder, tokens: Tokens, rows: np.ndarray, *, cached: bool = False) -> Tensor:
    """Vectors [b, d] of the texts at `rows` [b], in that order, with gradient.

    `cached`: see `gradient_cache`. Where several processes train together, each embeds a share (`ranks`).
    """
    none = next(encoder.parameters()).new_zeros(0, encoder.width)
    return shared(lambda share: _embed(encoder, tokens, share, cached), rows, none)


def _embed(encoder: TextEncoder, tokens: Tokens, rows: np.ndarray, cached: bool) -> Tensor:
    where = next(encoder.parameters()).device
    pad = encoder.tokenizer.pad_token_id or 0
    parts = list(passes(tokens.lengths[rows]))

    def padded(part: np.ndarray) -> tuple[Tensor, Tensor]:
        ids, mask = tokens.padded(rows[part], pad)
        return torch.from_numpy(ids).to(where), torch.from_numpy(mask).to(where)

    vectors = run_parts(encoder, map(padded, parts), cached=cached)
    inverse = np.argsort(np.concatenate(parts))
    return vectors[torch.from_numpy(inverse).to(where)]
