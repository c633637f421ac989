"""Sources of vectors for masked training: encoders that are trained with the GNN, or stored vectors."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.inference.encoding import encode_tokens
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import TextEncoder, on_device
from gnn_encoder.models.gnn import GNN
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.embed import embed


class Texts(Protocol):
    """Vectors of a dataset's queries, or of its passages, by row."""

    def live(self, rows: np.ndarray) -> Tensor:
        """Vectors fp32 [b, d] with gradient."""

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Vectors fp32 [b, d] without gradient."""


class EncodedTexts:
    """An encoder over tokens: the paper's joint training."""

    def __init__(self, encoder: TextEncoder, tokens: Tokens, settings: TrainGnn) -> None:
        self.encoder, self.tokens, self._settings = encoder, tokens, settings

    def live(self, rows: np.ndarray) -> Tensor:
        """See `Texts`."""
        return embed(self.encoder, self.tokens, rows, cached=self._settings.gradient_cache)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """See `Texts`."""
        vectors = np.empty((len(rows), self.encoder.width), dtype=np.float32)
        encode_tokens(self.encoder, self.tokens.take(rows), vectors, precision=self._settings.precision)
        return vectors


class StoredTexts:
    """Stored vectors [n, d], which may be memory-mapped, mapped by a function [b, d] → [b, d]."""

    def __init__(self, stored: np.ndarray, function: Callable[[Tensor], Tensor] = lambda vectors: vectors) -> None:
        self._stored, self._function = stored, function

    def live(self, rows: np.ndarray) -> Tensor:
        """See `Texts`."""
        return self._function(on_device(np.asarray(self._stored[rows], dtype=np.float32)))

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """See `Texts`."""
        with torch.inference_mode():
            vectors: np.ndarray = self.live(rows).cpu().numpy()
        return vectors


class FrozenGnnEncoder(nn.Module):
    """A GNN over stored vectors, trained together with a linear map of the queries that starts as the identity.

    A deviation from the paper, for exploration: no text is encoded, so a variant trains in a minute.

    Args:
        queries: vectors [q, d] of all the dataset's queries. passages: vectors [m, d].
        unit_length: whether mapped queries are scaled to unit length.
        rate: learning rate of the map.
    """

    def __init__(self, gnn: GNN, queries: np.ndarray, passages: np.ndarray, *, unit_length: bool, rate: float) -> None:
        super().__init__()
        self.gnn, self.unit_length, self.rate = gnn, unit_length, rate
        width = passages.shape[1]
        self.query_map = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.query_map.weight)
        self.queries, self.passages = StoredTexts(queries, self._mapped), StoredTexts(passages)

    def _mapped(self, queries: Tensor) -> Tensor:
        # fp32 even under bf16 autocast, like the encoders' vectors.
        mapped: Tensor = self.query_map(queries).float()
        return nn.functional.normalize(mapped, dim=-1) if self.unit_length else mapped
