"""Attention inside each of several texts in a row, one text after the other; zero after the last."""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class ReferenceAttention:
    """An `Attention` of `models/packed.py`; counts its `calls`."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int,
        *, scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        self.calls += 1
        edges = bounds.tolist()
        assert edges[-1] <= len(query) and longest == max(end - start for start, end in itertools.pairwise(edges))
        texts = [
            self._text(query[start:end], key[start:end], value[start:end], window_size, scale, enable_gqa)
            for start, end in itertools.pairwise(edges)
        ]
        return torch.cat([*texts, torch.zeros_like(query[edges[-1] :])])

    @staticmethod
    def _text(query: Tensor, key: Tensor, value: Tensor, window: tuple[int, int], scale: Any, gqa: bool) -> Tensor:
        position = torch.arange(len(query))
        apart = position[None] - position[:, None]
        left, right = (len(query) if side < 0 else side for side in window)
        heads = (x.transpose(0, 1)[None] for x in (query, key, value))
        seen = (apart >= -left) & (apart <= right)
        return scaled_dot_product_attention(*heads, attn_mask=seen, scale=scale, enable_gqa=gqa)[0].transpose(0, 1)
